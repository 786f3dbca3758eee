"""The examples of the Agent API protocol's specification, as written there (imports aside)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnstream.shared.protocol import (
    AgentRequest,
    AgentResponse,
    BuilderError,
    DataContent,
    Event,
    Fold,
    FunctionCall,
    ImageContent,
    Message,
    ResponseBuilder,
    TextContent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_response_builder_snippet() -> None:
    """The response builder's snippet runs: statuses first, then a message builder."""
    response_builder = ResponseBuilder(session_id="session_123")

    response_builder.created()
    response_builder.in_progress()
    response_builder.completed()

    message_builder = response_builder.create_message_builder(role="assistant", message_type="message")
    assert message_builder.message.role == "assistant"


def test_message_builder_snippet() -> None:
    """The message builder's snippet runs: the unused content builder takes no place."""
    message_builder = ResponseBuilder().create_message_builder()
    content = TextContent(text="Hello")

    content_builder = message_builder.create_content_builder(content_type="text", index=0)
    message_builder.add_content(content)
    message_builder.complete()

    assert content_builder.status == "new"
    assert message_builder.message.get_text_content() == "Hello"


def test_content_builder_snippet() -> None:
    """The content builder's snippet runs: every set_ replaces the part."""
    content_builder = ResponseBuilder().create_message_builder().create_content_builder()

    content_builder.add_text_delta("Hello")
    content_builder.add_text_delta(" World")
    content_builder.set_text("Hello World")
    content_builder.set_image_url("https://example.com/image.jpg")
    content_builder.set_data({"key": "value"})
    whole = content_builder.complete()

    assert isinstance(whole, DataContent)
    assert whole.data == {"key": "value"}


def test_complete_usage_example() -> None:
    """The complete example yields the standard sequence, numbered from 0 without holes."""

    def generate_streaming_response(text_tokens: list[str]) -> Iterator[Event]:
        response_builder = ResponseBuilder(session_id="session_123")
        yield from response_builder.generate_streaming_response(
            text_tokens=["Hello", " ", "World", "!"], role="assistant"
        )

    events = list(generate_streaming_response(["Hello", " ", "World", "!"]))

    assert [(event.object, event.status) for event in events] == [
        ("response", "created"),
        ("response", "in_progress"),
        ("message", "created"),
        ("message", "in_progress"),
        *[("content", "in_progress")] * 4,
        ("content", "completed"),
        ("message", "completed"),
        ("response", "completed"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    end = events[-1]
    assert isinstance(end, AgentResponse)
    assert end.session_id == "session_123"
    assert end.completed_at is not None
    assert end.output is not None
    assert [message.get_text_content() for message in end.output] == ["Hello World!"]


def test_multi_content_message_building() -> None:
    """A message of text and image is built part by part."""
    response_builder = ResponseBuilder()

    message_builder = response_builder.create_message_builder()

    text_builder = message_builder.create_content_builder("text", index=0)
    text_builder.set_text("This is an image:")
    text_builder.complete()

    image_builder = message_builder.create_content_builder("image", index=1)
    image_builder.set_image_url("https://example.com/image.jpg")
    image_builder.complete()

    message = message_builder.complete()

    assert message.get_text_content() == "This is an image:"
    assert message.get_image_content() == ["https://example.com/image.jpg"]


def test_data_content_building() -> None:
    """Data is set, then grows by deltas."""
    message_builder = ResponseBuilder().create_message_builder()
    data_builder = message_builder.create_content_builder("data", index=0)

    data_builder.set_data(
        {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Beijing"}'}
    )
    data_builder.add_data_delta({"status": "processing"})
    data_builder.add_data_delta({"result": "sunny"})
    whole = data_builder.complete()

    assert isinstance(whole, DataContent)
    assert whole.data == {
        "type": "function_call",
        "name": "get_weather",
        "arguments": '{"city": "Beijing"}',
        "status": "processing",
        "result": "sunny",
    }


def test_example_user_query() -> None:
    """The example request is valid."""
    request = AgentRequest.model_validate(
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Describe this image"}],
                    "type": "message",
                }
            ],
            "stream": True,
            "model": "gpt-4-vision",
        }
    )
    assert request.input[0].get_text_content() == "Describe this image"


def test_example_response_stream_folds() -> None:
    """The example stream, whose last message event has no content, folds into its text."""
    fold = Fold()
    for line in [
        '{"id":"response_123","object":"response","status":"created"}',
        '{"id":"msg_abc","object":"message","type":"assistant","status":"created"}',
        '{"status":"in_progress","type":"text","index":0,"delta":true,"text":"This","object":"content"}',
        '{"status":"in_progress","type":"text","index":0,"delta":true,"text":" image shows...","object":"content","msg_id":"msg_abc"}',
        '{"status":"completed","type":"text","index":0,"delta":false,"text":"This image shows...","object":"content","msg_id":"msg_abc"}',
        '{"id":"msg_abc","status":"completed","object":"message"}',
        '{"id":"response_123","status":"completed","object":"response"}',
    ]:
        fold.feed(line)
    assert fold.text_so_far("msg_abc") == "This image shows..."
    assert fold.open_messages == []
    assert fold.response is not None
    assert fold.response.status == "completed"


def test_java_streaming_example() -> None:
    """The Java edition's example works with the models alone: explicit index from the first delta on."""
    response = AgentResponse(session_id="session_123").created()
    message = Message(type="MESSAGE", role="assistant").created()
    response.add_new_message(message)
    for token in ["Hello", " World"]:
        delta = TextContent(delta=True, text=token, index=0, msg_id=message.id).in_progress()
        message.add_delta_content(delta)
    assert message.content_completed(0) is not None
    message.completed()

    assert response.output is not None
    assert response.output[0].type == "message"
    assert response.output[0].get_text_content() == "Hello World"


def test_java_multi_content_and_function_call() -> None:
    """The Java edition's whole parts are added by index; a call becomes a data part."""
    message = Message(type="MESSAGE", role="assistant")
    message.add_content(TextContent(text="An image:", index=0).completed())
    message.add_content(ImageContent(image_url="https://example.com/image.jpg", index=1).completed())
    assert message.get_image_content() == ["https://example.com/image.jpg"]

    call = FunctionCall(call_id="call_123", name="get_weather", arguments='{"city": "Beijing"}')
    message = Message(type="FUNCTION_CALL", role="assistant")
    part = message.add_content(DataContent.model_validate({"data": call, "index": 0}))
    assert message.type == "function_call"
    assert isinstance(part, DataContent)
    assert part.data == call.model_dump()


def test_all_snippets_as_one_script() -> None:
    """In the order of the text, in one namespace: messages are added though `completed` was called before."""
    response_builder = ResponseBuilder(session_id="session_123")
    response_builder.created()
    response_builder.in_progress()
    response_builder.completed()
    message_builder = response_builder.create_message_builder(role="assistant", message_type="message")

    content = TextContent(text="Hello")
    content_builder = message_builder.create_content_builder(content_type="text", index=0)
    message_builder.add_content(content)
    message_builder.complete()

    message_builder = response_builder.create_message_builder()
    content_builder = message_builder.create_content_builder()
    content_builder.add_text_delta("Hello")
    content_builder.add_delta(" World")
    content_builder.set_text("Hello World")
    content_builder.set_image_url("https://example.com/image.jpg")
    content_builder.set_data({"key": "value"})
    content_builder.complete()
    message_builder.complete()

    message_builder = response_builder.create_message_builder()
    text_builder = message_builder.create_content_builder("text", index=0)
    text_builder.set_text("This is an image:")
    text_builder.complete()
    image_builder = message_builder.create_content_builder("image", index=1)
    image_builder.set_image_url("https://example.com/image.jpg")
    image_builder.complete()
    message_builder.complete()

    message_builder = response_builder.create_message_builder()
    data_builder = message_builder.create_content_builder("data", index=0)
    data_builder.set_data({"type": "function_call", "name": "get_weather"})
    data_builder.add_data_delta({"status": "processing"})
    data_builder.complete()
    message_builder.complete()

    response = response_builder.response
    assert response.status == "completed"
    assert [len(message.content or []) for message in response.output or []] == [1, 1, 2, 1]


def test_nothing_follows_an_end_that_was_sent() -> None:
    """A builder with a listener has sent it."""
    events: list[Event] = []
    response_builder = ResponseBuilder(on_event=events.append)
    response_builder.created()
    response_builder.in_progress()
    response_builder.completed()
    with pytest.raises(BuilderError, match="completed"):
        response_builder.create_message_builder().created()
