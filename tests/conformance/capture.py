"""What the checker looks at: the bytes of a whole answer, how they came, and what is known beside them.

Reading is lenient on purpose. A capture that breaks one rule is still read as far as possible, so that
this rule is named and the others are not drowned in what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]
Wire: TypeAlias = Literal["agentscope", "java", "liteagent"]


@dataclass(frozen=True)
class Frame:
    """One SSE frame: its lines without the empty one that ends it."""

    lines: tuple[bytes, ...]

    def _field(self, name: bytes) -> bytes | None:
        values = [
            line.partition(b":")[2].removeprefix(b" ")
            for line in self.lines
            if line.partition(b":")[0] == name
        ]
        return b"\n".join(values) if values else None

    @cached_property
    def id(self) -> str:
        """Its cursor, or empty."""
        return (self._field(b"id") or b"").decode(errors="replace")

    @cached_property
    def event(self) -> str:
        """Its event name, or empty."""
        return (self._field(b"event") or b"").decode(errors="replace")

    @cached_property
    def data(self) -> bytes | None:
        """Its data as bytes; None without any."""
        return self._field(b"data")

    @cached_property
    def json(self) -> Json:
        """Its data as an object; empty when it is none, and for heartbeats."""
        try:
            value = orjson.loads(self.data or b"")
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def comment(self) -> bool:
        """Whether it says nothing to any client."""
        return all(line.startswith(b":") for line in self.lines)

    @property
    def seq(self) -> int:
        """The place that its cursor names; -1 without one."""
        _, _, seq = self.id.partition("-")
        return int(seq) if seq.isdigit() else -1

    @property
    def raw(self) -> bytes:
        """The frame as bytes."""
        return b"\n".join(self.lines) + b"\n\n"


def read(body: bytes) -> tuple[Frame, ...]:
    """Split a body into frames, whatever ends its lines; what is cut off at the end is a frame too."""
    body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    blocks = [block.strip(b"\n") for block in body.split(b"\n\n")]
    return tuple(Frame(tuple(block.split(b"\n"))) for block in blocks if block)


@dataclass(frozen=True)
class Capture:
    """A stream as it came.

    Attributes:
        wire: which dialect it is written in.
        reads: the network reads; joined, they are the body. An event stream of several turns, one after
            the other, is allowed.
        stream: whether the answer was asked for piece by piece.
        resumed: whether it begins after a cursor instead of at a task's first event.
        history: the body of ``GET /history`` for the session; None when it was not asked for.
        chosen: the response ids that the client chose.
    """

    wire: Wire
    reads: tuple[bytes, ...]
    stream: bool = True
    resumed: bool = False
    history: bytes | None = None
    chosen: frozenset[str] = field(default_factory=frozenset)

    @property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(self.reads)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """The body's frames, comments and heartbeats among them."""
        return read(self.body)

    @cached_property
    def said(self) -> tuple[Frame, ...]:
        """The frames that tell something: those whose data is an object that is not empty."""
        return tuple(frame for frame in self.frames if frame.json)

    @cached_property
    def turns(self) -> tuple[tuple[Frame, ...], ...]:
        """The frames that tell something, turn by turn."""
        split = _by_task if self.wire == "liteagent" else _by_end
        return tuple(split(self.said))

    def read_as(self, reads: Iterable[bytes]) -> Capture:
        """The same with other network reads."""
        return replace(self, reads=tuple(reads))

    def rewritten(self, frames: Iterable[Frame]) -> Capture:
        """The same with other frames, each read as a whole."""
        return self.read_as(frame.raw for frame in frames)


ENDS = frozenset({"completed", "failed", "canceled", "rejected"})


def _by_end(frames: tuple[Frame, ...]) -> Iterator[tuple[Frame, ...]]:
    """A response's events end with its terminal one; only then may another response begin."""
    turn: list[Frame] = []
    for frame in frames:
        begins = frame.json.get("object") == "response" and frame.json.get("status") in ("queued", "created")
        ended = any(_terminal(other) for other in turn)
        if begins and ended:
            yield tuple(turn)
            turn = []
        turn.append(frame)
    if turn:
        yield tuple(turn)


def _terminal(frame: Frame) -> bool:
    return frame.json.get("object") == "response" and frame.json.get("status") in ENDS


def _by_task(frames: tuple[Frame, ...]) -> Iterator[tuple[Frame, ...]]:
    turns: dict[str, list[Frame]] = {}
    for frame in frames:
        turns.setdefault(str(frame.json.get("taskId")), []).append(frame)
    return (tuple(turn) for turn in turns.values())


# ── rules ──


@dataclass(frozen=True)
class Violation:
    """A rule that a capture breaks, and how."""

    rule: str
    where: str
    how: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): {self.how}"


Check: TypeAlias = Callable[[Capture], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """One rule of a wire: what it is called, the section of the wire it belongs to, and its check."""

    name: str
    where: str
    check: Check


class Rules:
    """The rules of one wire."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.table: list[Rule] = []

    def rule(self, section: str) -> Callable[[Check], Check]:
        """Add a check; its name is the rule's."""

        def added(check: Check) -> Check:
            self.table.append(Rule(check.__name__, f"{self.wire}: {section}", check))
            return check

        return added

    def adopt(self, others: Rules, *, without: frozenset[str] = frozenset()) -> None:
        """Add what another wire asks for too."""
        for rule in others.table:
            if rule.name not in without:
                self.rule(rule.where.partition(": ")[2])(rule.check)

    def check(self, capture: Capture) -> list[Violation]:
        """Everything about the capture that the wire does not allow."""
        return [Violation(rule.name, rule.where, how) for rule in self.table for how in rule.check(capture)]
