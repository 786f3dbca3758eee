"""The encoders by themselves: what was cut from the log is made up for, and nothing is told twice."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.openai_events import check_events, events_of
from turnstream.api.protocols.openai.chat_stream import ChatStream
from turnstream.api.protocols.openai.response_stream import ResponseStream
from turnstream.api.streaming.dialect import DONE
from turnstream.api.turns.ids import ResponseId
from turnstream.shared.session.entry import END, PARKED, RESPONSE, Entry

NAME = ResponseId("s1", "t1", 0)
USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


def entry(kind: str, path: str = "", **event: Any) -> Entry:
    """An entry of the task; ``sequence_number`` None: it is no event."""
    fields = {"sequence_number": 0, **event}
    if kind == PARKED:
        del fields["sequence_number"]
    return Entry(1, "t1", path, kind, 1_700_000_000_000, orjson.dumps(fields))


def status(word: str) -> Entry:
    """A response's event."""
    return entry(RESPONSE, object="response", status=word)


def delta(text: str, message: str = "m1") -> Entry:
    """A piece of an answer."""
    return entry(
        "message",
        object="content",
        status="in_progress",
        type="text",
        index=0,
        delta=True,
        msg_id=message,
        text=text,
    )


def closed(text: str, message: str = "m1", word: str = "completed") -> Entry:
    """An answer, whole."""
    content = [{"object": "content", "type": "text", "index": 0, "text": text}]
    return entry("message", object="message", id=message, status=word, type="message", content=content)


def ended(word: str = "completed", **more: Any) -> Entry:
    """The turn's end."""
    return entry(END, object="response", status=word, completed_at=1_700_000_001, usage=USAGE, **more)


def responded(*entries: Entry, name: ResponseId = NAME) -> bytes:
    """The stream of a response that these entries make."""
    stream = ResponseStream(name, {}, "agent")
    return b"".join(stream.feed(1, each) for each in entries)


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.data())
def test_text_is_told_once_whatever_pieces_are_left(pieces: list[str], data: st.DataObject) -> None:
    """The pieces that came, then the rest, when the message closes."""
    came = data.draw(st.integers(0, len(pieces)))
    text = "".join(pieces)
    entries = [status("queued"), status("in_progress"), *map(delta, pieces[:came]), closed(text), ended()]
    events = events_of(responded(*entries))
    last = check_events(events)
    assert last["output"][0]["content"][0]["text"] == text
    told = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert told == text
    chat = ChatStream(NAME, "agent")
    chunks = b"".join(chat.feed(1, each) for each in entries)
    assert chat.outcome()[1]["choices"][0]["message"]["content"] == text
    assert chunks.endswith(DONE)


@settings(deadline=None)
@given(st.integers(-1, 40))
def test_what_was_seen_is_not_written_again(seen: int) -> None:
    """The rest of the same bytes."""
    entries = [status("queued"), status("in_progress"), delta("a"), delta("b"), closed("ab"), ended()]
    frames = [frame + b"\n\n" for frame in responded(*entries).split(b"\n\n")[:-1]]
    stream = ResponseStream(NAME, {}, "agent", seen=seen)
    rest = b"".join(stream.feed(1, each) for each in entries)
    assert rest == b"".join([*frames[:-1][seen + 1 :], DONE])


def test_a_broken_answer_is_told_and_said_anew() -> None:
    """Two items; the one that its worker did not finish is incomplete."""
    entries = [status("queued"), status("in_progress"), delta("a"), closed("a", word="incomplete")]
    last = check_events(events_of(responded(*entries, delta("ab", "m2"), closed("ab", "m2"), ended())))
    assert [item["status"] for item in last["output"]] == ["incomplete", "completed"]


def test_a_broken_answer_is_no_part_of_a_whole_completion() -> None:
    """It is written anew; chunks cannot be taken back."""
    chat = ChatStream(NAME, "agent")
    entries = [status("queued"), status("in_progress"), delta("a"), closed("a", word="incomplete")]
    for each in (*entries, delta("ab", "m2"), closed("ab", "m2"), ended()):
        chat.feed(1, each)
    assert chat.outcome()[1]["choices"][0]["message"]["content"] == "ab"
    assert chat.text == "a\n\nab"


def test_what_is_open_is_closed_at_the_end() -> None:
    """Whatever the end is."""
    for word, kind in (("failed", "response.failed"), ("canceled", "response.incomplete")):
        events = events_of(
            responded(
                status("queued"), status("in_progress"), delta("a"), ended(word, error={"message": "x"})
            )
        )
        last = check_events(events)
        assert events[-1]["type"] == kind
        assert last["output"][0]["status"] == "incomplete"
        assert last["output"][0]["content"][0]["text"] == "a"


def test_a_further_response_costs_what_came_behind_its_park() -> None:
    """And says what it goes on from."""
    park = entry(PARKED, object="turnstream.parked", park=1, calls=["c"], until=1, usage=USAGE)
    whole = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    end = entry(END, object="response", status="completed", completed_at=1, usage=whole)
    last = check_events(events_of(responded(park, closed("a"), end, name=NAME._replace(segment=1))))
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (7, 1)
    assert last["previous_response_id"] == "resp_s1~t1~0"


def test_subagents_words_are_not_told() -> None:
    """They have a path."""
    inner = Entry(**{**{name: getattr(delta("inner"), name) for name in Entry.__slots__}, "path": "sub"})
    last = check_events(events_of(responded(status("queued"), inner, closed("a", "m2"), ended())))
    assert [item["id"] for item in last["output"]] == ["m2"]


# A day, in microseconds, as epochs count.
DAY = 86_400_000_000
BEGUN = 1_700_000_000_000_000


def numbers_of(*epochs: tuple[int, int]) -> set[int]:
    """The numbers of what was told in the last of some epochs, of which each has so many pieces of text."""
    stream = ResponseStream(NAME, {}, "agent", submitted=BEGUN // 1000, epoch=epochs[0][0])
    told = b""
    for epoch, pieces in epochs:
        told = b"".join(stream.feed(1, replace(delta("a"), epoch=epoch)) for _ in range(pieces))
    return {int(number) for number in re.findall(rb'"sequence_number":(\d+)', told)}


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param((BEGUN, 5), id="soon"),
        pytest.param((BEGUN, 1200), id="after much"),
        pytest.param((BEGUN - 3 * DAY, 5), id="in an old session"),
    ],
)
@pytest.mark.parametrize(
    ("one", "other"),
    [(400_000, 700_000), (20_000_000, 21_000_000), (1_048_576 + 0x0123, 1_048_576 + 0x4567)],
)
def test_two_servers_give_no_number_to_two_events(begun: tuple[int, int], one: int, other: int) -> None:
    """Both go on behind the same log, one after the other; clients in .NET have 31 bits for a number."""
    both = [numbers_of(begun, (BEGUN + after, 60)) for after in (one, other)]
    assert not both[0] & both[1]
    assert max(both[1]) < 2**31


def test_two_servers_whose_clocks_are_behind_give_no_number_to_two_events() -> None:
    """Their epochs began before the turn was taken."""
    both = [numbers_of((BEGUN - 3_000_000, 5), (BEGUN - before, 60)) for before in (1_000_000, 500_000)]
    assert not both[0] & both[1]
    assert min(both[0] | both[1]) > 10_000
