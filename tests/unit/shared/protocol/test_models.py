"""Models: the vocabularies, both spellings, unknown fields, the methods of events and messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstream.shared.protocol import (
    AgentResponse,
    AudioContent,
    ComponentCall,
    Content,
    ContentType,
    DataContent,
    Error,
    FileContent,
    FunctionTool,
    ImageContent,
    Message,
    MessageType,
    ReflectionContent,
    RefusalContent,
    Role,
    RunStatus,
    TextContent,
    VideoContent,
    canonical,
)


def test_vocabulary_is_made_of_strings() -> None:
    """Members compare, print and serialise as the wire's words."""
    words: list[str] = [RunStatus.InProgress, MessageType.MCP_TOOL_CALL]
    assert words == ["in_progress", "mcp_call"]
    assert f"{Role.TOOL}" == "tool"
    assert json.dumps(ContentType.VIDEO) == '"video"'


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        ({"type": "text", "text": "a"}, TextContent),
        ({"type": "image", "image_url": "u"}, ImageContent),
        ({"type": "data", "data": {"a": None}}, DataContent),
        ({"type": "audio", "data": "AA", "format": "wav"}, AudioContent),
        ({"type": "file", "file_id": "f", "filename": "n"}, FileContent),
        ({"type": "refusal", "refusal": "no"}, RefusalContent),
        ({"type": "video", "video_url": "u"}, VideoContent),
        ({"type": "hologram", "beam": {"x": [None]}}, Content),
    ],
)
def test_every_content_type_round_trips(raw: dict[str, Any], model: type[Content]) -> None:
    """Each type has its model; an unknown type survives as a plain part with its fields."""
    message = Message.model_validate({"content": [raw]})
    assert message.content is not None
    part = message.content[0]
    assert type(part) is model
    again = json.loads(canonical(message))["content"][0]
    assert raw.items() <= again.items()
    assert canonical(Message.model_validate_json(canonical(message))) == canonical(message)


NAMES = st.from_regex(r"x_[a-z]{1,8}", fullmatch=True)
VALUES = st.one_of(st.integers(), st.text(), st.lists(st.integers()), st.dictionaries(st.text(), st.none()))


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3))
def test_unknown_fields_survive(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    """Fields this edition does not know come out as they went in, at every level."""
    raw = {
        **outer,
        "object": "response",
        "output": [{"role": "assistant", **inner, "content": [{**inner, "type": "text"}]}],
    }
    out = json.loads(canonical(AgentResponse.model_validate(raw)))
    assert outer.items() <= out.items()
    assert inner.items() <= out["output"][0].items()
    assert inner.items() <= out["output"][0]["content"][0].items()


def test_camel_case_is_read() -> None:
    """The Java edition's spellings are read on messages and parts, and written in snake_case."""
    message = Message.model_validate(
        {
            "sequenceNumber": 3,
            "type": "MCP_TOOL_CALL",
            "content": [{"type": "image", "imageUrl": "u", "msgId": "m", "sequenceNumber": 4}],
        }
    )
    assert message.sequence_number == 3
    assert message.type == "mcp_call"
    out = json.loads(canonical(message))
    assert out["content"][0]["image_url"] == "u"
    assert out["content"][0]["msg_id"] == "m"
    assert "imageUrl" not in out["content"][0]


def test_a_string_is_a_text_part() -> None:
    """A bare string stands for one text part, as the content and within it."""
    assert Message.model_validate({"content": "hi"}).get_text_content() == "hi"
    mixed = Message.model_validate({"content": [{"type": "image", "image_url": "u"}, "hi"]})
    assert mixed.get_text_content() == "hi"


def test_null_is_not_given() -> None:
    """A client that writes null into every field it leaves out is understood."""
    message = Message.model_validate(
        {"id": None, "type": None, "role": "user", "content": None, "later": None}
    )
    assert message.id.startswith("msg_")
    assert message.type == "message"
    assert message.model_extra == {"later": None}


def test_unknown_message_type_is_kept() -> None:
    """A type of a later edition is no error."""
    assert Message(type="telepathy").type == "telepathy"


def test_status_methods_return_the_event() -> None:
    """Each status method sets the status and returns the event itself."""
    message = Message()
    assert message.status == "created"
    for method, status in [
        (message.in_progress, "in_progress"),
        (message.completed, "completed"),
        (message.rejected, "rejected"),
        (message.canceled, "canceled"),
        (message.created, "created"),
        (message.failed, "failed"),
    ]:
        assert method() is message
        assert message.status == status
    assert message.failed(Error(code="1", message="m")).error is not None


def test_a_numeric_error_code_becomes_text() -> None:
    """Providers send numbers as codes."""
    assert Error.model_validate({"code": 429, "message": "slow down"}).code == "429"


def test_first_delta_without_index_opens_a_part() -> None:
    """A delta without index opens a part and learns its place; the next one continues it."""
    message = Message()
    first = message.add_delta_content(TextContent(delta=True, text="a"))
    assert (first.index, first.msg_id, first.status) == (0, message.id, "in_progress")
    message.add_delta_content(TextContent(delta=True, text="b", index=first.index))
    assert message.get_text_content() == "ab"


def test_stored_parts_are_the_messages_own() -> None:
    """What is added is copied: a change to the event later does not reach the message."""
    message = Message()
    event = DataContent(delta=True, data={"list": [1]}, index=0)
    message.add_delta_content(event)
    assert event.data is not None
    event.data["list"].append(2)
    part = (message.content or [])[0]
    assert isinstance(part, DataContent)
    assert part.data == {"list": [1]}


def test_data_deltas_merge() -> None:
    """Data deltas merge recursively into the part."""
    message = Message()
    message.add_delta_content(DataContent(delta=True, index=0, data={"a": {"s": "x"}, "n": 1}))
    message.add_delta_content(DataContent(delta=True, index=0, data={"a": {"s": "y"}, "n": 2}))
    part = (message.content or [])[0]
    assert isinstance(part, DataContent)
    assert part.data == {"a": {"s": "xy"}, "n": 3}


def test_deltas_of_an_unknown_type_merge() -> None:
    """A part of an unknown type grows by its own fields."""
    message = Message()
    for ink in ("a", "b"):
        piece = Content.model_validate({"type": "sketch", "delta": True, "index": 0, "ink": ink})
        message.add_delta_content(piece)
    assert json.loads(canonical(message))["content"][0]["ink"] == "ab"


def test_a_delta_must_fit() -> None:
    """A gap in the index, and a delta of another type, are refused by name."""
    message = Message()
    with pytest.raises(ValueError, match="index 1"):
        message.add_delta_content(TextContent(delta=True, text="a", index=1))
    message.add_delta_content(TextContent(delta=True, text="a"))
    with pytest.raises(ValueError, match="image delta cannot continue a text part"):
        message.add_delta_content(ImageContent(delta=True, image_url="a", index=0))
    with pytest.raises(ValueError, match="index 5"):
        message.add_content(TextContent(text="a", index=5))


def test_content_completed() -> None:
    """Completing a part returns it whole; completing one that is not there returns None."""
    message = Message()
    assert message.content_completed(0) is None
    message.add_delta_content(TextContent(delta=True, text="a"))
    event = message.content_completed(0)
    assert event is not None
    assert (event.status, event.delta, event.index, event.msg_id) == ("completed", False, 0, message.id)
    assert message.content_completed(1) is None


def test_reading_content_of_an_empty_message() -> None:
    """No content means no text and no images."""
    assert Message().get_text_content() is None
    assert Message().get_image_content() == []


def test_component_data_is_camel_case() -> None:
    """Data that LiteAgent clients read keeps their spelling, in both directions."""
    call = ComponentCall(dispatch_id="d", agent_id="a", name="n")
    assert call.model_dump() == {"dispatchId": "d", "agentId": "a", "name": "n", "content": []}
    assert ComponentCall.model_validate(call.model_dump()) == call
    reflection = ReflectionContent.model_validate(
        {"isPass": True, "messageScore": {"reflectScoreList": [{"score": 9}]}, "count": 1}
    )
    assert reflection.model_dump()["messageScore"]["reflectScoreList"][0]["score"] == 9
    assert reflection.pass_score == 8


def test_other_schemas_of_parameters_are_kept() -> None:
    """Parameters that are not an object schema stay a plain mapping; a missing name is an error."""
    tool = FunctionTool.model_validate({"name": "f", "description": "d", "parameters": {"$ref": "#/x"}})
    assert tool.parameters == {"$ref": "#/x"}
    with pytest.raises(ValidationError):
        FunctionTool.model_validate({"description": "d", "parameters": {}})
