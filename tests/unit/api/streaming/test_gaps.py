"""A gap in a stream: whose beginning a client did not see, that message it gets whole, at its end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from turnstream.api.streaming.gaps import Telling, Torn
from turnstream.shared.session.entry import END, RESPONSE, Entry

CREATED = {"object": "message", "id": "m", "status": "created"}
IN_PROGRESS = {"object": "message", "id": "m", "status": "in_progress"}
PART = {"object": "content", "msg_id": "m", "status": "in_progress"}
COMPLETED = {"object": "message", "id": "m", "status": "completed"}
AS_IT_IS, WHOLE, NOT_AT_ALL = Telling.AS_IT_IS, Telling.WHOLE, Telling.NOT_AT_ALL


def tellings(*events: dict[str, Any]) -> list[Telling]:
    """How the events after one gap are told."""
    torn = Torn()
    return [torn.telling(Entry(1, "t", "", "message", 1, orjson.dumps(event))) for event in events]


@pytest.mark.parametrize("seen", range(4))
def test_a_message_is_whole_or_begun(seen: int) -> None:
    """Wherever the gap ends within a message, its client gets all of its events or the last one, whole."""
    rest = [CREATED, IN_PROGRESS, PART, COMPLETED][seen:]
    if seen == 0:
        assert tellings(*rest) == [AS_IT_IS] * 4
    else:
        assert tellings(*rest) == [NOT_AT_ALL] * (3 - seen) + [WHOLE]


def test_messages_do_not_vouch_for_each_other() -> None:
    """That one message began after the gap says nothing of another that is written at the same time."""
    other = {**PART, "msg_id": "other"}
    whole = {**COMPLETED, "id": "other"}
    assert tellings(CREATED, other, PART, whole, COMPLETED) == [
        AS_IT_IS,
        NOT_AT_ALL,
        AS_IT_IS,
        WHOLE,
        AS_IT_IS,
    ]


def test_an_id_that_comes_again_begins_again() -> None:
    """A message that closed is forgotten: pieces under its id are not taken for its own."""
    assert tellings(CREATED, COMPLETED, PART) == [AS_IT_IS, AS_IT_IS, NOT_AT_ALL]


@pytest.mark.parametrize("kind", [RESPONSE, END])
def test_a_response_has_no_beginning(kind: str) -> None:
    """Responses stand for themselves; they are not even parsed."""
    assert Torn().telling(Entry(1, "t", "", kind, 1, b"not JSON")) is AS_IT_IS
