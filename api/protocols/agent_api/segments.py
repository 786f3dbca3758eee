"""Parts of a turn's stream as responses of their own.

A turn is cut into segments where it was parked: the client is asked at the end of one, and its answers begin the next. With
``on_park = "complete"`` each segment is a response; with ``follow`` there is one response, and who answers through
``/process`` joins it in its middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.agent_api.frames import framed
from turnstream.api.turns.ids import SegmentName
from turnstream.shared.session.endings import numbered, without_number
from turnstream.shared.session.entry import END, PARKED, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Collection

    from turnstream.api.protocols.agent_api.frames import Agentscope
    from turnstream.api.streaming.start_position import Segment
    from turnstream.shared.session.entry import Entry

# How a client answers, by the type of the message that says so.
ANSWERS = ("function_call_output", "mcp_approval_response")

_OF_ALL = ("id", "session_id", "created_at", "metadata")
_CLOSED = ("completed", "incomplete")
# Canonical events begin so, behind their numbers.
_MESSAGE, _HEAD = b'"object":"message"', 64
_USAGE = {"promptTokens": "input_tokens", "completionTokens": "output_tokens", "totalTokens": "total_tokens"}


class SegmentResponse:
    """One segment of a turn as a response, fed from the segment's first entry.

    1. The first one is the turn's response up to where the client is asked; there it is completed.
    2. A further one has an id of its own, ``<response>~<segment>``, and numbers of its own. It begins with ``created`` and
       ``in_progress``, which stand where the client's answers stand in the log, and passes these over.
    3. The output of its end is what it told.

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
        self._usage: dict[str, int] = {}

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """The frames of an entry; the last one has its cursor."""
        events = [self._dialect.document(event) for event in self.events(entry)]
        return framed(epoch, entry.seq, events) if events else b""

    def events(self, entry: Entry) -> list[bytes]:
        """The events of an entry, as canonical JSON."""
        if not numbered(entry.event):
            # An agent may call a message of its own so; that one has a number.
            if entry.kind != PARKED:
                return []
            self.over = True
            return [*self._beginning(), self._completed(entry.created // 1000)]
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

    def _completed(self, at: int) -> bytes:
        """The end of a response at whose end the client is asked."""
        more: dict[str, Any] = {"completed_at": at, "output": self._output()}
        return self._whole("completed", self._number, more | ({"usage": self._usage} if self._usage else {}))

    def _ended(self, event: bytes) -> bytes:
        """The turn's end as this response's: its own output, in the turn's order."""
        end = orjson.loads(event)
        ids = [message.get("id") for message in end.get("output") or []]
        output = [orjson.Fragment(self._closed[name]) for name in ids if name in self._closed]
        return orjson.dumps(
            {**end, "sequence_number": self._number, "id": self._response["id"], "output": output}
        )

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
        """Keep a closed message, and what it cost."""
        if _MESSAGE not in entry.event[:_HEAD]:
            return
        message = orjson.loads(entry.event)
        self._opened.setdefault(message["id"], entry.opened or entry.seq)
        if message.get("status") in _CLOSED:
            self._closed[message["id"]] = without_number(entry.event)
            completions = (orjson.loads(entry.extra) if entry.extra else {}).get("completions") or {}
            for name, tokens in (completions.get("usage") or {}).items():
                if name in _USAGE:
                    self._usage[_USAGE[name]] = self._usage.get(_USAGE[name], 0) + tokens


class AnsweredTurn:
    """A turn's response for who joins it with the answers to some calls: its output begins with them, as the stream does."""

    over = False

    def __init__(self, dialect: Agentscope, calls: Collection[str]) -> None:
        self._dialect = dialect
        self._calls = calls

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """As the dialect's frames."""
        event = entry.event
        if not numbered(event):
            return b""
        if entry.kind == END:
            event = self._ended(event)
        return framed(epoch, entry.seq, [self._dialect.document(event)])

    def _ended(self, event: bytes) -> bytes:
        end = orjson.loads(event)
        output = end.get("output") or []
        first = next((at for at, message in enumerate(output) if answers_one_of(self._calls, message)), 0)
        return orjson.dumps({**end, "output": output[first:]})


def answers_one_of(calls: Collection[str], message: dict[str, Any]) -> bool:
    """Whether a completed message is the client's answer to one of these calls."""
    if message.get("type") not in ANSWERS:
        return False
    datas = [part.get("data") or {} for part in message.get("content") or []]
    return any(data.get("approval_request_id") in calls or data.get("call_id") in calls for data in datas)
