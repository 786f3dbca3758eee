"""One operation of the HTTP interface as /openapi.json describes it, and the errors that operations share.

The rows are in each protocol's `protocol.py` and in `turnstream.api.openapi`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from turnstream.shared.errors import (
    BadCursor,
    BadRequest,
    BadToken,
    BodyTooLarge,
    BodyTooSlow,
    BrokerAway,
    CallEnded,
    CallExpired,
    CallWithdrawn,
    CursorGone,
    Forbidden,
    IdempotencyMismatch,
    InvalidBody,
    NoSession,
    NoTask,
    Overloaded,
    SessionBusy,
    ShuttingDown,
    TooMany,
    TurnstreamError,
    UnknownCall,
    UnknownKey,
)
from turnstream.shared.names import FURTHER, IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from turnstream.api.streaming.dialect import Dialect

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer of server-sent events: how it is framed, and the model of each event's data by its name.

    ``last`` is what stands in place of an event at the end, if anything does.
    """

    dialects: tuple[Dialect, ...]
    frame: str
    events: Mapping[str, Any]
    last: str = ""

    @property
    def media_type(self) -> str:
        """What its dialects have in common: their content type, without parameters."""
        return self.dialects[0].content_type.partition(";")[0]


@dataclass(frozen=True, slots=True)
class Text:
    """A body that is plain text of some media type, and an example of it."""

    media_type: str
    example: str


ResponseContent: TypeAlias = Any
"""What a 200 holds: a type that pydantic can describe, a `Stream` or a `Text`."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table: what can be asked with some methods of one path.

    Attributes:
        name: the operation's id; further methods add their own name to it.
        parameters: names in `PARAMETERS`.
        answers: what each status that is no error holds.
        errors: what it raises, apart from our own bugs.
        body: the model that reads the body, or a `Text`.
        examples: JSON bodies by name.
        instead: errors with a response model of their own, by error.
        key: whether an API key is needed.
    """

    methods: tuple[str, ...]
    path: str
    name: str
    summary: str
    answers: Mapping[int, tuple[ResponseContent, ...]]
    errors: frozenset[type[TurnstreamError]] = frozenset()
    parameters: tuple[str, ...] = ()
    body: type[BaseModel] | Text | None = None
    examples: Mapping[str, Json] = field(default_factory=dict)
    instead: Mapping[type[TurnstreamError], type[BaseModel]] = field(default_factory=dict)
    key: bool = True


ID = f"^{IDENTIFIER.pattern}$"
SEGMENT_ID = f"^{IDENTIFIER.pattern}{FURTHER}$"


def parameter(place: str, name: str, text: str, *, required: bool = False, **schema: Any) -> Json:
    """A parameter as OpenAPI describes it."""
    whole = {"name": name, "in": place, "description": text, "schema": {"type": "string"} | schema}
    return whole | ({"required": True} if required else {})


# What operations raise: with a key; of a session; following it; answering a call; reading a body; taking a turn.
KEY_ERRORS: frozenset[type[TurnstreamError]] = frozenset({BadToken, UnknownKey, Forbidden, BrokerAway})
SESSION_ERRORS = KEY_ERRORS | {BadRequest, NoSession}
FOLLOW_ERRORS = SESSION_ERRORS | {NoTask, BadCursor, CursorGone, ShuttingDown, Overloaded, TooMany}
CALL_ERRORS = frozenset({UnknownCall, CallEnded, CallWithdrawn, CallExpired})
BODY_ERRORS = frozenset({InvalidBody, BodyTooLarge, BodyTooSlow})
TURN_ERRORS = FOLLOW_ERRORS | BODY_ERRORS | {SessionBusy, IdempotencyMismatch}
