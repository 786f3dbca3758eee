"""Ids that lead to session and task: what we write is read as what it was, and nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnstream.api.turns.ids import CallId, ConversationId, ResponseId, SegmentName
from turnstream.shared.errors import NoSession, NoTask, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.worker.turn import new_call_id

names = st.from_regex(IDENTIFIER, fullmatch=True)
numbers = st.integers(0, 999_999_999)
calls = names.map(lambda name: f"call_{name}"[:128])
ids = st.one_of(
    st.builds(ResponseId, names, names, numbers),
    st.builds(CallId, names, names, calls),
    st.builds(ConversationId, names),
    st.builds(SegmentName, names, numbers),
)
NOT_FOUND: dict[type[Any], type[Exception]] = {
    ResponseId: NoTask,
    CallId: UnknownCall,
    ConversationId: NoSession,
    SegmentName: NoTask,
}


@given(ids)
def test_an_id_is_read_as_what_was_written(written: Any) -> None:
    """Each part comes back, whatever characters of ours it has."""
    assert type(written).parse(str(written)) == written


@given(st.sampled_from([*NOT_FOUND]), st.text() | st.text("respcalonv_~.01x", max_size=24) | ids.map(str))
@example(ResponseId, "resp_s~t~01")
@example(ResponseId, "resp_s~t~١")
@example(ResponseId, "resp_s~t~1\n")
@example(SegmentName, "t~0")
@example(CallId, "call_..~t~a")
@example(ConversationId, "conv_.")
def test_what_we_would_not_write_is_not_found(kind: type[Any], text: str) -> None:
    """Two texts never name one thing, and the error is the one of a thing that is not there."""
    try:
        read = kind.parse(text)
    except NOT_FOUND[kind]:
        return
    assert str(read) == text


@given(names, names, numbers)
def test_no_kind_is_taken_for_another(session: str, task: str, number: int) -> None:
    """A response's id is no call's, and so on, but for the bare name of a turn's response."""
    for written in (
        ResponseId(session, task, number),
        CallId(session, task, "call_a"),
        ConversationId(session),
    ):
        for kind, error in NOT_FOUND.items():
            if kind not in (type(written), SegmentName):
                with pytest.raises(error):
                    kind.parse(str(written))


def test_a_call_of_ours_keeps_its_id() -> None:
    """What is read is what the broker knows it by."""
    call = new_call_id()
    assert CallId.parse(str(CallId("s", "t", call))).call == call
