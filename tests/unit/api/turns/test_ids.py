"""Ids of what has a name inside a session only: what we write is read as what it was, and nothing else is read."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from turnstream.api.turns.ids import SegmentName
from turnstream.shared.errors import NoTask
from turnstream.shared.names import IDENTIFIER

names = st.from_regex(IDENTIFIER, fullmatch=True)
segments = st.builds(SegmentName, names, st.integers(0, 999_999_999))


@given(segments)
def test_an_id_is_read_as_what_was_written(written: SegmentName) -> None:
    """Each part comes back, whatever characters of ours it has."""
    assert SegmentName.parse(str(written)) == written


@given(st.text() | st.text("t_~.01x", max_size=24) | segments.map(str))
@example("t~0")
@example("t~01")
@example("t~\u0661")
@example("t~1\n")
@example("~1")
def test_what_we_would_not_write_is_not_found(text: str) -> None:
    """Two texts never name one segment."""
    try:
        read = SegmentName.parse(text)
    except NoTask:
        return
    assert str(read) == text
