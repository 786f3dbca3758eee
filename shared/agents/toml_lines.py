"""Where in a TOML text a value stands: what the standard parser does not tell, and people want to know.

It reads tables, arrays of tables and ``key =`` lines. Keys inside inline tables have the line of the
key that holds the table, as far as is known.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Path = tuple[str | int, ...]

_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?$")
_ARRAY = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_MULTILINE = re.compile(r'"""|' + "'''")


class Lines:
    """The lines of a TOML text that begin a value."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}
        table: Path = ()
        closing = ""
        for number, line in zip(count(1), text.splitlines(), strict=False):
            if not closing:
                if found := _ARRAY.match(line):
                    array = self._resolved(_keys(found[1]))
                    self._lines.setdefault(array, number)
                    table = self._element(array)
                    self._lines.setdefault(table, number)
                elif found := _TABLE.match(line):
                    table = self._resolved(_keys(found[1]))
                    self._lines.setdefault(table, number)
                elif found := _ASSIGNMENT.match(line):
                    self._lines.setdefault((*table, *_keys(found[1])), number)
            for mark in _MULTILINE.findall(line):
                if not closing:
                    closing = mark
                elif closing == mark:
                    closing = ""

    def find(self, path: Sequence[str | int]) -> int | None:
        """The line of the value, or of the nearest one that holds it; None when there is none."""
        for length in range(len(path), 0, -1):
            if (line := self._lines.get(tuple(path[:length]))) is not None:
                return line
        return None

    def _element(self, array: Path) -> Path:
        """The path of a new element of an array of tables."""
        place = self._elements[array] = self._elements.get(array, -1) + 1
        return (*array, place)

    def _resolved(self, keys: Sequence[str]) -> Path:
        """The path of a header: below an array of tables it means the array's last element."""
        path: Path = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            if path in self._elements and index < len(keys) - 1:
                path = (*path, self._elements[path])
        return path


def _keys(dotted: str) -> list[str]:
    return [key.strip("\"'") for key in re.findall(_KEY, dotted)]
