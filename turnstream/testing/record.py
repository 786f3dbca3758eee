"""The record of a turn, as its session's log has it: which calls were made, and what they returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_core import from_json

from turnstream.shared.protocol import MessageType
from turnstream.shared.session.entry import PARKED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnstream.shared.session.entry import Entry

# A message that makes a call → what kind it is; and those that bring results.
_CALLS = {
    MessageType.PLUGIN_CALL: "tool",
    MessageType.FUNCTION_CALL: "client",
    MessageType.MCP_TOOL_CALL: "mcp",
    MessageType.MCP_APPROVAL_REQUEST: "approval",
    MessageType.COMPONENT_CALL: "agent",
}
_RESULTS = frozenset(
    {
        MessageType.PLUGIN_CALL_OUTPUT,
        MessageType.FUNCTION_CALL_OUTPUT,
        MessageType.MCP_TOOL_CALL_OUTPUT,
        MessageType.MCP_APPROVAL_RESPONSE,
        MessageType.COMPONENT_CALL_OUTPUT,
    }
)

# By what a part names its call.
_IDS = ("approval_request_id", "call_id", "dispatchId", "id")


@dataclass(slots=True)
class RecordedCall:
    """A call that an agent made.

    Attributes:
        name: of the tool, the client's function or the sub-agent.
        arguments: as the model wrote them.
        kind: ``tool``, ``client``, ``mcp``, ``agent`` (a sub-agent), or ``approval`` (consent to a tool was asked for).
        result: as the log has it; None while there is none.
        by: the sub-agents that made it, from the outside in, joined by ``/``; empty: the session's agent.
        id: ours.
    """

    name: str
    arguments: dict[str, Any]
    kind: str
    result: Any = None
    by: str = ""
    id: str = ""

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})"


@dataclass(frozen=True, slots=True)
class Record:
    """What stands in the log of a turn: its calls in order, and how often it was parked."""

    calls: list[RecordedCall]
    parks: int


def record_of(entries: Iterable[Entry]) -> Record:
    """Read a task's entries."""
    found: dict[str, RecordedCall] = {}
    parks = 0
    for entry in entries:
        parks += entry.kind == PARKED
        if entry.kind not in _CALLS and entry.kind not in _RESULTS:
            continue
        event = orjson.loads(entry.event)
        if event.get("object") != "message" or event.get("status") != "completed":
            continue
        for part in event.get("content") or ():
            data = part.get("data") or {}
            id_ = next((str(data[name]) for name in _IDS if data.get(name)), "")
            if entry.kind in _CALLS:
                kind = _CALLS[MessageType(entry.kind)]
                name = str(data.get("name", ""))
                found.setdefault(id_, RecordedCall(name, _arguments(data), kind, by=entry.path, id=id_))
            elif id_ in found:
                found[id_].result = (
                    _text(data) if "content" in data else data.get("output", data.get("approve"))
                )
    return Record(list(found.values()), parks)


def _text(data: dict[str, Any]) -> str:
    """What a sub-agent was asked, or answered."""
    return "".join(str(part.get("message", "")) for part in data["content"])


def _arguments(data: dict[str, Any]) -> dict[str, Any]:
    if "content" in data:
        return {"task": _text(data)}
    given = data.get("arguments")
    try:
        value = from_json(given) if isinstance(given, str) and given else (given or {})
    except ValueError:
        value = given
    return value if isinstance(value, dict) else {"value": value}
