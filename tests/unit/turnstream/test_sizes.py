"""Sizes in bytes, as operators write and read them."""

from __future__ import annotations

import pytest

from turnstream.sizes import read, shown


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("200", 200),
        ("200M", 200 * 2**20),
        (" 1.5g ", 3 * 2**29),
        ("2KiB", 2048),
        ("1TB", 2**40),
        ("7b", 7),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    """A number, with or without a unit, in either case."""
    assert read(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1e3", "1,5G", "1.5.5", "10P", "1 000", "0x10", "\u0661"])
def test_no_size(text: str) -> None:
    """What could be read in two ways is refused, with how to write it."""
    with pytest.raises(ValueError, match="write bytes, or a number with K, M, G or T"):
        read(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_a_size_is_shown(size: int, text: str) -> None:
    """In the largest unit that fits; beyond the last one it grows."""
    assert shown(size) == text
