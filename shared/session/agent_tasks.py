"""An owner's tasks with an agent, for protocols whose clients list them: the newest of those that came by these protocols.

The list is a hint, at the primary; the tasks' own hashes are the truth. A task is noted before it is submitted.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef, agent_tasks
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.session.task_list import TaskList

# Tasks that a list remembers.
MOST_TASKS = 1000

# One that is noted and not to be found may yet be submitted.
YOUNG_MS = 60_000

_FIELDS = ("status", "agent", "ran", "submitted", "launched", "started", "parked", "ended")


class ListedTask(NamedTuple):
    """A task, its status, whether a worker ever had it, and since when it has that status, Unix milliseconds."""

    ref: TaskRef
    status: str
    begun: bool
    at: int


class AgentTasks(Retrying):
    """Keeps and reads the lists."""

    def __init__(self, primary: Redis, tasks: TaskList, ttl_ms: int) -> None:
        self._primary = primary
        self._tasks = tasks
        self._ttl_ms = ttl_ms

    async def note(self, ref: TaskRef, agent: str) -> None:
        """Put a task that is about to be submitted on the list."""
        key = agent_tasks(ref.owner, agent)
        await asyncio.gather(
            command(self._primary, "ZADD", key, _now(), f"{ref.session}/{ref.task}"),
            command(self._primary, "ZREMRANGEBYRANK", key, 0, -MOST_TASKS - 1),
            command(self._primary, "PEXPIRE", key, self._ttl_ms),
        )

    @whole
    async def all(self, owner: str, agent: str) -> list[ListedTask]:
        """All that there are, in no order; what is gone is taken off the list."""
        key = agent_tasks(owner, agent)
        flat: list[bytes] = await command(self._primary, "ZRANGE", key, 0, -1, "WITHSCORES")
        refs = [TaskRef(owner, *name.decode().split("/")) for name in flat[::2]]
        told = await self._tasks.read(refs, _FIELDS)
        young = _now() - YOUNG_MS
        gone = [
            name
            for name, noted, fields in zip(flat[::2], flat[1::2], told, strict=True)
            if "status" not in fields and float(noted) < young
        ]
        if gone:
            await command(self._primary, "ZREM", key, *gone)
        return [
            _listed(ref, fields)
            for ref, fields in zip(refs, told, strict=True)
            if fields.get("agent") == agent and "status" in fields
        ]


def _listed(ref: TaskRef, fields: dict[str, str]) -> ListedTask:
    status = fields["status"]
    at = int(fields.get("parked" if status == TaskStatus.PARKED else "ended") or 0)
    live = max(int(fields.get(name) or 0) for name in ("submitted", "launched", "started"))
    return ListedTask(ref, status, fields.get("ran", "0") != "0", at or live)


def _now() -> int:
    return int(time.time() * 1000)
