"""An owner's tasks with an agent, for protocols whose clients list them: the newest of those that came by these protocols.

The lists are hints, at the primary; the tasks' own hashes are the truth. A task is noted before it is submitted. Who lists reads
the hashes of those that had not ended, moves those that have to a list by their ends, and of that only what a page shows: so the
cost of a page is that of the page, whatever is on the list.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef, agent_tasks, agent_tasks_ended
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.session.status import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redis.asyncio import Redis

    from turnstream.shared.session.task_list import TaskList

# Tasks that a list remembers: of those that have not ended, and of those that have.
MOST_TASKS = 1000

# One that is noted and not to be found may yet be submitted.
YOUNG_MS = 60_000

_FIELDS = ("status", "agent", "ran", "submitted", "launched", "started", "parked", "ended")

# In the list of those that have ended: `_ENDS` times the time, and how.
_ENDS = 4
_CODES = {TaskStatus.COMPLETED.value: 1, TaskStatus.FAILED.value: 2, TaskStatus.CANCELED.value: 3}
_STATUSES = {code: status for status, code in _CODES.items()}

# A place in a list: a page begins behind one.
Place: TypeAlias = "tuple[int, str]"


class ListedTask(NamedTuple):
    """A task, its status, whether a worker ever had it, and since when it has that status, Unix milliseconds."""

    ref: TaskRef
    status: str
    begun: bool
    at: int

    @property
    def place(self) -> Place:
        """Where it is in the lists."""
        return self.at * _ENDS + _CODES.get(self.status, 0), _name(self.ref)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks are meant.

    Attributes:
        since: whose state is not older than this, Unix milliseconds.
        fits: whether one is meant, whatever its age; None: all are.
        ended: whether one that has ended can be.
    """

    since: int = 0
    fits: Callable[[ListedTask], bool] | None = None
    ended: bool = True

    def of(self, tasks: Iterable[ListedTask]) -> list[ListedTask]:
        """Those of these that are meant."""
        return [each for each in tasks if each.at >= self.since and (self.fits is None or self.fits(each))]


@dataclass(frozen=True, slots=True)
class ListedPage:
    """Tasks, how many there are in all, and whether there are more behind these."""

    tasks: list[ListedTask]
    total: int
    more: bool


class AgentTasks(Retrying):
    """Keeps and reads the lists."""

    def __init__(self, primary: Redis, tasks: TaskList, ttl_ms: int) -> None:
        self._primary = primary
        self._tasks = tasks
        self._ttl_ms = ttl_ms

    async def note(self, ref: TaskRef, agent: str) -> None:
        """Put a task that is about to be submitted on the list."""
        await self._keep(agent_tasks(ref.owner, agent), {_name(ref): _now()})

    @whole
    async def page(
        self, owner: str, agent: str, wanted: Wanted, limit: int, after: Place | None = None
    ) -> ListedPage:
        """So many of those that are meant, those whose state is the newest first, behind a place.

        What is gone is taken off the lists when a page meets it; until then it counts.
        """
        while True:
            live = wanted.of(await self._live(owner, agent))
            ended, total = (
                await self._ended(owner, agent, wanted, limit + 1, after) if wanted.ended else ([], 0)
            )
            behind = [each for each in live if after is None or each.place < after]
            # Who has ended since is told once, as it is by now.
            tasks = {each.ref: each for each in [*behind, *ended]}.values()
            shown = sorted(tasks, key=lambda each: each.place, reverse=True)[: limit + 1]
            if await self._are_there(owner, agent, [each for each in shown if each.status in TERMINAL]):
                return ListedPage(shown[:limit], len(live) + total, len(shown) > limit)

    async def _live(self, owner: str, agent: str) -> list[ListedTask]:
        """Those that have not ended; the others are moved."""
        key = agent_tasks(owner, agent)
        flat: list[bytes] = await command(self._primary, "ZRANGE", key, 0, -1, "WITHSCORES")
        refs = [_ref(owner, name) for name in flat[::2]]
        told = await self._tasks.read(refs, _FIELDS) if refs else []
        young = _now() - YOUNG_MS
        live: list[ListedTask] = []
        ended: list[ListedTask] = []
        gone: list[str] = []
        for ref, noted, fields in zip(refs, flat[1::2], told, strict=True):
            if "status" not in fields:
                if float(noted) < young:
                    gone.append(_name(ref))
            elif fields.get("agent") == agent:
                task = _listed(ref, fields)
                (ended if task.status in TERMINAL else live).append(task)
        if ended:
            # First there, then no more here: who lists meanwhile meets them at least once.
            await self._keep(
                agent_tasks_ended(owner, agent),
                {name: score for score, name in (each.place for each in ended)},
            )
        if gone or ended:
            await command(self._primary, "ZREM", key, *gone, *(_name(each.ref) for each in ended))
        return live

    async def _ended(
        self, owner: str, agent: str, wanted: Wanted, most: int, after: Place | None
    ) -> tuple[list[ListedTask], int]:
        """So many of those that have ended, behind a place, as the list has them; and how many there are in all."""
        key, least = agent_tasks_ended(owner, agent), wanted.since * _ENDS
        if wanted.fits is not None:
            # Names alone.
            flat = await command(self._primary, "ZREVRANGEBYSCORE", key, "+inf", least, "WITHSCORES")
            fitting = wanted.of(_told(owner, flat))
            return [each for each in fitting if after is None or each.place < after][:most], len(fitting)
        first = "+inf" if after is None else after[0]
        found: list[ListedTask] = []
        at, total = 0, int(await command(self._primary, "ZCOUNT", key, least, "+inf"))
        while len(found) < most:
            limit = ("LIMIT", at, most)
            flat = await command(self._primary, "ZREVRANGEBYSCORE", key, first, least, "WITHSCORES", *limit)
            # Some may have ended in the same millisecond as the last one of the page before.
            found += [each for each in _told(owner, flat) if after is None or each.place < after]
            at += most
            if len(flat) < 2 * most:
                break
        return found[:most], total

    async def _are_there(self, owner: str, agent: str, ended: list[ListedTask]) -> bool:
        """Whether tasks are as the list has them; those that are not are taken off it."""
        told = await self._tasks.read([each.ref for each in ended], ("status", "agent"))
        # A broker that lost the end of its log knows such a task as one that goes on.
        wrong = {
            _name(each.ref): fields
            for each, fields in zip(ended, told, strict=True)
            if (fields.get("status"), fields.get("agent")) != (each.status, agent)
        }
        if not wrong:
            return True
        if back := [name for name, fields in wrong.items() if fields.get("agent") == agent]:
            await self._keep(agent_tasks(owner, agent), dict.fromkeys(back, _now()))
        await command(self._primary, "ZREM", agent_tasks_ended(owner, agent), *wrong)
        return False

    async def _keep(self, key: str, names: dict[str, int]) -> None:
        pairs = [each for name, score in names.items() for each in (score, name)]
        await asyncio.gather(
            command(self._primary, "ZADD", key, *pairs),
            command(self._primary, "ZREMRANGEBYRANK", key, 0, -MOST_TASKS - 1),
            command(self._primary, "PEXPIRE", key, self._ttl_ms),
        )


def _name(ref: TaskRef) -> str:
    return f"{ref.session}/{ref.task}"


def _ref(owner: str, name: bytes) -> TaskRef:
    return TaskRef(owner, *name.decode().split("/"))


def _told(owner: str, flat: list[bytes]) -> list[ListedTask]:
    """What the list of those that have ended tells."""
    tasks = []
    for name, score in zip(flat[::2], flat[1::2], strict=True):
        at, code = divmod(int(float(score)), _ENDS)
        tasks.append(ListedTask(_ref(owner, name), _STATUSES[code], begun=True, at=at))
    return tasks


def _listed(ref: TaskRef, fields: dict[str, str]) -> ListedTask:
    status = fields["status"]
    at = int(fields.get("parked" if status == TaskStatus.PARKED else "ended") or 0)
    live = max(int(fields.get(name) or 0) for name in ("submitted", "launched", "started"))
    return ListedTask(ref, status, fields.get("ran", "0") != "0", at or live)


def _now() -> int:
    return int(time.time() * 1000)
