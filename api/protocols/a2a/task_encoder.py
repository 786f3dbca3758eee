"""One task as its events: the encoder of the stream, and the task as far as it has come.

What its agent says is an artifact, each message one. How it gets there, its thoughts, tools and sub-agents, is not told. A task
that asks its client goes on afterwards, in the same stream.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.a2a.parts import part_of
from turnstream.api.streaming.dialect import EncodedDialect, one_line
from turnstream.api.streaming.segment_encoder import TEXT, SegmentEncoder
from turnstream.api.turns.ids import TaskId
from turnstream.shared.protocol.answers import ANSWERS
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import PARKED, Cursor
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from turnstream.api.streaming.segment_encoder import EncodedMessage, Part
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

SUBMITTED = "TASK_STATE_SUBMITTED"
WORKING = "TASK_STATE_WORKING"
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
ENDED = {
    TaskStatus.COMPLETED.value: "TASK_STATE_COMPLETED",
    TaskStatus.FAILED.value: "TASK_STATE_FAILED",
    TaskStatus.CANCELED.value: "TASK_STATE_CANCELED",
}
STATES = (
    SUBMITTED,
    WORKING,
    *ENDED.values(),
    INPUT_REQUIRED,
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
)

# The extension: by which URI clients ask for cursors, and find them in `metadata`.
CURSORS = "urn:turnstream:a2a:cursor:v1"

# Under this name, in the `extra` of the user's message: what its client called it.
MESSAGE_ID = "a2a"


@dataclass(frozen=True, slots=True)
class Wire:
    """How events are written to one client.

    Attributes:
        request: the id of the request that JSON-RPC answers, as JSON; None: the other binding.
        cursors: events tell their places.
    """

    request: bytes | None = None
    cursors: bool = False

    def event(self, event: Json) -> bytes:
        """An event as one line, without its place."""
        return one_line(orjson.dumps(self.answer(event)))

    def frame(self, event: bytes, epoch: int, seq: int) -> bytes:
        """Such an event as a frame; ``epoch`` and ``seq`` are where it leads."""
        if self.cursors:
            # Into the object that the event names, which is the last thing in it.
            at = len(event) - (2 if self.request is None else 3)
            place = orjson.dumps(_cursor(Cursor(epoch, seq)))
            event = b'%b,"metadata":%b%b' % (event[:at], place, event[at:])
        return b"id: %d-%d\ndata: %b\n\n" % (epoch, seq, event)

    def answer(self, result: Json) -> Json:
        """What a request is answered with."""
        if self.request is None:
            return result
        return {"jsonrpc": "2.0", "id": orjson.Fragment(self.request), "result": result}


@dataclass(slots=True)
class _Artifact:
    """What one message says: its parts by their place in the log."""

    name: str
    parts: dict[int, Part | Json] = field(default_factory=dict)
    begun: bool = False

    def content(self) -> list[Json]:
        """Its parts, so far."""
        parts = (self.parts[index] for index in sorted(self.parts))
        return [each if isinstance(each, dict) else {"text": each.text} for each in parts]


class TaskEncoder(SegmentEncoder):
    """The events of one task, fed from its first entry; `quiet` until its client is told something.

    Attributes:
        state: the task's.
        asks: it ends where the client is asked, too.
        history: so many of its messages are told with it; None: all.
        wire: how it is written.
    """

    def __init__(self, name: TaskId, wire: Wire | None = None) -> None:
        super().__init__(0)
        self.state = SUBMITTED
        self.asks = False
        self.history: int | None = None
        self._name = name
        self.wire = wire or Wire()
        self._ids = {"taskId": str(name), "contextId": name.session}
        self._status: Json = {"state": SUBMITTED}
        self._artifacts: dict[str, _Artifact] = {}
        self._said: list[Json] = []
        # Calls of the client that have no answer yet: what is asked, by their ids; and those that the task waits for.
        self._calls: dict[str, Json] = {}
        self._awaited: list[str] = []
        self._at = 0

    def take(self, entry: Entry) -> None:
        """What its user has said, too; it goes on behind its parks."""
        self._at = entry.created
        if not self.created:
            self._status["timestamp"] = time_of(entry.created)
        if entry.kind != PARKED and not numbered(entry.event):
            self._take_words(entry)
        super().take(entry)
        if entry.kind == PARKED and not self.asks:
            self.over = False

    def joined(self, epoch: int, seq: int) -> bytes:
        """The frames that an entry has brought, the last one with its cursor."""
        *before, last = self.frames
        self.frames.clear()
        frame = self.wire.frame(last, epoch, seq)
        return b"".join([*(b"data: %b\n\n" % event for event in before), frame]) if before else frame

    def tell(self) -> None:
        """Make frames from here on."""
        self.is_quiet = False

    def document(
        self, history: int | None = None, *, artifacts: bool = True, at: Cursor | None = None
    ) -> Json:
        """The task as far as it has come, with so many of its newest messages (None: all); ``at``: the place, to be told."""
        made: Json = {"id": str(self._name), "contextId": self._name.session, "status": self._status}
        if artifacts:
            made["artifacts"] = [
                {"artifactId": each.name, "parts": each.content()} for each in self._artifacts.values()
            ]
        if (
            said := self._said
            if history is None
            else self._said[len(self._said) - min(history, len(self._said)) :]
        ):
            made["history"] = said
        if at is not None and self.wire.cursors:
            made["metadata"] = _cursor(at)
        return made

    def snapshot(self, at: Cursor) -> bytes:
        """The frame that a stream begins with."""
        return self.wire.frame(self.wire.event({"task": self.document(self.history)}), *at)

    def outcome(self) -> tuple[int, Json, Headers]:
        """The answer to who waits for the end, or for being asked."""
        return 200, self.wire.answer({"task": self.document(self.history)}), ()

    # ── what is written ──

    def take_status(self, status: str) -> None:
        """It works."""
        if status == "in_progress" and self.state == SUBMITTED:
            self._become(WORKING)

    def begin_part(self, part: Part) -> None:
        """What the agent says has one more part."""
        if part.message.kind == "message":
            self._artifact(part.message.name).parts[next(reversed(part.message.parts))] = part

    def piece(self, part: Part) -> bytes:
        """An update of what was begun."""
        return self.wire.event(self._updated(part.message.name, [{"text": TEXT}], append=True))

    def take_piece(self, part: Part, piece: bytes) -> None:
        """A piece of what the agent says."""
        if part.message.kind != "message":
            return
        artifact = self._artifact(part.message.name)
        if artifact.begun:
            super().take_piece(part, piece)
        else:
            self._update(artifact, [{"text": orjson.loads(piece)}])

    def end_part(self, part: Part) -> None:
        """A part is whole; where its pieces were not, the artifact is told anew."""
        if part.message.kind == "message" and part.whole != part.written:
            artifact = self._artifact(part.message.name)
            artifact.begun = False
            self._update(artifact, artifact.content())

    def end_message(self, message: EncodedMessage, status: str) -> None:  # noqa: ARG002 - its end is all there is to tell
        """An artifact is complete."""
        if message.kind == "message":
            self._end(message.name)

    def take_data(self, entry: Entry, name: str, data: Json) -> None:  # noqa: ARG002 - calls have ids of their own
        """The client is asked, or has answered."""
        if entry.kind == "function_call":
            self._calls[str(data.get("call_id"))] = _asked("function_call", data.get("call_id"), data)
        elif entry.kind == "mcp_approval_request":
            self._calls[str(data.get("id"))] = _asked("approval_request", data.get("id"), data)
        elif entry.kind in ANSWERS:
            self._take_answer(str(data.get("approval_request_id") or data.get("call_id")), data)

    def is_written(self, entry: Entry) -> bool:
        """What the session's agent says; of sub-agents only what the client is asked, and answers."""
        return super().is_written(entry) or entry.kind in ANSWERS

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - what it cost is not told
        """The client is asked."""
        self._awaited = list(park["calls"])
        self._ask(f"{self._name.task}-asks-{park['park']}")

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - what it cost is not told
        """The task has ended."""
        error = end.get("error") or {}
        text = str(error.get("message") or "The turn failed.")
        message = (
            self._spoken(f"{self._name.task}-end", [{"text": text}]) if end["status"] == "failed" else None
        )
        self._become(ENDED[end["status"]], message)

    def _finish(self, message: EncodedMessage, index: int, part: Json) -> None:
        """A part is whole; one that is no text comes at once."""
        if part.get("type") in ("text", "refusal") or message.kind != "message":
            super()._finish(message, index, part)
            return
        artifact = self._artifact(message.name)
        made = part_of(part)
        if made is not None and index not in artifact.parts:
            artifact.parts[index] = made
            self._update(artifact, [made])

    def _close(self, message: EncodedMessage, status: str) -> None:
        super()._close(message, status)
        # Of a message without text nobody else says that it is whole.
        if not message.parts and not message.over and message.kind == "message":
            message.over = True
            self._end(message.name)

    # ── the task ──

    def _take_words(self, entry: Entry) -> None:
        """What its user has said."""
        event = orjson.loads(entry.event)
        parts = [made for part in event.get("content") or [] if (made := part_of(part)) is not None]
        if event.get("object") == "message" and parts:
            beside = orjson.loads(entry.extra) if entry.extra else {}
            self._said.append(self._spoken(beside.get(MESSAGE_ID) or event["id"], parts, "ROLE_USER"))

    def _take_answer(self, call: str, data: Json) -> None:
        self._calls.pop(call, None)
        if call not in self._awaited:
            return
        self._awaited.remove(call)
        if question := self._status.get("message"):
            self._said.append(question)
        answer: Json = {name: data[name] for name in ("output", "approve", "reason") if name in data}
        answer["callId"] = call
        part = {"data": answer, "mediaType": "application/json"}
        self._said.append(self._spoken(f"{call}-answer", [part], "ROLE_USER"))
        if self._awaited:
            self._ask(f"{call}-and-more")
        else:
            self._become(WORKING)

    def _ask(self, name: str) -> None:
        parts: list[Json] = []
        for asked in (self._calls[call] for call in self._awaited if call in self._calls):
            parts += [{"text": _words(asked)}, {"data": asked, "mediaType": "application/json"}]
        self._become(INPUT_REQUIRED, self._spoken(name, parts or [{"text": "Answer the open calls."}]))

    def _become(self, state: str, message: Json | None = None) -> None:
        self.state = state
        self._status = {"state": state, "timestamp": time_of(self._at)}
        if message:
            self._status["message"] = message
        self._tell({"statusUpdate": {**self._ids, "status": self._status}})

    def _spoken(self, name: str, parts: list[Json], role: str = "ROLE_AGENT") -> Json:
        return {"messageId": name, **self._ids, "role": role, "parts": parts}

    def _artifact(self, name: str) -> _Artifact:
        if name not in self._artifacts:
            self._artifacts[name] = _Artifact(name)
        return self._artifacts[name]

    def _end(self, name: str) -> None:
        artifact = self._artifacts.get(name)
        if artifact is not None and artifact.begun:
            self._update(artifact, [{"text": ""}], last=True)

    def _update(self, artifact: _Artifact, parts: list[Json], *, last: bool = False) -> None:
        self._tell(self._updated(artifact.name, parts, append=artifact.begun, last=last))
        artifact.begun = True

    def _updated(self, name: str, parts: list[Json], *, append: bool, last: bool = False) -> Json:
        update: Json = {**self._ids, "artifact": {"artifactId": name, "parts": parts}}
        if append:
            update["append"] = True
        if last:
            update["lastChunk"] = True
        return {"artifactUpdate": update}

    def _tell(self, event: Json) -> None:
        if not self.is_quiet:
            self.frames.append(self.wire.event(event))


def _asked(kind: str, call: Any, data: Json) -> Json:
    arguments = data.get("arguments") or "{}"
    with suppress(orjson.JSONDecodeError):
        arguments = orjson.loads(arguments)
    made = {"type": kind, "callId": call, "name": data.get("name") or "", "arguments": arguments}
    return made | ({"reason": data["reason"]} if data.get("reason") else {})


def _words(asked: Json) -> str:
    call = f"{asked['name']}({orjson.dumps(asked['arguments']).decode()})"
    if asked["type"] == "approval_request":
        return f"May {call} be run? Answer yes or no."
    return f"Run {call}, and answer with its result."


def _cursor(cursor: Cursor) -> Json:
    return {CURSORS: {"cursor": str(cursor)}}


def time_of(ms: int) -> str:
    """A time, from Unix milliseconds, as A2A writes it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _opened(session: str, entry: Entry) -> TaskEncoder:
    return TaskEncoder(TaskId(session, entry.task))


DIALECT = EncodedDialect("a2a", _opened)
