"""Sizes in bytes as people write them: 200M, 1.5G."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMGT]?)(?:I?B)?", re.ASCII | re.IGNORECASE)


def read(text: str) -> int:
    """The bytes of a size.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with K, M, G or T, as 200M")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def shown(size: int) -> str:
    """A size with one digit behind the point, in the largest unit that fits: 1.5 MiB."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.1f} {unit}" if unit != "B" else f"{size} B"
        number /= 1024
    return f"{number:.1f} TiB"
