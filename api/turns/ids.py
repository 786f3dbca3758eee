"""Ids for clients that send back one id alone: it leads to session and task, and no table has to be kept.

Their parts are joined by ``~``, which no session, task or call has in its name and which addresses may have. They are no
secrets: the owner comes with the key, so that another owner's id finds nothing. What is no such id, or has anything about it
that we would not write, is not found, as if nobody had ever had it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from turnstream.shared.errors import NoSession, NoTask, TurnstreamError, UnknownCall
from turnstream.shared.names import IDENTIFIER

MARK = "~"

# Of a segment; as we write it, so that no segment has two ids.
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


class ResponseId(NamedTuple):
    """One segment of a turn: ``resp_<session>~<task>~<segment>``."""

    session: str
    task: str
    segment: int

    def __str__(self) -> str:
        return f"resp_{self.session}{MARK}{self.task}{MARK}{self.segment}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            NoTask: it is none.
        """
        session, task, number = _of_task("resp_", text, NoTask)
        return cls(session, task, _number(number))


class CallId(NamedTuple):
    """A call to the client, for clients that answer it by its id alone: ``call_<session>~<task>~<call>``.

    ``call`` is our id of it, without its ``call_``.
    """

    session: str
    task: str
    call: str

    def __str__(self) -> str:
        return f"call_{self.session}{MARK}{self.task}{MARK}{self.call.removeprefix('call_')}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            UnknownCall: it is none.
        """
        session, task, call = _of_task("call_", text, UnknownCall)
        return cls(session, task, _name(f"call_{call}", UnknownCall))


class TaskId(NamedTuple):
    """A turn: ``<session>~<task>``."""

    session: str
    task: str

    def __str__(self) -> str:
        return f"{self.session}{MARK}{self.task}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            NoTask: it is none.
        """
        session, _, task = text.partition(MARK)
        return cls(_name(session, NoTask), _name(task, NoTask))


class ConversationId(NamedTuple):
    """A session: ``conv_<session>``."""

    session: str

    def __str__(self) -> str:
        return f"conv_{self.session}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            NoSession: it is none.
        """
        if not text.startswith("conv_"):
            raise NoSession
        return cls(_name(text.removeprefix("conv_"), NoSession))


class SegmentName(NamedTuple):
    """One segment of a turn, for clients that name its session besides: ``<response>~<segment>``; of the first, the turn's response."""

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
        return cls(_name(response, NoTask), _number(number) if mark else 0)


def _of_task(prefix: str, text: str, error: type[TurnstreamError]) -> tuple[str, str, str]:
    """Session, task, and the name of something in it."""
    parts = text.removeprefix(prefix).split(MARK)
    if not text.startswith(prefix) or len(parts) != 3:
        raise error
    return _name(parts[0], error), _name(parts[1], error), parts[2]


def _name(text: str, error: type[TurnstreamError]) -> str:
    if not IDENTIFIER.fullmatch(text):
        raise error
    return text


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise NoTask
    return int(text)
