"""The shape of an error's body: each wire protocol has one; where no protocol is asked for, `CODE_AND_MESSAGE`."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnstream.api.http.operation import Json
    from turnstream.shared.errors import TurnstreamError


class Problem(NamedTuple):
    """What is wrong with a request, apart from its shape.

    Attributes:
        status: the HTTP status.
        code: a stable name; a number for some errors.
        number: a stable number.
        word: the name in words.
        text: what was wrong, where, and what to do.
        retry: whether to send the request again, unchanged, may help.
    """

    status: int
    code: str | int
    number: int
    word: str
    text: str
    retry: bool = False

    @classmethod
    def of(cls, error: TurnstreamError) -> Self:
        """One of our own errors."""
        return cls(
            error.status, error.code, error.number, error.word(), error.public_text, error.retry_may_help
        )

    @classmethod
    def refused(cls, status: int, word: str, text: str) -> Self:
        """What is refused before it reaches a route: an unknown address, a request that is none."""
        return cls(status, word, status * 100, word, text)


class ErrorShape(Protocol):
    """How problems are written, and how /openapi.json describes them."""

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of such a body."""
        ...

    def status(self, problem: Problem) -> int:
        """The HTTP status of the answer."""
        ...

    def headers(self, problem: Problem) -> dict[str, str]:
        """Headers that its clients know besides."""
        ...

    def body(self, problem: Problem) -> bytes:
        """The body of the answer."""
        ...

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        ...


class JsonErrors:
    """A JSON object, each of whose fields holds something of the problem."""

    content_type = "application/json"

    def __init__(self, **fields: Callable[[Problem], str | int]) -> None:
        """``fields``: what each holds of a problem, in their order. All but ``message`` are closed sets."""
        self._fields = fields

    def status(self, problem: Problem) -> int:
        """The problem's own."""
        return problem.status

    def headers(self, problem: Problem) -> dict[str, str]:  # noqa: ARG002 - another shape has some
        """None."""
        return {}

    def body(self, problem: Problem) -> bytes:
        """The body of the answer."""
        return orjson.dumps(self._object(problem))

    def schema(self, problems: Sequence[Problem]) -> Json:
        """The JSON Schema of the bodies of these problems, with an example of each."""
        return {
            "type": "object",
            "required": list(self._fields),
            "properties": {
                name: {"type": "string"} if name == "message" else {"enum": [of(each) for each in problems]}
                for name, of in self._fields.items()
            },
            "examples": [self._object(problem) for problem in problems],
        }

    def _object(self, problem: Problem) -> Json:
        return {name: of(problem) for name, of in self._fields.items()}


CODE_AND_MESSAGE = JsonErrors(code=attrgetter("code"), message=attrgetter("text"))
