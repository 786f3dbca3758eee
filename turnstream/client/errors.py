"""What can go wrong for a client.

    ClientError
    ├── Refused                 the request is at fault; the same again would be refused again
    │   ├── InvalidRequest      400, 413, 422: a parameter or the body
    │   ├── KeyRefused          401, 403: the API key
    │   ├── NotFound            404: the session, the turn or the call
    │   ├── Conflict            409: the session is busy, or the call's turn has ended
    │   └── Gone                410: what was asked for is no more, or the call's deadline has passed
    ├── Unavailable             no front end answered, or all said "later", for as long as was agreed
    ├── BadAnswer               what answered does not speak Turnstream's protocol
    ├── UnansweredCall          the agent calls a function, or asks for approval, and nobody is there for it
    └── TurnError               the turn ended otherwise than by an answer
        ├── TurnFailed          the agent failed
        └── TurnCanceled        somebody stopped it

The text of each says what was wrong, where, and what to do. It never holds the API key.
"""

# ruff: noqa: N818 - named after what happened; that they are errors, the base says

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from turnstream.shared.protocol import AgentResponse


class ClientError(Exception):
    """Base of all errors of the client."""


class Refused(ClientError):
    """The server refused a request.

    Attributes:
        status: the HTTP status.
        code: the server's name or number for the error; empty when it gave none.
        where: the request: method, path.
    """

    advice: ClassVar[str] = ""

    def __init__(self, status: int, code: str | int, text: str, where: str) -> None:
        self.status = status
        self.code = code
        self.where = where
        super().__init__(" ".join(filter(None, (f"{text} ({where}: {status})", self.advice))))


class InvalidRequest(Refused):
    """A parameter or the body is not valid; the text names the field."""


class KeyRefused(Refused):
    """The API key is malformed, unknown, expired, or not for this."""

    advice = "Give the client a key that may do this; operators make one with `turnstream keys create`."


class NotFound(Refused):
    """There is no such session, turn or call (any more)."""


class Conflict(Refused):
    """The session is busy with another turn, or the turn of the call has ended."""


class Gone(Refused):
    """The session was cleared since the cursor, its broker lost what followed, or the call's deadline has passed."""


class Unavailable(ClientError):
    """Nobody could serve the request for as long as the client's ``patience``.

    Attributes:
        where: the request: method, path.
        url: where that was tried.
    """

    def __init__(self, text: str, where: str, url: str) -> None:
        self.where = where
        self.url = url
        super().__init__(
            f"{text} ({where} at {url}). The turn goes on without us, if it was accepted: follow it with the same id "
            "when the server is back."
        )


class BadAnswer(ClientError):
    """What answered is not a Turnstream front end, or a proxy changed its answer.

    Attributes:
        where: the request: method, path.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        super().__init__(
            f"{text} ({where}). Check the URL: it must be the front end's, without a path of its own."
        )


class UnansweredCall(ClientError):
    """The agent waits for a function that is not registered, or for an approval that nobody can give.

    Attributes:
        name: the function, or the tool that needs approval.
    """

    def __init__(self, name: str, *, approval: bool) -> None:
        self.name = name
        if approval:
            text = f"The agent asks for approval of {name!r}, and no handler is registered: add one with @client.approval"
        else:
            text = (
                f"The agent calls {name!r}, which is not registered: add it with @client.function({name!r}), "
                "or one for all others with @client.other_functions"
            )
        super().__init__(
            f"{text}; or iterate over the reply's events, and answer with reply.answer(…). The turn waits until then: "
            "reply.stop() ends it."
        )


class TurnError(ClientError):
    """The turn ended without an answer.

    Attributes:
        response: the terminal event, with all output up to the end.
    """

    def __init__(self, text: str, response: AgentResponse) -> None:
        self.response = response
        super().__init__(text)


class TurnFailed(TurnError):
    """The agent failed; ``response.error`` says why."""

    def __init__(self, response: AgentResponse) -> None:
        error = response.error
        why = f"{error.message} ({error.code})" if error else "the server did not say why"
        super().__init__(f"The turn {response.id} failed: {why}", response)


class TurnCanceled(TurnError):
    """The turn was stopped: by this client, by another one, or by an operator."""

    def __init__(self, response: AgentResponse) -> None:
        super().__init__(f"The turn {response.id} was stopped before its end.", response)


_BY_STATUS: dict[int, type[Refused]] = {
    400: InvalidRequest,
    401: KeyRefused,
    403: KeyRefused,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: InvalidRequest,
    422: InvalidRequest,
}


def refusal(status: int, code: str | int, text: str, where: str) -> Refused:
    """The error of an HTTP status."""
    return _BY_STATUS.get(status, Refused)(status, code, text, where)
