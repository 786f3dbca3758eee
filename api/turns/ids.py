"""Ids of what has a name inside a session only.

Their parts are joined by ``~``, which no name of ours has and which addresses may have. What is no such id, or has anything
about it that we would not write, is not found, as if nobody had ever had it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from turnstream.shared.errors import NoTask
from turnstream.shared.names import IDENTIFIER

MARK = "~"

# Of a segment; as we write it, so that no segment has two ids.
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


class SegmentName(NamedTuple):
    """One segment of a turn, to who names its session besides: ``<response>~<segment>``; of the first, the turn's response."""

    response: str
    segment: int

    def __str__(self) -> str:
        return f"{self.response}{MARK}{self.segment}" if self.segment else self.response

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            NoTask: it is none.
        """
        response, mark, number = text.partition(MARK)
        if mark and number == "0":
            raise NoTask
        return cls(_name(response), _number(number) if mark else 0)


def task_named(text: str | None) -> str | None:
    """The task that an id names, when one is given: the id of a segment names its task, too.

    Raises:
        NoTask: it cannot be one.
    """
    return SegmentName.parse(text).response if text else None


def _name(text: str) -> str:
    if not IDENTIFIER.fullmatch(text):
        raise NoTask
    return text


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise NoTask
    return int(text)
