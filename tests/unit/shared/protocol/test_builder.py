"""Builders: order, implied steps, numbering, continuation, the hot path, wrong calls."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.shared.protocol import (
    AudioContent,
    BuilderError,
    Content,
    ContentBuilder,
    Event,
    FileContent,
    FunctionCall,
    Message,
    RefusalContent,
    ResponseBuilder,
    TextContent,
    VideoContent,
    canonical,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def running(**options: Any) -> ResponseBuilder:
    """A response in progress that leaves numbers to the log."""
    return ResponseBuilder(status="in_progress", numbered=False, **options)


def text_part(**options: Any) -> ContentBuilder:
    """A text part of such a response, to which nothing was said."""
    return running(**options).create_message_builder().create_content_builder("text")


def test_implied_steps_reach_the_listener_in_order() -> None:
    """Whoever listens gets the implied events too, numbered without holes."""
    heard: list[Event] = []
    responses = ResponseBuilder(on_event=heard.append)
    message = responses.create_message_builder()
    message.create_content_builder().add_text_delta("a")
    assert [(event.object, event.status, event.sequence_number) for event in heard] == [
        ("response", "created", 0),
        ("response", "in_progress", 1),
        ("message", "created", 2),
        ("message", "in_progress", 3),
        ("content", "in_progress", 4),
    ]


def test_implied_steps_take_no_number_when_nobody_listens() -> None:
    """Returned events are numbered densely even when steps were left out."""
    responses = ResponseBuilder()
    message = responses.create_message_builder()
    part = message.create_content_builder()
    events: list[Event] = [
        part.add_text_delta("a"),
        part.complete(),
        message.complete(),
        responses.completed(),
    ]
    assert [event.sequence_number for event in events] == [0, 1, 2, 3]


def test_numbers_stay_out_of_output() -> None:
    """Only events have numbers; the messages in the output have none."""
    responses = ResponseBuilder(output=[{"id": "m0", "sequence_number": 9, "status": "completed"}])
    *_, end = responses.generate_streaming_response(["a"])
    assert "sequence_number" not in json.dumps(json.loads(canonical(end)))
    assert end.sequence_number == 7


def test_queue_in_front() -> None:
    """A response may be queued first."""
    responses = ResponseBuilder()
    assert [responses.queued().status, responses.created().status] == ["queued", "created"]


def test_events_do_not_change_afterwards() -> None:
    """An event is a snapshot: neither later steps nor its receiver reach the builder's state or other events."""
    part = running().create_message_builder().create_content_builder("data")
    first = part.set_data({"list": [1]})
    part.add_data_delta({"list": [2]})
    assert canonical(first).count(b"[1]") == 1
    whole = part.complete()
    whole.completed().msg_id = "other"
    assert part.content.msg_id != "other"


def test_end_carries_whole_output_in_order_of_creation() -> None:
    """Messages stand in the order they were created, whoever ends first; earlier attempts' come first."""
    earlier = Message(id="m0", status="completed", content=[TextContent(text="before")])
    responses = running(session_id="s", output=[earlier])
    first = responses.create_message_builder(message_id="m1")
    second = responses.create_message_builder(message_id="m2", message_type="REASONING")
    never = responses.create_message_builder(message_id="m3")
    first.created()
    second.created()
    second.add_content("thought")
    second.complete()
    first.add_content("answer")
    first.incomplete()
    end = responses.completed(usage={"input_tokens": 1})
    assert never.status == "new"
    assert end.output is not None
    assert [(m.id, m.type, m.status, m.get_text_content()) for m in end.output] == [
        ("m0", "message", "completed", "before"),
        ("m1", "message", "incomplete", "answer"),
        ("m2", "reasoning", "completed", "thought"),
    ]
    assert end.usage == {"input_tokens": 1}
    assert end.completed_at is not None
    assert end.session_id == "s"


def test_failed_and_canceled_close_what_is_open() -> None:
    """A response that ends early ends its open messages as incomplete, with what they said."""
    ends: list[tuple[str, Callable[[ResponseBuilder], Any]]] = [
        ("failed", lambda responses: responses.failed("boom", "It broke.", usage={"input_tokens": 2})),
        ("canceled", lambda responses: responses.canceled()),
    ]
    for status, end_it in ends:
        heard: list[Event] = []
        responses = running(on_event=heard.append)
        message = responses.create_message_builder()
        part = message.create_content_builder()
        part.add_text_delta("so far")
        end = end_it(responses)
        assert end.status == status
        assert end.output[0].status == "incomplete"
        assert end.output[0].content[0].status == "incomplete"
        assert end.output[0].get_text_content() == "so far"
        assert [(event.object, event.status) for event in heard[-2:]] == [
            ("message", "incomplete"),
            ("response", status),
        ]
        with pytest.raises(BuilderError, match="incomplete"):
            part.add_text_delta("more")


def test_failed_says_why() -> None:
    """The error's code and text are in the terminal event."""
    end = ResponseBuilder().failed("boom", "It broke.")
    assert end.error is not None
    assert (end.error.code, end.error.message) == ("boom", "It broke.")


def test_rejected() -> None:
    """A turn that is not taken up ends at once, with a reason when there is one."""
    end = ResponseBuilder().rejected("busy", "Wait.")
    assert end.status == "rejected"
    assert end.error is not None
    assert ResponseBuilder().rejected().error is None


def test_an_empty_message_has_empty_content() -> None:
    """A message that ends without a part says so with an empty list."""
    assert running().create_message_builder().complete().content == []


def test_every_part_can_be_set() -> None:
    """Audio, file, refusal and video are set like text and images."""
    message = running().create_message_builder()
    made = []
    fills: list[tuple[str, Callable[[ContentBuilder], Content]]] = [
        ("audio", lambda part: part.set_audio("AA", format="mp3")),
        ("file", lambda part: part.set_file(file_url="u", filename="n")),
        ("refusal", lambda part: part.set_refusal("no")),
        ("video", lambda part: part.set_video("v")),
    ]
    for kind, fill in fills:
        part = message.create_content_builder(kind)
        event = fill(part)
        assert (event.status, event.delta) == ("in_progress", False)
        made.append(part.complete())
    audio, file, refusal, video = made
    assert isinstance(audio, AudioContent)
    assert (audio.data, audio.format, audio.index) == ("AA", "mp3", 0)
    assert isinstance(file, FileContent)
    assert (file.file_url, file.filename, file.file_id, file.index) == ("u", "n", None, 1)
    assert isinstance(refusal, RefusalContent)
    assert refusal.refusal == "no"
    assert isinstance(video, VideoContent)
    assert video.video_url == "v"


def test_data_takes_a_model() -> None:
    """A tool call is set as its model; nulls of the model are left out."""
    part = running().create_message_builder(message_type="plugin_call").create_content_builder("data")
    event = part.set_data(FunctionCall(call_id="c", name="f"))
    assert json.loads(canonical(event))["data"] == {"call_id": "c", "name": "f"}


def test_add_content_takes_any_form() -> None:
    """A model, a mapping of an unknown type and a string are whole parts, indexed in order."""
    message = running().create_message_builder()
    parts = [
        message.add_content(TextContent(text="a", index=7)),
        message.add_content({"type": "sketch", "ink": {"x": None}}),
        message.add_content("b"),
    ]
    assert [(part.index, part.status, part.delta, part.type) for part in parts] == [
        (0, "completed", False, "text"),
        (1, "completed", False, "sketch"),
        (2, "completed", False, "text"),
    ]
    assert json.loads(canonical(parts[1]))["ink"] == {"x": None}


@given(st.lists(st.text(alphabet=st.characters(), max_size=12), max_size=8))
def test_hot_path_equals_the_model(tokens: list[str]) -> None:
    """The bytes of the hot path are the canonical form of the event, and the text adds up the same."""
    fast, slow = (running().create_message_builder(message_id="m").create_content_builder() for _ in range(2))
    for token in tokens:
        assert b"%b%b}" % fast.text_delta_json(token) == canonical(slow.add_text_delta(token))
    assert canonical(fast.complete()) == canonical(slow.complete())


def test_hot_path_carries_half_an_emoji() -> None:
    """A lone surrogate is replaced, as on the model's path."""
    part = text_part()
    event = json.loads(b"%b%b}" % part.text_delta_json("x\ud83d"))
    assert event["text"] == "x\ufffd"
    assert json.loads(canonical(part.add_text_delta("\ud83d")))["text"] == "\ufffd"
    assert canonical(part.complete()).endswith('"text":"x\ufffd\ufffd"}'.encode())


def test_hot_path_follows_set_text() -> None:
    """Deltas continue the text that was set."""
    part = text_part()
    part.set_text("a")
    part.text_delta_json("b")
    assert getattr(part.complete(), "text", None) == "ab"


def test_an_invalid_value_leaves_the_part_untouched() -> None:
    """A value of the wrong type raises before anything opens."""
    message = running().create_message_builder()
    part = message.create_content_builder("image")
    with pytest.raises(ValueError, match="image_url"):
        part.set_image_url(7)  # type: ignore[arg-type]
    assert (part.status, message.status) == ("new", "new")


def test_current_models() -> None:
    """Message and response can be read at any time, open part included."""
    responses = running(session_id="s")
    message = responses.create_message_builder()
    part = message.create_content_builder()
    part.add_text_delta("a")
    part.text_delta_json("b")
    assert message.message.get_text_content() == "ab"
    assert message.message.status == "in_progress"
    assert [m.get_text_content() for m in responses.response.output or []] == ["ab"]
    assert responses.response.status == "in_progress"


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: ResponseBuilder().in_progress(), "in_progress() was called on a response that is new"),
    (lambda: ResponseBuilder().completed(), "completed() was called on a response that is new"),
    (lambda: running().created(), "created() was called on a response that is in_progress"),
    (lambda: running().queued(), "queued() was called on a response that is in_progress"),
    (lambda: running().rejected(), "rejected() was called on a response that is in_progress"),
    (lambda: ended().canceled(), "canceled() was called on a response that is completed"),
    (lambda: ended().failed("a", "b"), "failed() was called on a response that is completed"),
    (
        lambda: ended().create_message_builder().created(),
        "created() was called on a message of a response that is completed",
    ),
    (
        lambda: ended().create_message_builder().add_content("a"),
        "add_content() was called on a message of a response that is completed",
    ),
    (lambda: twice("created"), "created() was called on a message that is created"),
    (lambda: twice("in_progress"), "in_progress() was called on a message that is in_progress"),
    (lambda: twice("complete"), "complete() was called on a message that is completed"),
    (lambda: twice("incomplete"), "incomplete() was called on a message that is incomplete"),
    (lambda: open_message().completed(), "is in_progress: call its complete() or incomplete() first"),
    (
        lambda: text_part().add_data_delta({}),
        "add_data_delta() was called on a part of type text",
    ),
    (
        lambda: running().create_message_builder().create_content_builder("data").add_text_delta("a"),
        "add_text_delta() was called on a part of type data",
    ),
    (
        lambda: running().create_message_builder().create_content_builder("image").complete(),
        "complete() was called on a part of type image to which nothing was set",
    ),
    (
        lambda: running().create_message_builder().create_content_builder("hologram"),
        "create_content_builder() knows no 'hologram'",
    ),
    (
        lambda: running().create_message_builder().create_content_builder("text", index=1).set_text("a"),
        "set_text() would open part 1, but the next part of the message is 0",
    ),
    (
        lambda: ResponseBuilder().create_message_builder().create_content_builder().text_delta_json("a"),
        "text_delta_json() was called on a builder that numbers its events",
    ),
]


def ended() -> ResponseBuilder:
    """A response that is completed."""
    responses = ResponseBuilder(status="in_progress", on_event=lambda _: None)
    responses.completed()
    return responses


def twice(call: str) -> None:
    """Take one step of a message two times."""
    message = running().create_message_builder()
    getattr(message, call)()
    getattr(message, call)()


def open_message() -> ResponseBuilder:
    """A response one of whose messages is in progress."""
    responses = running()
    responses.create_message_builder().in_progress()
    return responses


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_wrong_order_is_named(call: Callable[[], object], text: str) -> None:
    """A call at the wrong time names itself and the state it met."""
    with pytest.raises(BuilderError, match=re.escape(text)):
        call()


def test_parts_are_sequential() -> None:
    """While a part is open nothing else of its message can begin, and the message cannot complete."""
    message = running().create_message_builder()
    part = message.create_content_builder()
    part.text_delta_json("a")
    with pytest.raises(BuilderError, match="part 0 is still open"):
        message.create_content_builder().set_text("b")
    with pytest.raises(BuilderError, match="part 0 is still open"):
        message.add_content("b")
    with pytest.raises(BuilderError, match="part 0 is still open"):
        message.complete()
    part.complete()
    for call in (part.complete, lambda: part.set_text("c"), lambda: part.text_delta_json("c")):
        with pytest.raises(BuilderError, match="part that is completed"):
            call()
    message.add_content("b")
    message.complete()
