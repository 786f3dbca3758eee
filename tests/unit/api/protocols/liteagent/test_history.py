"""A session's history, and the replay of messages whose content events are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.unit.api.protocols.turn import (
    COMPLETIONS,
    EPOCH,
    SESSION,
    envelope,
    message,
    parked,
    part,
    read,
    response,
    tool,
)
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, LiteAgent, history

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

BOTH = pytest.mark.parametrize("dialect", [LITEAGENT_STREAM, LITEAGENT_WHOLE], ids=["stream", "whole"])
CALL = {"call_id": "c", "name": "add", "arguments": "{}"}
GROUP = {"ids": ["c"], "first": True, "last": True}
TEXT = {"type": "text", "text": "Hello", "status": "completed"}
IMAGE = {"type": "image", "image_url": "u", "status": "completed"}


def told(*entries: Entry) -> list[dict[str, Any]]:
    """The history's envelopes, after the check that both names hold the content."""
    envelopes: list[dict[str, Any]] = orjson.loads(history(SESSION, iter(entries)))
    for one in envelopes:
        assert one.pop("message") == one["content"]
    return envelopes


def test_empty_history_is_an_empty_array() -> None:
    """The body is a bare array."""
    assert history(SESSION, []) == b"[]"


def test_conversation_is_told_in_order() -> None:
    """Question, thought, call, result and answer are envelopes; the task's states are none."""
    parts = [{"type": "text", "message": "Q"}]
    called = {"id": "c", "name": "add", "arguments": {}, "parameters": {}}
    assert told(
        message("message", [TEXT], role="user", numbered=False, extra={"parts": parts}),
        message("reasoning", [TEXT]),
        tool("function_call", CALL, extra={"group": GROUP}),
        tool("function_call_output", {"call_id": "c", "output": "1"}, extra={"group": GROUP}),
        message("message", [TEXT], extra={"completions": COMPLETIONS}),
        response("completed", kind="end"),
    ) == [
        envelope("user", "agent", "contentList", parts),
        envelope("assistant", "agent", "reasoningContent", "Hello"),
        envelope("assistant", "agent", "toolCalls", [called]),
        envelope("tool", "agent", "toolReturn", {"id": "c", "result": {"result": 1}}),
        envelope("assistant", "agent", "text", "Hello", completions=COMPLETIONS),
    ]


@pytest.mark.parametrize(
    "one",
    [
        response("queued"),
        response("failed", kind="end", error={"code": "x", "message": "y"}),
        tool("mcp_approval_request", {"id": "c", "name": "add", "arguments": "{}"}),
        part(type="text", text="Hello"),
        message("message", status="in_progress"),
    ],
)
def test_what_is_no_conversation_is_left_out(one: Entry) -> None:
    """States, requests to the client and pieces are not history."""
    assert told(one) == []


def test_other_parts_are_told_from_the_message() -> None:
    """An image of an answer is in the history though its content event is not."""
    assert told(message("message", [TEXT, IMAGE])) == [
        envelope("assistant", "agent", "imageUrl", "u"),
        envelope("assistant", "agent", "text", "Hello"),
    ]


@BOTH
def test_replay_tells_the_whole_answer(dialect: LiteAgent) -> None:
    """A client whose chunks are gone gets the text and the parts from the closed message."""
    frames = read(dialect.replay(SESSION, EPOCH, message("message", [TEXT, IMAGE])))
    assert frames == [
        ("message", envelope("assistant", "agent", "imageUrl", "u")),
        ("message", envelope("assistant", "agent", "text", "Hello")),
    ]


@BOTH
@pytest.mark.parametrize(
    "one",
    [
        response("completed", kind="end"),
        tool("function_call", CALL, extra={"group": GROUP}),
        message("message", [TEXT], role="user", numbered=False),
    ],
)
def test_replay_of_the_rest_is_as_live(dialect: LiteAgent, one: Entry) -> None:
    """What never depended on content events is told the same way."""
    assert dialect.replay(SESSION, EPOCH, one) == dialect.frames(SESSION, EPOCH, one) != b""


@BOTH
def test_parking_is_not_told(dialect: LiteAgent) -> None:
    """That a turn was parked is seen by its calls; the entry is neither in a stream nor in the history."""
    assert dialect.frames(SESSION, EPOCH, parked()) == dialect.replay(SESSION, EPOCH, parked()) == b""
    assert told(parked()) == []
