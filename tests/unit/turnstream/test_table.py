"""Tables: columns as wide as their widest cell, and no blanks at line ends."""

from __future__ import annotations

import pytest

from turnstream.table import aligned


def test_columns_are_aligned() -> None:
    """The last column is not filled up, so that lines can be cut and compared."""
    assert (
        aligned([("A", "LONG", "C"), ("aaa", "b", ""), ("", "", "c")]) == "A    LONG  C\naaa  b\n           c"
    )


def test_a_row_of_another_width_is_a_mistake() -> None:
    """Cells would stand under the wrong heading."""
    with pytest.raises(ValueError, match="argument"):
        aligned([("A", "B"), ("a",)])
