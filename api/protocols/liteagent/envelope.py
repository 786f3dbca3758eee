"""What a LiteAgent client is told: one message of its protocol, before it is put into an envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import orjson
from pydantic import ValidationError

from turnstream.api.protocols.liteagent.schemas import Completions

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

# A parsed JSON object: an event, its data or an entry's extra.
Json: TypeAlias = dict[str, Any]


class Said(NamedTuple):
    """One message.

    Attributes:
        role: who speaks; one of the protocol's closed set, as are ``to`` and ``type``.
        to: who is meant.
        type: what ``content`` is.
        content: a string, object or list, by ``type``.
        completions: usage, id and model of the model's answer that this message ends.
        event: the SSE event that carries it.
    """

    role: str
    to: str
    type: str
    content: object
    completions: Json | None = None
    event: bytes = b"message"


def speaker(entry: Entry, role: str) -> str:
    """The role that speaks in this entry: a sub-agent speaks as itself, never as assistant or agent."""
    return "subagent" if entry.path else role


def task_status(entry: Entry, status: str, description: Json) -> Said:
    """Tell the client where the task is. ``taskId`` stands in the content too: clients look there."""
    content = {"status": status, "description": description, "taskId": entry.task}
    return Said(speaker(entry, "agent"), "client", "taskStatus", content)


def extra_of(entry: Entry) -> Json:
    """What the entry holds beside its event."""
    if not entry.extra:
        return {}
    extra: Json = orjson.loads(entry.extra)
    return extra


def completions_of(extra: Json) -> Json | None:
    """The completions, when they are whole: strict clients fail on one that lacks a field."""
    completions = extra.get("completions")
    if not completions:
        return None
    try:
        return Completions.model_validate(completions, strict=True, extra="ignore").model_dump()
    except ValidationError:
        return None


def content_of(event: Json) -> list[Json]:
    """The parts of a message event."""
    return event.get("content") or []
