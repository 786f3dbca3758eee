"""Canonical JSON and the Java edition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnstream.shared.protocol import (
    AgentResponse,
    Content,
    DataContent,
    Event,
    FileContent,
    ImageContent,
    Message,
    MessageType,
    RefusalContent,
    TextContent,
    VideoContent,
    canonical,
    java,
)


def test_canonical_leaves_out_nulls_and_the_number() -> None:
    """The log's form is compact, has no nulls of ours and no number."""
    event = TextContent(text="é\n", index=0, delta=True, msg_id="m", sequence_number=4).in_progress()
    assert (
        canonical(event)
        == (
            '{"object":"content","status":"in_progress","type":"text","index":0,"delta":true,'
            '"msg_id":"m","text":"é\\n"}'
        ).encode()
    )


def test_canonical_keeps_nulls_of_users() -> None:
    """A null inside data means something to the one who wrote it."""
    assert json.loads(canonical(DataContent(data={"a": None, "b": [None]})))["data"] == {
        "a": None,
        "b": [None],
    }


def test_canonical_survives_half_an_emoji() -> None:
    """What UTF-8 cannot carry is replaced instead of losing the event."""
    event = DataContent(data={"a": "x\ud83d"}, sequence_number=1)
    out = json.loads(canonical(event))
    assert out["data"] == {"a": "x\ufffd"}
    assert "sequence_number" not in out
    assert "error" not in out


def test_java_content() -> None:
    """A part's own keys become camelCase, numbered or not."""
    body = canonical(ImageContent(image_url="u", msg_id="m", index=0))
    numbered = b'{"sequence_number":7,' + body[1:]
    out = json.loads(java(numbered))
    assert out["sequenceNumber"] == 7
    assert out["msgId"] == "m"
    assert out["imageUrl"] == "u"
    assert not any("_" in key for key in out)


def test_java_response_in_depth() -> None:
    """Times in ms, types in upper case, at every level; users' data untouched."""
    data = {"call_id": "c", "arguments": '{"msg_id": 1}', "created_at": 1, "object": "message", "type": "x"}
    message = Message(
        type="mcp_call", content=[DataContent(data=data, msg_id="m")], metadata={"session_id": 1}
    )
    response = AgentResponse(
        created_at=2, completed_at=3, session_id="s", output=[message], usage={"input_tokens": 1}
    )
    out = json.loads(java(canonical(response)))
    assert (out["createdAt"], out["completedAt"], out["sessionId"]) == (2000, 3000, "s")
    assert out["usage"] == {"input_tokens": 1}
    assert out["output"][0]["type"] == "MCP_TOOL_CALL"
    assert out["output"][0]["metadata"] == {"session_id": 1}
    assert out["output"][0]["content"][0]["msgId"] == "m"
    assert out["output"][0]["content"][0]["data"] == data
    assert out["output"][0]["content"][0]["type"] == "data"


def test_java_and_back() -> None:
    """Our own models read every Java event of a message back as it was."""
    for kind in MessageType:
        message = Message(type=kind, role="assistant", content=[TextContent(text="x", msg_id="m", index=0)])
        assert canonical(Message.model_validate_json(java(canonical(message)))) == canonical(message)
    assert json.loads(java(canonical(Message(type="telepathy"))))["type"] == "TELEPATHY"


def test_java_keeps_big_numbers() -> None:
    """An integer beyond 64 bits is not rounded on the way."""
    part = DataContent(data={"n": 2**80})
    assert json.loads(java(canonical(part)))["data"]["n"] == 2**80


def test_java_unknown_part() -> None:
    """A part of an unknown type passes with its own fields as they are."""
    part = Content.model_validate({"type": "sketch", "msg_id": "m", "ink_color": 1})
    out = json.loads(java(canonical(part)))
    assert out["msgId"] == "m"
    assert out["ink_color"] == 1


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (Message(type="reasoning", status="incomplete"), {"type": "MESSAGE", "status": "canceled"}),
        (Message(type="mcp_call_output"), {"type": "MCP_TOOL_CALL"}),
        (Message(type="mcp_call"), {"type": "MCP_TOOL_CALL"}),
        (AgentResponse(status="queued"), {"status": "created"}),
        (FileContent(file_url="https://x/a.pdf"), {"type": "text", "text": "https://x/a.pdf"}),
        (FileContent(filename="a.pdf", file_data="aGk="), {"type": "text", "text": "a.pdf"}),
        (VideoContent(video_url="https://x/a.mp4"), {"type": "text", "text": "https://x/a.mp4"}),
        (RefusalContent(refusal="No."), {"type": "text", "text": "No."}),
        (
            AgentResponse(output=[Message(type="reasoning", content=[RefusalContent(refusal="No.")])]),
            {"type": "MESSAGE"},
        ),
    ],
)
def test_the_published_java_edition_reads_its_own_words_only(event: Event, told: dict[str, Any]) -> None:
    """What it has no word for is told in its nearest one; nothing else of the event changes."""
    out = json.loads(java(canonical(event), strict=True))
    if isinstance(event, AgentResponse) and event.output:
        out = out["output"][0]
        assert (out["content"][0]["type"], out["content"][0]["text"]) == ("text", "No.")
    assert told.items() <= out.items()
    assert not out.keys() & {"fileUrl", "fileData", "filename", "videoUrl", "refusal"}
