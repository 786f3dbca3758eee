"""Entries as a worker would append them, and a strict reader of LiteAgent frames."""

from __future__ import annotations

import re
from typing import Any

import orjson

from turnstream.shared.session.entry import PARKED, Entry

SESSION = "s-1"
TASK = "t-1"
EPOCH = 1700000000000
CREATED = 1700000000123
CREATE_TIME = "2023-11-15T06:13:20.123+0800"
COMPLETIONS = {
    "usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": 3},
    "id": "chatcmpl-1",
    "model": "gpt",
}

# Read as the clients do: the id line is optional, `event` stands directly before `data`.
FRAME = re.compile(rb"(?:id:(\d+-\d+)\n)?event:(\w+)\ndata:([^\n]*)\n\n")


def entry(
    kind: str,
    event: dict[str, Any],
    *,
    extra: dict[str, Any] | None = None,
    path: str = "",
    seq: int = 9,
    numbered: bool = True,
) -> Entry:
    """An entry that holds the event."""
    body = ({"sequence_number": seq} if numbered else {}) | event
    beside = orjson.dumps(extra) if extra else b""
    return Entry(seq, TASK, path, kind, CREATED, orjson.dumps(body), beside)


def message(
    kind: str,
    content: list[dict[str, Any]] | None = None,
    *,
    status: str = "completed",
    role: str = "assistant",
    **more: Any,
) -> Entry:
    """A message event of that type."""
    event = {"object": "message", "status": status, "id": "msg_1", "type": kind, "role": role}
    return entry(kind, event | ({"content": content} if content is not None else {}), **more)


def tool(kind: str, data: dict[str, Any], **more: Any) -> Entry:
    """A completed message of a tool with its one data part."""
    return message(kind, [{"type": "data", "data": data, "status": "completed"}], **more)


def parked(*, seq: int = 9, **fields: Any) -> Entry:
    """What lua/park.lua writes."""
    event = {"object": "turnstream.parked", "park": 1, "calls": ["call_1"], "until": CREATED}
    return entry(PARKED, event | fields, seq=seq, numbered=False)


def part(kind: str = "message", **fields: Any) -> Entry:
    """A content event of a message of type ``kind``; completed unless it is a delta."""
    more = {key: fields.pop(key) for key in ("path", "extra") if key in fields}
    delta = fields.get("delta", False)
    status = "in_progress" if delta else "completed"
    event = {"object": "content", "status": status, "delta": delta, "msg_id": "msg_1", "index": 0}
    return entry(kind, event | fields, **more)


def response(status: str, *, kind: str = "response", **fields: Any) -> Entry:
    """A response event."""
    return entry(kind, {"object": "response", "status": status, "id": "response_1"} | fields)


def read(frames: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The frames' names and data, after checks that hold for all: nothing between them, one id, last."""
    found = list(FRAME.finditer(frames))
    assert b"".join(match[0] for match in found) == frames
    assert all(match[1] is None for match in found[:-1])
    if found:
        assert found[-1][1] is not None
    return [(match[2].decode(), orjson.loads(match[3])) for match in found]


def envelope(role: str, to: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    """The data of a message frame of the session's own agent."""
    return {
        "sessionId": SESSION,
        "taskId": TASK,
        "role": role,
        "to": to,
        "type": kind,
        "content": content,
        "createTime": CREATE_TIME,
    } | more


def status(name: str, description: dict[str, Any] | None = None, role: str = "agent") -> dict[str, Any]:
    """The data of a taskStatus message."""
    content = {"status": name, "description": description or {}, "taskId": TASK}
    return envelope(role, "client", "taskStatus", content)
