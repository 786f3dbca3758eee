"""The fold: events back into the messages they came from."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnstream.shared.protocol import (
    DataContent,
    Event,
    Fold,
    Message,
    MessageBuilder,
    ResponseBuilder,
    TextContent,
    canonical,
    incomplete_events,
)

TEXT = st.text(max_size=6)
DATA = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT, st.lists(st.integers(), max_size=2))
    | st.dictionaries(st.sampled_from("xy"), TEXT | st.integers(-9, 9), max_size=2),
    max_size=3,
)
PART = st.one_of(
    st.tuples(st.just("text"), st.lists(TEXT, max_size=5), st.booleans()),
    st.tuples(st.just("data"), st.lists(DATA, min_size=1, max_size=4), st.booleans()),
    st.tuples(st.sampled_from(["image", "refusal", "video", "audio", "add"]), TEXT, st.booleans()),
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["message", "reasoning"]), st.lists(PART, max_size=3), st.booleans()),
    max_size=3,
)


def feed(fold: Fold, event: Event, form: int) -> None:
    """Feed an event in one of the forms a fold takes."""
    fold.feed([event, canonical(event), canonical(event).decode(), json.loads(canonical(event))][form % 4])


class Script:
    """Plays a random script on a builder and checks the fold after every event."""

    def __init__(self, numbered: bool) -> None:
        self.fold = Fold()
        self.count = 0
        self.responses = ResponseBuilder(session_id="s", numbered=numbered, on_event=self.heard)

    def heard(self, event: Event) -> None:
        """Feed what the builder makes."""
        self.count += 1
        feed(self.fold, event, self.count)

    def part(self, message: MessageBuilder, kind: str, filling: Any, finish: bool) -> None:
        """Say one part; one that is not to be finished ends its message instead."""
        if kind == "add":
            message.add_content(filling)
        else:
            part = message.create_content_builder(kind)
            if kind == "text":
                for token in filling:
                    if self.responses.numbered:
                        part.add_text_delta(token)
                    else:
                        self.fold.feed(b"%b%b}" % part.text_delta_json(token))
            elif kind == "data":
                part.set_data(filling[0])
                for delta in filling[1:]:
                    part.add_data_delta(delta)
            else:
                setter = {"image": "set_image_url"}.get(kind, f"set_{kind}")
                getattr(part, setter)(filling)
            self.check(message)
            if finish:
                part.complete()
            else:
                message.incomplete()
        self.check(message)

    def check(self, message: MessageBuilder) -> None:
        """The fold has the message as the builder has it."""
        if message.status != "new":
            assert canonical(self.fold.messages[message.message_id]) == canonical(message.message)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.booleans(), st.sampled_from(["completed", "canceled", "failed"]))
def test_fold_is_the_builders_output(messages: list[Any], numbered: bool, end: str) -> None:
    """Whatever is built, in whatever form it is fed: the fold has what the builder has, after each step."""
    script = Script(numbered)
    responses = script.responses
    last: MessageBuilder | None = None
    for message_type, parts, whole in messages:
        message = last = responses.create_message_builder(message_type=message_type)
        message.in_progress()
        for kind, filling, finish in parts:
            if message.open:
                script.part(message, kind, filling, finish)
        if message.open and (whole or end == "completed"):
            message.complete()
    if responses.status == "new":
        responses.created()
        responses.in_progress()
    if end == "failed":
        responses.failed("boom", "It broke.")
    else:
        getattr(responses, end)()

    assert last is None or not last.open
    folded = script.fold
    assert [canonical(message) for message in folded.messages.values()] == [
        canonical(message) for message in responses.output
    ]
    assert folded.response is not None
    assert canonical(folded.response) == canonical(responses.response)
    assert folded.open_messages == []


def test_open_message_said_so_far() -> None:
    """In the middle of a text the fold has the message, open, with what it said."""
    fold = Fold()
    responses = ResponseBuilder(numbered=False, on_event=fold.feed)
    message = responses.create_message_builder(message_id="m")
    message.add_content("One. ")
    part = message.create_content_builder()
    fold.feed(b"%b%b}" % part.text_delta_json("Tw"))
    fold.feed(b"%b%b}" % part.text_delta_json("o."))
    assert fold.text_so_far("m") == "One. Two."
    assert [open_message.id for open_message in fold.open_messages] == ["m"]
    assert fold.text_so_far("unknown") == ""


def test_incomplete_events_end_an_open_message() -> None:
    """One event ends it: status incomplete, whole content, the open part marked as what it is."""
    fold = Fold()
    responses = ResponseBuilder(numbered=False, on_event=fold.feed)
    message = responses.create_message_builder(message_id="m")
    message.add_content("One. ")
    fold.feed(b"%b%b}" % message.create_content_builder().text_delta_json("Tw"))

    [body] = incomplete_events(fold.open_messages[0])

    event = json.loads(body)
    assert (event["object"], event["id"], event["status"]) == ("message", "m", "incomplete")
    assert [(part["text"], part["status"], part["delta"]) for part in event["content"]] == [
        ("One. ", "completed", False),
        ("Tw", "incomplete", False),
    ]
    assert body == canonical(message.incomplete())
    fold.feed(body)
    assert fold.open_messages == []
    assert incomplete_events(fold.messages["m"]) == []


def test_incomplete_of_a_message_that_said_nothing() -> None:
    """A message that had only begun ends with empty content."""
    [body] = incomplete_events(Message(id="m", role="assistant").in_progress())
    assert json.loads(body)["content"] == []


def test_joining_in_the_middle() -> None:
    """Events of a message whose beginning was missed open it; the terminal response sets all right."""
    whole = Message(id="m1", role="assistant", content=[TextContent(text="Hello")]).completed()
    fold = Fold()
    fold.feed(TextContent(text="lo", delta=True, index=0, msg_id="m1").in_progress())
    assert fold.text_so_far("m1") == "lo"
    fold.feed(
        {"object": "response", "id": "r", "status": "completed", "output": [json.loads(canonical(whole))]}
    )
    assert fold.text_so_far("m1") == "Hello"
    assert fold.messages["m1"].role == "assistant"


def test_output_decides_the_order() -> None:
    """Messages stand as the response lists them; what it does not list came before."""
    fold = Fold()
    fold.feed({"object": "message", "id": "m2", "status": "in_progress"})
    fold.feed({"object": "message", "id": "user", "role": "user", "status": "completed", "content": ["hi"]})
    fold.feed({"object": "response", "status": "completed", "output": [{"id": "m1"}, {"id": "m2"}]})
    assert list(fold.messages) == ["user", "m1", "m2"]


def test_delta_without_index_goes_to_the_open_part() -> None:
    """Without an index a piece continues the part that is open, or opens the next."""
    fold = Fold()
    fold.feed({"object": "message", "id": "m", "status": "in_progress"})
    piece = {"object": "content", "type": "text", "delta": True, "status": "in_progress", "msg_id": "m"}
    fold.feed({**piece, "text": "a"})
    fold.feed({**piece, "text": "b"})
    fold.feed({**piece, "text": "ab", "delta": False, "index": 0, "status": "completed"})
    fold.feed({**piece, "text": "c"})
    content = fold.messages["m"].content or []
    assert [(part.index, getattr(part, "text", None)) for part in content] == [(0, "ab"), (1, "c")]


def test_unknown_objects_are_passed_over() -> None:
    """What is neither response, message nor content leaves no trace; what is no object is refused."""
    fold = Fold()
    fold.feed(b'{"object":"ping"}')
    fold.feed(b'{"object":"content","type":"text","text":"whose?"}')
    assert fold.messages == {}
    assert fold.response is None
    with pytest.raises(ValueError, match="JSON object"):
        fold.feed(b"[]")


def test_what_is_read_is_a_copy() -> None:
    """Changing a message that was read does not reach the fold."""
    fold = Fold()
    fold.feed(DataContent(data={"a": [1]}, index=0, msg_id="m"))
    part = (fold.messages["m"].content or [])[0]
    assert isinstance(part, DataContent)
    assert part.data is not None
    part.data["a"].append(2)
    again = (fold.messages["m"].content or [])[0]
    assert isinstance(again, DataContent)
    assert again.data == {"a": [1]}


def test_a_long_text_takes_linear_time() -> None:
    """A hundred thousand pieces fold in seconds at most: they are joined once, not one by one."""
    part = ResponseBuilder(numbered=False).create_message_builder(message_id="m").create_content_builder()
    fold = Fold()
    start = time.process_time()
    for _ in range(100_000):
        fold.feed(b"%b%b}" % part.text_delta_json("0123456789"))
    assert len(fold.text_so_far("m")) == 1_000_000
    assert time.process_time() - start < 10
