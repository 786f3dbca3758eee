"""What a chaos run leaves to be judged: each client's record, and the broker's logs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.shared.session.files import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.support.client import Frame

ENDS = frozenset({"completed", "failed", "canceled"})


@dataclass
class View:
    """What one follower of a turn received, over all its connections, and when (monotonic seconds).

    Attributes:
        frames, times: since it was told last that what it had seen is gone.
        forgotten: what it had received before.
        ended: it has seen the turn's end.
        lost: it was told that what it has is gone, and there is nothing to begin anew with.
        gone: what it was told of that at the end, and when; empty: what it has is there (again).
    """

    frames: list[Frame] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    forgotten: list[Frame] = field(default_factory=list)
    ended: bool = False
    lost: bool = False
    gone: str = ""

    def forget(self) -> None:
        """The broker lost what it had seen, and it was told so: it begins anew."""
        self.forgotten += self.frames
        self.frames.clear()
        self.times.clear()

    def take(self, frame: Frame) -> None:
        """A whole frame came in."""
        self.frames.append(frame)
        self.times.append(time.monotonic())
        if frame.data.get("object") == "response" and frame.data.get("status") in ENDS:
            self.ended = True


@dataclass
class Turn:
    """One turn as its client lived it.

    Attributes:
        session, task, prompt: what was asked, and under which ids.
        accepted: a front end answered 200 to it.
        stopped: the client asked for its end.
        views: what the client itself received, then what other followers of the same turn did.
        repeats_by_key: its requests carry an idempotency key.
        may_fail: why it may fail by itself, beside the loss of its workers.
        unanswered: so many of its calls the client leaves without an answer, and stops it then.
        approves: what the client answers where it is asked for its consent.
        forsaken: calls that the client has not answered, and will not.
        answer: the last text of its answer, where its command does not say that.
        withdraws: it may take calls back that it has made.
        taken: of its calls, what the newest answer was told: that it was taken, or that the call was withdrawn.
        given: of its calls, the answers that the client has given, each another one.
        first: of them, the one that was taken when no other had been given.
        cleared: its session was cleared while it had yet to end.
        refusals: answers that no client should get, as ``what status body``.
        trouble: answers and errors that a client has to live with, counted.
    """

    session: str
    task: str
    prompt: str
    accepted: bool = False
    stopped: bool = False
    repeats_by_key: bool = False
    may_fail: str = ""
    unanswered: int = 0
    approves: bool = False
    forsaken: set[str] = field(default_factory=set)
    answer: str = ""
    withdraws: bool = False
    taken: dict[str, bool] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    cleared: bool = False
    views: list[View] = field(default_factory=lambda: [View()])
    refusals: list[str] = field(default_factory=list)
    trouble: Counter[str] = field(default_factory=Counter)

    @property
    def own(self) -> View:
        """What the client itself received."""
        return self.views[0]

    def __str__(self) -> str:
        return f"{self.session}/{self.task} {self.prompt[:40]!r}"


@dataclass(frozen=True)
class Row:
    """One entry of a log or history, as it is in the broker."""

    cursor: str
    task: str
    path: str
    kind: str
    event: dict[str, Any]

    @property
    def seq(self) -> int:
        """Its place."""
        return int(self.cursor.partition("-")[2])

    @property
    def numbered(self) -> bool:
        """Whether it is part of a response; the user's own message is not."""
        return "sequence_number" in self.event


@dataclass
class Session:
    """A session when all is over.

    Attributes:
        name: its id.
        log, history: the broker's two streams.
        tasks: each task's hash.
        told: what ``/history`` answered.
        epochs: its log's epochs, the present one and those before, each with its last seq.
        serial: its turns wait for each other.
        head: where what is left of its log begins: what was before is in ``log``, but was cut.
    """

    name: str
    log: list[Row] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    serial: bool = True
    head: int = 1

    def has(self, frame: Frame) -> bool:
        """Whether the frame's cursor is good: of an epoch of this log, and not beyond its end, where that is known yet."""
        return self.may_have(frame) or frame.seq <= self.epochs.get(_epoch(frame), -1)

    def may_have(self, frame: Frame) -> bool:
        """Whether the frame's epoch is one that the session does not remember: a former one of this log, or one that was lost."""
        epoch = _epoch(frame)
        return min(self.epochs, default=0) < epoch < max(self.epochs, default=0) and epoch not in self.epochs

    def of(self, task: str) -> list[Row]:
        """The task's entries."""
        return [row for row in self.log if row.task == task]


def _epoch(frame: Frame) -> int:
    return int(frame.id.partition("-")[0])


@dataclass
class Account:
    """All that is known about a run.

    Attributes:
        losses: how often the broker has lost its newest writes.
    """

    turns: list[Turn] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    losses: int = 0

    def session_of(self, turn: Turn) -> Session:
        """The turn's session; empty when the broker has none."""
        return self.sessions.get(turn.session) or Session(turn.session)


def rows(
    stream: Iterable[tuple[bytes, dict[bytes, bytes]]], files: Mapping[str, bytes] = MappingProxyType({})
) -> list[Row]:
    """A stream as the broker returns it; its entries refer to ``files``, by digest."""
    return [
        Row(
            cursor.decode(),
            fields[b"t"].decode(),
            fields[b"a"].decode(),
            fields[b"y"].decode(),
            orjson.loads(fill(fields[b"e"], files)),
        )
        for cursor, fields in stream
    ]
