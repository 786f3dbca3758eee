"""The events of OpenAI's streams, held against the types of its clients."""

from __future__ import annotations

from typing import Any

import orjson
from openai.types.responses import Response, ResponseStreamEvent
from openresponses_types import ResponseResource
from pydantic import TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ENDS = ("response.completed", "response.failed", "response.incomplete")
# What Open Responses has no type for.
_OPENAI_ONLY = ("mcp_call", "mcp_list_tools", "mcp_approval_request")


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream, which ends as such streams do."""
    *frames, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b""), raw[-300:]
    return read(frames)


def read(frames: list[bytes]) -> list[dict[str, Any]]:
    """The events of frames, without heartbeats."""
    events = []
    for frame in frames:
        if frame.startswith(b":"):
            continue
        name, data = frame.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


def strictly(document: dict[str, Any]) -> None:
    """See to it that a response has all that the two types require, as they require it."""
    Response.model_validate(document, strict=True)
    known = [item for item in document["output"] if item["type"] not in _OPENAI_ONLY]
    ResponseResource.model_validate({**document, "output": known})


def check_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Check a response's events from the first to the last; the response at its end."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert [event["type"] for event in events if event["type"] in _ENDS] == [events[-1]["type"]]
    added: dict[int, Any] = {}
    done: dict[int, Any] = {}
    text: dict[tuple[int, int], str] = {}
    for event in events:
        _EVENTS.validate_python(event)
        if "response" in event:
            strictly(event["response"])
            assert event["response"]["id"] == events[0]["response"]["id"]
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(added)
                added[event["output_index"]] = event["item"]
            case "response.output_item.done":
                assert event["output_index"] not in done
                done[event["output_index"]] = event["item"]
                assert event["item"]["id"] == added[event["output_index"]]["id"]
            case "response.output_text.delta":
                place = event["output_index"], event["content_index"]
                text[place] = text.get(place, "") + event["delta"]
            case "response.output_text.done":
                assert text[event["output_index"], event["content_index"]] == event["text"]
    assert done.keys() == added.keys()
    last: dict[str, Any] = events[-1]["response"]
    assert last["output"] == [done[index] for index in sorted(done)]
    return last
