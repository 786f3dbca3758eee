"""What the whole deployment is doing, as any front end can tell from the broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.presence import FORGOTTEN_SECONDS, SILENT_SECONDS, Sign, read_signs
from turnstream.shared.session.queue import queued_at
from turnstream.shared.session.status import LIVE
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.session.task_list import TaskList

# For how long an overview is told again: consoles, scrapers and operators ask often, and reading costs.
FRESH_SECONDS = 1.0

# Tasks that are counted by status; of more than these, the newest.
MOST_COUNTED = 5000
_AT_ONCE = 500

# Launches among which the oldest is looked for: owners are served in turn, so it is near the head.
_HEAD = 100

# What each role tells beside its age and version, and what is shown where it does not.
_WORKER = {"running": 0, "max_jobs": 0, "draining": False, "retiring": False, "paused": False}
_FRONT_END = {"followers": 0}


class DeploymentStats(Retrying):
    """Reads it, at most once in a moment."""

    def __init__(self, broker: Broker, tasks: TaskList) -> None:
        self._broker = broker
        self._tasks = tasks
        self._reading = asyncio.Lock()
        self._told: dict[str, Any] = {}
        self._until = 0.0

    async def stats(self) -> dict[str, Any]:
        """Queue, tasks, processes and totals; a second old at most.

        Raises:
            redis.exceptions.RedisError, OSError: the broker's trouble.
        """
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() >= self._until:
                self._told = await self._stats()
                self._until = loop.time() + FRESH_SECONDS
        return {"now": round(time.time(), 3), **self._told}

    async def workers(self) -> list[dict[str, Any]]:
        """The workers that showed signs of life in the last minute, by name."""
        signs = await self._living(keys.WORKERS)
        return [{**_process("worker", sign, _WORKER), "agents": sign.agents()} for sign in signs]

    async def front_ends(self) -> list[dict[str, Any]]:
        """The front ends that did."""
        return [_process("front_end", sign, _FRONT_END) for sign in await self._living(keys.FRONT_ENDS)]

    async def models(self) -> list[list[str]]:
        """The names of the models that each worker's agents have."""
        signs = await self._living(keys.WORKERS)
        return [list(map(str, sign.value("models", []))) for sign in signs]

    @whole
    async def _stats(self) -> dict[str, Any]:
        primary = self._broker.primary
        workers = [each for each in await self.workers() if not each["silent"]]
        front_ends = [each for each in await self.front_ends() if not each["silent"]]
        depth = int(await command(primary, "ZCARD", keys.QUEUE))
        totals: dict[bytes, bytes] = await command(primary, "HGETALL", keys.TOTALS)
        return {
            "version": VERSION,
            "queue": {"depth": depth, "oldest_seconds": await self._oldest() if depth else 0.0},
            "tasks": await self._by_status(),
            "workers": {
                "count": len(workers),
                "slots": sum(
                    each["max_jobs"] for each in workers if not (each["draining"] or each["paused"])
                ),
                "running": sum(each["running"] for each in workers),
                "draining": sum(each["draining"] for each in workers),
            },
            "front_ends": {
                "count": len(front_ends),
                "followers": sum(each["followers"] for each in front_ends),
            },
            "totals": {name.decode(): int(n) for name, n in totals.items() if _is_count(name, n)},
        }

    async def _by_status(self) -> dict[str, Any]:
        primary = self._broker.primary
        listed = int(await command(primary, "ZCARD", keys.LIVE))
        counted: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for at in range(0, min(listed, MOST_COUNTED), _AT_ONCE):
            refs: list[bytes] = await command(primary, "ZREVRANGE", keys.LIVE, at, at + _AT_ONCE - 1)
            for status, reason in await self._tasks.states(refs):
                counted[status] += 1
                if reason:
                    waiting[reason] += 1
        uncounted = max(0, listed - MOST_COUNTED)
        live = sum(counted[status] for status in LIVE) + uncounted
        return {
            "live": live,
            **{status: counted[status] for status in sorted(LIVE)},
            "waiting": dict(waiting),
            "partial": uncounted > 0,
        }

    async def _oldest(self) -> float:
        """How long the oldest launch has waited, in seconds."""
        primary = self._broker.primary
        jobs: list[bytes] = await command(primary, "ZRANGE", keys.QUEUE, 0, _HEAD - 1)
        if not jobs:
            return 0.0
        payloads: list[bytes | None] = await command(
            primary, "MGET", *(keys.job(job.decode(errors="replace")) for job in jobs)
        )
        queued = [since for payload in payloads if payload is not None and (since := queued_at(payload))]
        return round(max(0.0, time.time() - min(queued) / 1000), 3) if queued else 0.0

    async def _living(self, listed: str) -> list[Sign]:
        signs = read_signs(await command(self._broker.primary, "HGETALL", listed))
        now = time.time()
        return [sign for sign in signs if sign.seen > now - FORGOTTEN_SECONDS]


def _process(kind: str, sign: Sign, fields: dict[str, int]) -> dict[str, Any]:
    host, _, pid = sign.name.rpartition("-")[0].rpartition("-")
    return {
        kind: sign.name,
        "host": host,
        "pid": int(pid) if pid.isdecimal() else 0,
        "version": sign.version,
        "started_at": sign.started,
        "seen_at": sign.seen,
        "silent": sign.seen < time.time() - SILENT_SECONDS,
        **{name: sign.value(name, default) for name, default in fields.items()},
    }


def _is_count(name: bytes, value: bytes) -> bool:
    return name.isascii() and value.isascii() and value.isdigit()
