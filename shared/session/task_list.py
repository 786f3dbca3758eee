"""Which tasks there are, newest first, for operators: read from two bounded lists and the tasks' own hashes.

``ts:live`` names every task that has not ended (and for a moment some that have), ``ts:recent`` the newest
ones whatever became of them. Both are hints: the task's hash is the truth, and what it says is told.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import Retrying, is_transient, whole
from turnstream.shared.session import model_calls
from turnstream.shared.session.batch import MODEL_CALLS
from turnstream.shared.session.status import LIVE, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from turnstream.shared.broker.client import Broker

# Refs taken from the lists at once, and tasks looked at for one page: a filter that few tasks fit
# is answered in several pages, none of which holds the broker for long.
REFS_AT_ONCE = 500
MOST_LOOKED_AT = 1000

# Refs gone through for one page: an owner of few tasks may be asked for among the tasks of very many.
MOST_PASSED = 10_000

# How far the clocks of front ends and broker may be apart.
CLOCKS_SECONDS = 60.0

# What is looked through for a text.
_SEARCHED = ("ref", "agent", "user", "worker", "why", "error")

_FIELDS = (
    "status", "agent", "user", "launch", "attempt", "ran", "crashes", "worker", "ended_by", "submitted",
    "started", "ended", "deadline", "parked_until", "pending", "why", "response", "number",
    "waits_for", "not_before", "agent_version", "error", "usage",
)  # fmt: skip

# A task's times as the hash names them → as operators see them.
_TIMES = (
    ("submitted", "submitted_at"),
    ("started", "started_at"),
    ("ended", "ended_at"),
    ("deadline", "deadline_at"),
    ("parked_until", "parked_until"),
)

# What a task that has ended tells of its usage.
_SPENT = ("input_tokens", "output_tokens", "cost_usd")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks are meant; empty fields match any. Ages are seconds since the submit.

    ``worker`` is the one that had the task last, ``why`` the code of its end. ``search`` is part of the task's ref, agent, user, worker,
    code or error, in any case.
    """

    status: frozenset[str] = field(default_factory=frozenset)
    agent: str = ""
    owner: str = ""
    user: str = ""
    session: str = ""
    older_than: float = 0.0
    younger_than: float = 0.0
    worker: str = ""
    why: str = ""
    search: str = ""

    def over(self, place: Place, now: float) -> bool:
        """Whether all that come after this place are too old: no task is launched before it is submitted."""
        return bool(self.younger_than) and place.ms < (now - self.younger_than - CLOCKS_SECONDS) * 1000

    def fits_ref(self, ref: TaskRef) -> bool:
        """What can be told without reading the task."""
        return (not self.owner or ref.owner == self.owner) and (
            not self.session or ref.session == self.session
        )

    def fits(self, row: dict[str, Any], now: float) -> bool:
        """Whether the task, as `TaskList` tells it, is meant."""
        since = now - row["submitted_at"]
        return (
            (not self.status or row["status"] in self.status)
            and (not self.agent or row["agent"] == self.agent)
            and (not self.user or row.get("user") == self.user)
            and (not self.older_than or since >= self.older_than)
            and (not self.younger_than or since <= self.younger_than)
            and (not self.worker or row.get("worker") == self.worker)
            and (not self.why or row.get("why") == self.why)
            and (not self.search or self._finds(row))
        )

    def _finds(self, row: dict[str, Any]) -> bool:
        text = self.search.casefold()
        return any(text in str(row.get(name, "")).casefold() for name in _SEARCHED)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the lists: when the task was first launched (Unix ms), and its ref."""

    ms: float
    ref: str

    def __str__(self) -> str:
        return f"{self.ms:.0f}:{self.ref}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a place.

        Raises:
            ValueError: it is none.
        """
        ms, _, ref = text.partition(":")
        return cls(float(int(ms)), str(TaskRef.parse(ref)))


class TaskList(Retrying):
    """Reads the lists."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @whole
    async def page(
        self, wanted: Filter, limit: int, after: Place | None
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """Up to ``limit`` tasks that come after the place, newest first, and where to go on; None: there are no more.

        A page may hold fewer, even none, and yet not be the last one.
        """
        lists = (keys.LIVE,) if wanted.status and wanted.status <= LIVE else (keys.LIVE, keys.RECENT)
        found: list[dict[str, Any]] = []
        looked_at = passed = 0
        while True:
            places = await self._places(lists, after)
            for at in range(0, len(places), limit):
                some = places[at : at + limit]
                refs = [
                    ref for place in some if (ref := _ref(place.ref)) is not None and wanted.fits_ref(ref)
                ]
                rows = {row["ref"]: row for row in await self.rows(refs)}
                looked_at += len(refs)
                passed += len(some)
                now = time.time()
                for place in some:
                    after = place
                    if wanted.over(place, now):
                        return found, None
                    row = rows.get(place.ref)
                    if row is not None and wanted.fits(row, now):
                        found.append(row)
                        if len(found) == limit:
                            return found, after
                if looked_at >= MOST_LOOKED_AT or passed >= MOST_PASSED:
                    return found, after
            if len(places) < REFS_AT_ONCE:
                return found, None

    @whole
    async def rows(self, refs: Sequence[TaskRef]) -> list[dict[str, Any]]:
        """What there is to tell of these tasks; those that are gone are left out."""
        told = await self.read(refs, _FIELDS)
        now = time.time()
        rows = (_row(ref, fields, now) for ref, fields in zip(refs, told, strict=True) if "status" in fields)
        return [row for row in rows if row is not None]

    async def attempts(self, ref: TaskRef) -> list[dict[str, Any]]:
        """The task's newest attempts that workers had, oldest first: when each began, at which worker, and why it did."""
        names = ("tries", "ran", "started", "worker")
        (fields,) = await self.read([ref], names)
        tries = fields.get("tries", "")
        if not tries and int(fields.get("ran") or 0) and fields.get("worker"):
            tries = f"1 {fields.get('started', '0')} 0 0 - {fields['worker']}"
        return _attempts(tries)

    async def model_calls(self, ref: TaskRef) -> dict[str, Any]:
        """The task's requests to models, as far as they are kept: `turnstream.shared.session.model_calls.told`."""
        at = ref.keys
        # What a turn keeps while it lives moves to the task's hash with its end: read in this order it is in one of both.
        kept = await command(self._broker.sessions, "HGET", at.state(ref.task), MODEL_CALLS)
        ended = await command(self._broker.sessions, "HGET", at.task(ref.task), MODEL_CALLS)
        return model_calls.told(ended or kept)

    async def states(self, entries: Sequence[bytes]) -> list[tuple[str, str]]:
        """The tasks' statuses by the entries of a list, ``gone`` where there is none, and what they wait for, if anything."""
        refs = [ref for ref in map(_ref, entries) if ref is not None]
        now = time.time()
        return [
            (fields.get("status", "gone"), (waiting(fields, now) or {}).get("reason", ""))
            for fields in await self.read(refs, ("status", "waits_for", "not_before"))
        ]

    async def read(self, refs: Sequence[TaskRef], names: Sequence[str]) -> list[dict[str, str]]:
        """These fields of the tasks' hashes, in one round trip; none of one that cannot be read."""
        replies: list[list[bytes | None] | BaseException] = await asyncio.gather(
            *(command(self._broker.sessions, "HMGET", ref.keys.task(ref.task), *names) for ref in refs),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException) and (
                not isinstance(reply, ResponseError) or is_transient(reply)
            ):
                raise reply
        return [
            {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}
            if not isinstance(values, BaseException)
            else {}
            for values in replies
        ]

    async def _places(self, lists: Iterable[str], after: Place | None) -> list[Place]:
        """The next places of the lists together, newest first, `REFS_AT_ONCE` unless there are no more."""
        merged: dict[str, Place] = {}
        for each in lists:
            for place in await self._of(each, after):
                merged.setdefault(place.ref, place)
        return sorted(merged.values(), reverse=True)[:REFS_AT_ONCE]

    async def _of(self, listed: str, after: Place | None) -> list[Place]:
        highest = "+inf" if after is None else f"{after.ms:.0f}"
        offset = 0
        left: list[Place] = []
        while True:
            flat: list[bytes] = await command(
                self._broker.primary,
                "ZREVRANGEBYSCORE", listed, highest, "-inf", "WITHSCORES", "LIMIT", offset, REFS_AT_ONCE,
            )  # fmt: skip
            places = [
                Place(float(flat[at + 1]), flat[at].decode(errors="replace")) for at in range(0, len(flat), 2)
            ]
            # Of those of the same millisecond, the ones that were told already come first.
            left += [
                place for place in places if (after is None or place < after) and math.isfinite(place.ms)
            ]
            if len(left) >= REFS_AT_ONCE or len(places) < REFS_AT_ONCE:
                return left
            offset += REFS_AT_ONCE


def waiting(fields: dict[str, str], now: float) -> dict[str, Any] | None:
    """Why a queued task is not launched yet, and until when; None: it is, or only another turn is in its way."""
    until = int(fields.get("not_before") or 0) / 1000
    if fields.get("status") != TaskStatus.QUEUED or until <= now:
        return None
    return {"reason": fields.get("waits_for", ""), "until": until}


def _attempts(tries: str) -> list[dict[str, Any]]:
    """Read the lines that begin.lua writes; what it could not have written is left out."""
    found: list[dict[str, Any]] = []
    crashes = begun = 0
    for line in tries.splitlines():
        try:
            number, at, lost, parked, reason, worker = line.split(" ")
            row: dict[str, Any] = {"attempt": int(number), "began_at": int(at) / 1000, "worker": worker}
            now_lost, now_parked = int(lost), int(parked)
        except ValueError:
            metrics.unreadable.add("attempts")
            continue
        if found and now_lost > crashes:
            row["because"] = "worker_lost"
        elif reason != "-":
            row["because"] = reason
        elif found:
            row["because"] = "answered" if now_parked > begun else "released"
        crashes, begun = now_lost, int(at)
        found.append(row)
    return found


def _ref(entry: str | bytes) -> TaskRef | None:
    """The task that an entry of a list names, if it names one."""
    try:
        return TaskRef.parse(entry)
    except ValueError:
        metrics.unreadable.add("listed task")
        return None


def _row(ref: TaskRef, fields: dict[str, str], now: float) -> dict[str, Any] | None:
    """What there is to tell of a task; None if its hash is not as this release writes it."""
    try:
        return _told(ref, fields, now)
    except (KeyError, ValueError):
        metrics.unreadable.add("listed task")
        return None


def _told(ref: TaskRef, fields: dict[str, str], now: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ref": str(ref),
        "owner": ref.owner,
        "session": ref.session,
        "task": ref.task,
        "agent": fields["agent"],
        "status": fields["status"],
        "waits_for_turn": fields["status"] == TaskStatus.QUEUED and fields["launch"] == "0",
        # Whoever ends a task from outside takes an attempt, too, which runs nothing.
        "attempt": int(fields.get("ran", fields["attempt"])),
        "launch": int(fields["launch"]),
        "crashes": int(fields["crashes"]),
        "pending_calls": max(0, int(fields["pending"])),
        "events": int(fields["number"]),
        "response": fields["response"],
    }
    for name in ("agent_version", "user", "worker", "ended_by", "why", "error"):
        if fields.get(name):
            row[name] = fields[name]
    usage: dict[str, Any] = orjson.loads(fields.get("usage") or "{}")
    row |= {name: usage[name] for name in _SPENT if name in usage}
    for name, told in _TIMES:
        if fields.get(name, "0") != "0":
            row[told] = int(fields[name]) / 1000
    if (waits := waiting(fields, now)) is not None:
        row["waiting"] = waits
    if row["status"] in LIVE:
        row.pop("ended_at", None)
        row.pop("ended_by", None)
    row["age"] = round(max(0.0, now - row["submitted_at"]), 3)
    if "started_at" in row:
        row["took"] = round(max(0.0, row.get("ended_at", now) - row["started_at"]), 3)
    return row
