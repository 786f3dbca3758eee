"""A gap in a stream: whose beginning a client did not see, that message it gets whole, at its end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from turnstream.api.streaming.gaps import GapFilter, Visibility
from turnstream.shared.session.entry import END, RESPONSE, Entry

CREATED = {"object": "message", "id": "m", "status": "created"}
IN_PROGRESS = {"object": "message", "id": "m", "status": "in_progress"}
PART = {"object": "content", "msg_id": "m", "status": "in_progress"}
COMPLETED = {"object": "message", "id": "m", "status": "completed"}
UNCHANGED, WHOLE, HIDDEN = Visibility.UNCHANGED, Visibility.WHOLE, Visibility.HIDDEN


def visibilities(*events: dict[str, Any]) -> list[Visibility]:
    """How the events after one gap are told."""
    gap_filter = GapFilter()
    return [gap_filter.visibility(Entry(1, "t", "", "message", 1, orjson.dumps(event))) for event in events]


@pytest.mark.parametrize("seen", range(4))
def test_a_message_is_whole_or_begun(seen: int) -> None:
    """Wherever the gap ends within a message, its client gets all of its events or the last one, whole."""
    rest = [CREATED, IN_PROGRESS, PART, COMPLETED][seen:]
    if seen == 0:
        assert visibilities(*rest) == [UNCHANGED] * 4
    else:
        assert visibilities(*rest) == [HIDDEN] * (3 - seen) + [WHOLE]


def test_messages_do_not_vouch_for_each_other() -> None:
    """That one message began after the gap says nothing of another that is written at the same time."""
    other = {**PART, "msg_id": "other"}
    whole = {**COMPLETED, "id": "other"}
    assert visibilities(CREATED, other, PART, whole, COMPLETED) == [
        UNCHANGED,
        HIDDEN,
        UNCHANGED,
        WHOLE,
        UNCHANGED,
    ]


def test_an_id_that_comes_again_begins_again() -> None:
    """A message that closed is forgotten: pieces under its id are not taken for its own."""
    assert visibilities(CREATED, COMPLETED, PART) == [UNCHANGED, UNCHANGED, HIDDEN]


@pytest.mark.parametrize("kind", [RESPONSE, END])
def test_a_response_has_no_beginning(kind: str) -> None:
    """Responses stand for themselves; they are not even parsed."""
    assert GapFilter().visibility(Entry(1, "t", "", kind, 1, b"not JSON")) is UNCHANGED
