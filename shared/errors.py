"""Every error that Turnstream shows to somebody, in one tree.

    TurnstreamError
    ├── Refused                     the request is at fault; sending it again unchanged does not help
    │   ├── BadRequest         400  bad_request
    │   ├── BadCursor          400  cursor_malformed
    │   ├── InvalidBody        422  invalid_body
    │   ├── BodyTooLarge       413  body_too_large
    │   ├── BodyTooSlow        408  request_timeout
    │   ├── BadToken           401  10001   no usable Authorization header
    │   ├── UnknownKey         401  10004   well formed, but not a key of ours
    │   ├── Forbidden          403  forbidden
    │   ├── NoSession          404  30002   unknown, foreign or expired: always the same answer
    │   ├── NoTask             404  task_not_found
    │   ├── UnknownCall        404  call_not_found
    │   ├── NoKey              404  key_not_found
    │   ├── NoModel            404  model_not_found
    │   ├── NoWorker           404  worker_not_found
    │   ├── NotRotatable       409  key_not_rotatable
    │   ├── CallEnded          409  call_ended
    │   ├── CallWithdrawn      410  call_withdrawn
    │   ├── CallExpired        410  call_expired
    │   ├── CursorGone         410  cursor_gone
    │   ├── SessionBusy        409  session_busy
    │   └── IdempotencyMismatch 422 idempotency_mismatch
    ├── Unavailable                 not the request's fault; sending it again later helps
    │   ├── BrokerAway         503  broker_away
    │   ├── ShuttingDown       503  shutting_down
    │   ├── Overloaded         503  overloaded
    │   └── TooMany            429  too_many
    └── ConfigurationError          a setting or an agents file is wrong; the process does not start
        └── AgentFieldError         one agent's field is wrong

Each class has the HTTP status, a stable ``code``, a stable ``number`` for clients that compare numbers, a public text and
whether a retry may help. How they are written is a matter of the wire protocol. The public text says what was wrong,
where, and what to do; it never holds a secret or a user's words.
"""

from __future__ import annotations

from typing import ClassVar


class TurnstreamError(Exception):
    """Base of all errors shown to a user or an operator."""

    status: ClassVar[int] = 500
    code: ClassVar[str | int] = "internal"
    number: ClassVar[int] = 50000
    reason: ClassVar[str] = ""
    text: ClassVar[str] = "Something went wrong on our side."
    retry_may_help: ClassVar[bool] = False

    def __init__(self, text: str | None = None) -> None:
        self.public_text = text or self.text
        super().__init__(self.public_text)

    @classmethod
    def word(cls) -> str:
        """The error's name in words."""
        return cls.reason or str(cls.code)


class Refused(TurnstreamError):  # noqa: N818 - HTTP speaks of refusals; not all are errors of ours
    """The request is at fault."""

    status = 400
    code: ClassVar[str | int] = "bad_request"
    number = 40000


class BadRequest(Refused):
    """A parameter is missing or has a value that cannot be."""

    text = "The request is not valid."


class BadCursor(Refused):
    """``Last-Event-ID`` or ``cursor`` is not one of ours."""

    code = "cursor_malformed"
    number = 40001
    text = "The cursor is malformed: send the id of the last event you received, as <epoch>-<seq>."


class InvalidBody(Refused):
    """The body is not JSON, or a field has the wrong type or value; the text names the field."""

    status = 422
    code = "invalid_body"
    number = 42200
    text = "The body is not valid."


class BodyTooLarge(Refused):
    """The body is larger than this route takes."""

    status = 413
    code = "body_too_large"
    number = 41300
    text = "The body is too large."


class BodyTooSlow(Refused):
    """The body did not arrive in time. A client may send the request again, on another connection."""

    status = 408
    code = "request_timeout"
    number = 40800
    text = "The request did not arrive in time."
    retry_may_help = True


class BadToken(Refused):
    """There is no Authorization header, or it is not ``Bearer sk-…``."""

    status = 401
    code = 10001
    number = 10001
    reason = "bad_token"
    text = "Send an Authorization header of the form: Bearer sk-<32 hexadecimal digits>."


class UnknownKey(Refused):
    """The key is well formed but unknown, revoked or expired."""

    status = 401
    code = 10004
    number = 10004
    reason = "unknown_key"
    text = "This API key is not known here."


class Forbidden(Refused):
    """The key is valid, but its scopes do not cover the route."""

    status = 403
    code = "forbidden"
    number = 40300
    text = "This API key may not do that."


class NoSession(Refused):
    """Unknown, foreign or expired session: one answer, so that nobody can probe for sessions."""

    status = 404
    code = 30002
    number = 30002
    reason = "session_not_found"
    text = "No such session: it is unknown or has expired. Start a new one."


class NoTask(Refused):
    """The session is known, the task is not."""

    status = 404
    code = "task_not_found"
    number = 40401
    text = "No such task in this session."


class UnknownCall(Refused):
    """A callback for a call that this session never made."""

    status = 404
    code = "call_not_found"
    number = 40402
    text = "No such call in this session: send the id of a function call as it was received."


class NoKey(Refused):
    """An operator named an API key that there is not."""

    status = 404
    code = "key_not_found"
    number = 40403
    text = "No such API key: give its id, as the list of keys tells it."


class NoModel(Refused):
    """An operator named a model that no agent has."""

    status = 404
    code = "model_not_found"
    number = 40404
    text = "No such model: give its name, as the list of models tells it."


class NoAgent(Refused):
    """An operator named an agent that there is not."""

    status = 404
    code = "agent_not_found"
    number = 40406
    text = "No such agent: give its name, as the list of agents tells it."


class NoWorker(Refused):
    """An operator named a worker that shows no sign of life."""

    status = 404
    code = "worker_not_found"
    number = 40405
    text = "No such worker: give its name, as the list of workers tells it."


class NotRotatable(Refused):
    """An operator wants to rotate an API key that was rotated before, or has expired; the text says which."""

    status = 409
    code = "key_not_rotatable"
    number = 40902
    text = "This API key cannot be rotated: create a new one."


class CallEnded(Refused):
    """A callback for a task that has ended by other means."""

    status = 409
    code = "call_ended"
    number = 40901
    text = "The task of this call has ended; the result was not used."


class CallWithdrawn(Refused):
    """A callback for a call that its asker took back: a sub-agent that failed."""

    status = 410
    code = "call_withdrawn"
    number = 41001
    text = "The agent does not wait for this call any more; the result was not used."


class CallExpired(Refused):
    """A callback after the call's deadline."""

    status = 410
    code = "call_expired"
    number = 41002
    text = "The deadline of this call has passed; the result was not used."


class CursorGone(Refused):
    """What stood at the cursor, or followed it, is no more: the session was cleared, its log lost its end, or it was cut."""

    status = 410
    code = "cursor_gone"
    number = 41000
    text = "The session was cleared since this cursor, or no longer has what followed it: follow it again without a cursor."
    # Where it is so without a cursor, too.
    turn = "What this turn said is no longer kept: the session was cleared since, or it is too long ago."


class SessionBusy(Refused):
    """The session's agent takes one turn at a time and is configured to reject more."""

    status = 409
    code = 409
    number = 409
    reason = "session_busy"
    text = "The session is busy with another turn: wait for its end, or stop it."


class IdempotencyMismatch(Refused):
    """An id of a turn, or an idempotency key, was used again for something else."""

    status = 422
    code = "idempotency_mismatch"
    number = 42201
    text = "This id, or Idempotency-Key, was used with a different body: use a new one for a new turn."


class Unavailable(TurnstreamError):  # noqa: N818 - named like the status
    """Nothing is wrong with the request; try again after ``retry_after`` seconds."""

    status = 503
    code = "unavailable"
    number = 50300
    text = "Not available at the moment."
    retry_may_help = True

    def __init__(self, text: str | None = None, *, retry_after: int = 2) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class BrokerAway(Unavailable):
    """The broker does not answer, or answers that it cannot write."""

    code = "broker_away"
    number = 50301
    text = (
        "The broker is away. Send the request again in a moment, with the same id or Idempotency-Key: "
        "it may have been accepted before the broker was lost."
    )


class ShuttingDown(Unavailable):
    """The front end is stopping; another one will answer."""

    code = "shutting_down"
    number = 50302
    text = "This front end is shutting down. Send the request again, with the same id or Idempotency-Key."


class Overloaded(Unavailable):
    """All of us together have as much to do as the operator allows."""

    code = "overloaded"
    number = 50303
    text = "Too many turns of all users wait for a worker. Try again in a moment."


class TooMany(Unavailable):
    """A cap was reached: followers, turns or requests."""

    status = 429
    code = "too_many"
    number = 42900
    text = "Too many at once for this key. Try again in a moment."


class ConfigurationError(TurnstreamError):
    """A setting or an agents file is wrong; the text names it, its value and what is allowed."""

    code = "configuration"
    number = 50001


class AgentFieldError(ConfigurationError):
    """A field of one agent is wrong; whoever knows the file adds its line."""

    def __init__(self, agent: str, field: str, problem: str) -> None:
        super().__init__(f"agent {agent!r}: {field}: {problem}")
        self.agent = agent
        self.field = field
        self.problem = problem
