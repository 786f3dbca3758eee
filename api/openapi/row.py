"""One row of the table of what can be asked of a front end: see `turnstream.api.openapi.table`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from turnstream.shared.names import IDENTIFIER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from turnstream.api.streaming.dialect import Dialect
    from turnstream.shared.errors import TurnstreamError

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer of server-sent events: how it is framed, and the model of each event's data by its name."""

    dialects: tuple[Dialect, ...]
    frame: str
    events: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is plain text of some media type, and an example of it."""

    media_type: str
    example: str


Answer: TypeAlias = Any
"""What a 200 holds: a type that pydantic can describe, a `Stream` or a `Text`."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table: what can be asked with some methods of one path.

    Attributes:
        name: the operation's id; further methods add their own name to it.
        parameters: names in `PARAMETERS`.
        answers: what each status that is no error holds.
        errors: what it raises, apart from our own bugs.
        body: the model that reads the body.
        examples: bodies by name.
        instead: errors that are told otherwise than as code and message.
        key: whether an API key is needed.
    """

    methods: tuple[str, ...]
    path: str
    name: str
    summary: str
    answers: Mapping[int, tuple[Answer, ...]]
    errors: frozenset[type[TurnstreamError]] = frozenset()
    parameters: tuple[str, ...] = ()
    body: type[BaseModel] | None = None
    examples: Mapping[str, Json] = field(default_factory=dict)
    instead: Mapping[type[TurnstreamError], type[BaseModel]] = field(default_factory=dict)
    key: bool = True


ID = f"^{IDENTIFIER.pattern}$"


def parameter(place: str, name: str, text: str, *, required: bool = False, **schema: Any) -> Json:
    """A parameter as OpenAPI describes it."""
    whole = {"name": name, "in": place, "description": text, "schema": {"type": "string"} | schema}
    return whole | ({"required": True} if required else {})
