"""Parts of a turn's stream as responses of their own.

A turn is cut into segments where it was parked: the client is asked at the end of one, and its answers begin the next. With
``on_park = "complete"`` each segment is a response; with ``follow`` there is one response, and who answers through
``/process`` joins it in its middle.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.agent_api.frames import framed
from turnstream.api.streaming.segment_encoder import cost_of
from turnstream.api.turns.callbacks import answers_one
from turnstream.api.turns.ids import SegmentName
from turnstream.shared.protocol.answers import ANSWERS
from turnstream.shared.session.endings import NO_USAGE, numbered, split_end, without_number
from turnstream.shared.session.entry import END, PARKED, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Collection

    from turnstream.api.protocols.agent_api.frames import Agentscope
    from turnstream.api.streaming.start_position import Segment
    from turnstream.shared.session.entry import Entry

_OF_ALL = ("id", "session_id", "created_at", "metadata")
_CLOSED = (b"completed", b"incomplete")
# How a message's events begin, as the log has them; of one with an `error` it says less.
_MESSAGE = re.compile(
    rb'\{"sequence_number":\d+,"object":"message","status":"(\w+)",(?:"id":"([\w-]+)")?', re.ASCII
)


class SegmentResponse:
    """One segment of a turn as a response, fed from the segment's first entry.

    1. The first one is the turn's response up to where the client is asked; there it is completed.
    2. A further one has an id of its own, ``<response>~<segment>``, and numbers of its own. It begins with ``created`` and
       ``in_progress``, which stand where the client's answers stand in the log, and passes these over.
    3. The output of its end is what it told, and the usage what it cost.

    Attributes:
        number: the segment's.
        over: it has ended.
        answering: nothing but the client's answers was there so far.
    """

    def __init__(self, dialect: Agentscope, session: str = "", segment: Segment | None = None) -> None:
        """Without a ``segment`` it is that of a turn that has just been taken, whose own events say all that is told of it."""
        self.number = segment.number if segment else 0
        self.over = False
        self.answering = self._further = self.number > 0
        self._dialect = dialect
        self._begun = not self._further
        self._number = 0
        # The place of the park behind which it begins, and what the turn had cost by then.
        self._begins_at = segment.after.seq if self._further and segment else 0
        self._spent: dict[str, Any] = {}
        # What each of its response events says.
        self._response: dict[str, Any] = {}
        if segment is not None:
            name = str(SegmentName(segment.response, segment.number))
            self._response = {"id": name, "session_id": session, "created_at": segment.submitted // 1000}
            if segment.metadata:
                self._response["metadata"] = orjson.Fragment(segment.metadata)
        # Message → where it was begun; the closed ones.
        self._opened: dict[str, int] = {}
        self._closed: dict[str, bytes] = {}

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """The frames of an entry; the last one has its cursor."""
        events = [self._dialect.document(event) for event in self.events(entry)]
        return framed(epoch, entry.seq, events) if events else b""

    def events(self, entry: Entry) -> list[bytes]:
        """The events of an entry, as canonical JSON."""
        if entry.kind == PARKED:
            return self._parked(entry)
        if not numbered(entry.event):
            return []
        if not self._further:
            if entry.kind == RESPONSE:
                said = orjson.loads(entry.event)
                self._response = {name: said[name] for name in _OF_ALL if name in said}
            self._note(entry)
            self._number = int(entry.event[len(b'{"sequence_number":') : entry.event.index(b",")]) + 1
            self.over = entry.kind == END
            return [entry.event]
        if entry.kind == RESPONSE:
            return []
        events = self._beginning()
        if entry.kind == END:
            self.over = True
            return [*events, self._ended(entry.event)]
        if self.answering and entry.kind in ANSWERS:
            return events
        self.answering = False
        self._note(entry)
        return [*events, self._numbered(without_number(entry.event))]

    def so_far(self) -> bytes:
        """The response in progress: it waits for further answers."""
        return self._whole("in_progress", max(self._number - 1, 0), {"output": self._output()})

    def _beginning(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        return [
            self._numbered(orjson.dumps({"object": "response", "status": status, **self._response}))
            for status in ("created", "in_progress")
        ]

    def _parked(self, entry: Entry) -> list[bytes]:
        """Nothing, or the end of a response at whose end the client is asked."""
        usage = orjson.loads(entry.event).get("usage") or orjson.loads(NO_USAGE)
        if entry.seq == self._begins_at:
            self._spent = usage
            return []
        self.over = True
        more = {"completed_at": entry.created // 1000, "output": self._output(), "usage": self._cost(usage)}
        return [self._whole("completed", self._number, more)]

    def _ended(self, event: bytes) -> bytes:
        """The turn's end as this response's."""
        end, _ = split_end(event)
        own = {"id": self._response["id"], "output": self._output(), "usage": self._cost(end["usage"])}
        return orjson.dumps({**end, "sequence_number": self._number, **own})

    def _cost(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Its own part of what the turn has cost so far."""
        return cost_of(usage, self._spent)

    def _whole(self, status: str, number: int, more: dict[str, Any]) -> bytes:
        return orjson.dumps(
            {"sequence_number": number, "object": "response", "status": status, **self._response, **more}
        )

    def _output(self) -> list[orjson.Fragment]:
        return [
            orjson.Fragment(self._closed[name]) for name in sorted(self._closed, key=self._opened.__getitem__)
        ]

    def _numbered(self, event: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'{"sequence_number":%d,%b' % (number, event[1:])

    def _note(self, entry: Entry) -> None:
        """Keep a closed message."""
        head = _MESSAGE.match(entry.event)
        if head is None:
            return
        name = (head[2] or orjson.loads(entry.event)["id"].encode()).decode()
        self._opened.setdefault(name, entry.opened or entry.seq)
        if head[1] in _CLOSED:
            self._closed[name] = without_number(entry.event)


class AnsweredTurn:
    """A turn's response for who joins it with the answers to some calls: its output begins with them, as the stream does."""

    over = False

    def __init__(self, dialect: Agentscope, calls: Collection[str], first: bytes = b"") -> None:
        """``first`` is the first of the answers, for who has it already: the completed message, not numbered."""
        self._dialect = dialect
        self._calls = calls
        self._first = first

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """As the dialect's frames."""
        event = entry.event
        if not numbered(event):
            return b""
        if entry.kind == END:
            event = self._ended(event)
        elif not self._first and answers_one(self._calls, entry):
            self._first = without_number(event)
        return framed(epoch, entry.seq, [self._dialect.document(event)])

    def _ended(self, event: bytes) -> bytes:
        end, output = split_end(event)
        at = max(output.find(self._first), 0)
        return orjson.dumps({**end, "output": orjson.Fragment(b"[%b]" % output[at:])})
