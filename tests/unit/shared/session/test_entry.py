"""Cursors as clients send them."""

from __future__ import annotations

import pytest

from turnstream.shared.errors import BadCursor
from turnstream.shared.session.entry import Cursor


def test_a_cursor_is_read_as_it_was_written() -> None:
    """What a client got as ``id:`` names the same place when it comes back."""
    assert Cursor.parse(str(Cursor(1795172415614123, 42))) == Cursor(1795172415614123, 42)


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "a-b", "1-2-3", "1 2", "１-2", "9" * 17 + "-1", "1-" + "9" * 16, "1-2\n3"]
)
def test_anything_else_is_refused(text: str) -> None:
    """A cursor that is not ours is an error, never a guess."""
    with pytest.raises(BadCursor):
        Cursor.parse(text)
