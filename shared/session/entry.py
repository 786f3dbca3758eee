"""One entry of a session's log, and the cursor that names its place.

An entry is one Agent API protocol event with what is known about it at the time it is appended.
Its fields are short in Redis because a long turn has thousands of them; here they have names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from turnstream.shared.errors import BadCursor

# The ``kind`` of an entry that holds a message or content event is that message's type, where the protocol knows it. Response
# events have no message; these kinds let a reader find the end of a task, or where it was parked, without parsing JSON.
RESPONSE = "response"
END = "end"
# Written by lua/park.lua: which calls the client is to answer, and the turn's usage so far. It is no event of the response, and has no number.
PARKED = "parked"
# Of a message whose type is its agent's own.
OTHER = "other"

_CURSOR = re.compile(r"(\d{1,16})-(\d{1,15})", re.ASCII)


class Cursor(NamedTuple):
    """A place in a session's log: ``<epoch>-<seq>``.

    It is the SSE ``id:`` and the client's ``Last-Event-ID``; the entry's Redis stream id is ``<base>-<seq>``, of the log's first epoch. ``epoch`` is
    the log's generation (Unix microseconds at its creation, larger after each clear and each detected loss); ``seq`` counts its
    entries, dense from 1. ``seq`` 0 is the place before the first entry.
    """

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor as a client sends it.

        Raises:
            BadCursor: the text is not ``<epoch>-<seq>``.
        """
        match = _CURSOR.fullmatch(text.strip())
        if match is None:
            raise BadCursor
        return cls(int(match[1]), int(match[2]))


@dataclass(slots=True)
class Entry:
    """What the log holds at one ``seq``. Treat it as immutable; it is not frozen because that makes construction three times slower.

    Attributes:
        seq: place in the log, dense from 1.
        task: the task that the event belongs to.
        path: which agent speaks: empty for the session's agent, else the sub-agents' names from the
            outside in, joined by ``/`` (``researcher`` or ``researcher/reader``).
        kind: the message's type or `OTHER`, or `RESPONSE`, or `END` for the task's terminal event, or `PARKED`.
        created: Unix milliseconds, by the broker's clock.
        event: canonical JSON of the event: snake_case, nulls left out, with its ``sequence_number``
            (the user's own message has none, nor has a park).
        extra: JSON object with what a dialect needs beside the event, or empty. Keys, all optional:
            ``completions`` (``usage`` with ``promptTokens``, ``completionTokens``, ``totalTokens``;
            ``id``; ``model``) on the completed message that ends a model's answer;
            ``group`` (``ids``: our call ids of one model answer; ``first``: true on its first call;
            ``last``: true on the result that completes it);
            ``agent`` (``id``, ``name``) on what a sub-agent says;
            ``failed``: true on the result of a sub-agent that failed;
            ``parts``: the content list of the user's message as a LiteAgent client sent it;
            ``openai``: what a response's request asked, and ``users``: how many of its user's messages the session has
            with those of a chat completion's request, both on the user's first message of a turn;
            ``agui``: the ids that an AG-UI client gave to the user's messages, there, too.
        opened: in the history, the seq of the message's first entry; 0 in the log.
        epoch: in which it was written: the log's present one, or one before it. 0: it was made for a reader.
    """

    seq: int
    task: str
    path: str
    kind: str
    created: int
    event: bytes
    extra: bytes = b""
    opened: int = field(default=0, compare=False)
    epoch: int = field(default=0, compare=False)
