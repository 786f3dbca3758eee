"""The events of AG-UI's runs, held against the specification's models, and against the rules of its clients for their order."""

from __future__ import annotations

from typing import Any

import orjson
from ag_ui.core.events import Event
from pydantic import BaseModel, TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(Event)

# Opener → its end, and the field that names what is open.
_OPENERS = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
    "REASONING_START": ("REASONING_END", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
    "SUBAGENT_STARTED": ("SUBAGENT_FINISHED", "subagentRunId"),
}
_ENDS = {end: (opener, field) for opener, (end, field) in _OPENERS.items()}
_ENDS["SUBAGENT_ERROR"] = ("SUBAGENT_STARTED", "subagentRunId")
_INNER = {
    "TEXT_MESSAGE_CONTENT": ("TEXT_MESSAGE_START", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("REASONING_MESSAGE_START", "messageId"),
    "TOOL_CALL_ARGS": ("TOOL_CALL_START", "toolCallId"),
}
# What no 0.0.x client knows.
_NEW_FIELDS = ("subagentRunId", "protocolVersion", "usage")


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream, without heartbeats."""
    *frames, rest = raw.split(b"\n\n")
    assert not rest, raw[-300:]
    return read(frames)


def read(frames: list[bytes]) -> list[dict[str, Any]]:
    """The events of frames."""
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames if not frame.startswith(b":")]


def check_run(events: list[dict[str, Any]], *, old: bool = False) -> dict[str, Any]:
    """Check the events of one run from the first to the last; the last.

    With ``old`` they are for a client before 1.0.
    """
    assert events[0]["type"] == "RUN_STARTED"
    last = events[-1]
    assert [each["type"] for each in events if each["type"] in ("RUN_FINISHED", "RUN_ERROR")] == [
        last["type"]
    ]
    opened: set[tuple[str, str]] = set()
    begun: set[str] = set()
    for event in events:
        _check_fields(event)
        if old:
            assert not event["type"].startswith("SUBAGENT"), event
            assert not any(field in event for field in _NEW_FIELDS), event
        kind = event["type"]
        if kind in _OPENERS:
            what = kind, event[_OPENERS[kind][1]]
            assert what not in opened, event
            opened.add(what)
            if kind == "SUBAGENT_STARTED":
                assert event["subagentRunId"] not in begun, event
                begun.add(event["subagentRunId"])
                assert event.get("parentSubagentRunId", event["subagentRunId"]) in begun, event
        elif kind in _ENDS:
            opener, field = _ENDS[kind]
            opened.remove((opener, event[field]))
        elif kind in _INNER:
            opener, field = _INNER[kind]
            assert (opener, event[field]) in opened, event
            assert event["delta"], event
    if last["type"] == "RUN_FINISHED":
        assert not opened, opened
        if old:
            assert last.get("outcome", {"type": "interrupt"})["type"] == "interrupt"
    return last


def _check_fields(event: dict[str, Any]) -> None:
    """See to it that an event is one of the specification's, and has nothing that this does not name."""
    model: BaseModel = _EVENTS.validate_python(event)
    assert orjson.loads(model.model_dump_json(by_alias=True, exclude_unset=True)) == event
    _check_extra(model)


def _check_extra(model: BaseModel) -> None:
    assert not model.model_extra, model
    for value in vars(model).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, BaseModel):
                _check_extra(each)


def text_of(events: list[dict[str, Any]]) -> str:
    """What the run says in answers, of whichever agent."""
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
