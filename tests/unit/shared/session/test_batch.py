"""A batch: neighbouring deltas of one part are one event, and no text is lost, doubled or moved."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from turnstream.shared.protocol import ContentBuilder, ResponseBuilder
from turnstream.shared.session.batch import JOINED_BYTES, Batch

# Who speaks (two messages with a part each, or an event of another kind), and what.
STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", "status"]), st.text(max_size=30)), max_size=40)


def parts() -> dict[str, ContentBuilder]:
    """A text part in each of two messages."""
    responses = ResponseBuilder(numbered=False, status="in_progress")
    return {name: responses.create_message_builder(message_id=name).create_content_builder() for name in "ab"}


def events(batch: Batch) -> list[dict[str, Any]]:
    """The events of the entries, which are five words each."""
    count, *words = batch.arguments()
    found = [orjson.loads(b"{" + bytes(body)) for body in words[3::5]]  # type: ignore[arg-type]
    assert len(found) == count
    return found


@given(STEPS)
def test_neighbours_are_joined_and_nothing_else(steps: list[tuple[str, str]]) -> None:
    """One event for each run of deltas of one part, with the text of all, in its place among the others."""
    batch, speakers = Batch(), parts()
    for name, text in steps:
        if name == "status":
            batch.status(orjson.dumps({"object": "response", "n": text}))
        else:
            batch.delta("message", *speakers[name].text_delta_json(text))
    expected: list[tuple[str, str]] = []
    for name, run in groupby(steps, key=lambda step: step[0]):
        texts = [text for _, text in run]
        expected += [(name, text) for text in texts] if name == "status" else [(name, "".join(texts))]
    assert [
        (event["msg_id"], event["text"]) if event["object"] == "content" else ("status", event["n"])
        for event in events(batch)
    ] == expected
    assert events(batch) == events(batch)


@given(st.lists(st.integers(0, 2 * JOINED_BYTES), max_size=8))
@example([0] * 7 + [JOINED_BYTES])
def test_an_event_stays_small(lengths: list[int]) -> None:
    """Joined are at most some kilobytes; a longer delta stays by itself."""
    batch, part = Batch(), parts()["a"]
    for length in lengths:
        batch.delta("message", *part.text_delta_json("x" * length))
    told = [len(event["text"]) for event in events(batch)]
    assert sum(told) == sum(lengths)
    assert all(length <= JOINED_BYTES or length in lengths for length in told)
    assert all(first + second > JOINED_BYTES for first, second in pairwise(told))


def test_a_checkpoint_stands_once() -> None:
    """What is kept again before it was written takes the place of what was kept before."""
    batch = Batch()
    for value in (b"[1]", b"[1,2]"):
        batch.keep("list", value)
        batch.keep("other", b"1")
    assert batch.weight == len(b"[1,2]") + len(b"1")
    # No groups, entries or calls; nothing is dropped or withdrawn.
    assert batch.all_arguments() == [0, 0, 0, 2, "list", b"[1,2]", "other", b"1", 0, 0]
