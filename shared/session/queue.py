"""The launch queue: how a front end asks for a worker, and how a worker claims what is asked.

What launches is arq, which only this module, worker/arq_worker.py and the key names know (docs/design.md). The job is written as arq's own
``enqueue_job`` writes it (JSON instead of pickle, ids only), but in one round trip, and a claimed job
leaves the queue at once: our lease owns it from then on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import TaskRef

# The one function that workers run.
FUNCTION = "run_task"

# How long an unclaimed job is kept. The task itself lives at least as long, and a launch that expired
# is launched again by the rescuer.
JOB_MS = 86_400_000

# Tasks that the operator's list remembers.
MOST_RECENT = 10_000

# A task that is queued but not launched, or claimed but not begun, is looked at after this. It must be longer
# than a launch takes to be put into the queue, or a claimed one to begin; too long, and a crash in between is felt.
LAUNCH_GRACE_MS = 3_000

# When a launch is looked at that was put into the queue, if nobody wanted an earlier look.
QUEUED_LOOK_MS = 10_000

# How often one is looked at that a rescuer found to wait, there or for another turn of its session: for its deadline, and
# to keep its session. That a launch is lost shows otherwise: the queue knows how many it has (`LaunchQueue.lost`), and what
# was claimed has an early hint; so has a turn that others wait for, before it is ended.
BACKLOG_LOOK_MS = 7_200_000

# The hint that stands for all live tasks: who takes it has each of them looked at (worker/recall.py). While nothing was
# lost it is dated so far ahead that it is never due; that it is there says so.
ALL = "*"

_launch = Script("launch")
_lost = Script("lost")
_claim = Script("claim")
_remind = Script("remind")
_due = Script("due")
_recall = Script("recall")
_redate = Script("redate")


@dataclass(frozen=True, slots=True)
class Job:
    """One launch in the queue."""

    ref: TaskRef
    launch: int

    @property
    def id(self) -> str:
        """The arq job id; a repeated launch has the same, so it cannot queue twice."""
        return f"{self.ref}:{self.launch}"


def serialize(job: dict[str, Any]) -> bytes:
    """A job as arq writes it, but in JSON. The default is pickle: whoever can write to the broker could run code."""
    return orjson.dumps(job)


def deserialize(data: bytes) -> dict[str, Any]:
    """Read what `serialize` wrote."""
    job: dict[str, Any] = orjson.loads(data)
    return job


def queued_at(data: bytes) -> int:
    """Unix milliseconds at which a job was queued; 0 when it does not say so."""
    try:
        return int(deserialize(data)["et"])
    except (ValueError, TypeError, KeyError):
        return 0


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of who claims.

    An owner may hold ``share`` of all slots that are free or its own. So one owner leaves some free, a second one
    takes its share of these, and so on: whoever comes finds a slot, until there are many. With 1, each may hold all.

    Attributes:
        free: how many are free.
        share: above 0, at most 1.
        held: owner → how many it holds.
    """

    free: int
    share: float
    held: Mapping[str, int]

    def words(self, count: int) -> list[str | int]:
        """As lua/claim.lua wants them, to claim ``count``: the owners that may meet their share by it."""
        if self.share >= 1:
            return [self.free, 0]
        times = round(self.share / (1 - self.share), 6)
        words: list[str | int] = [self.free, str(times)]
        for owner, holds in self.held.items():
            if holds + count >= times * (self.free - count):
                words += [owner, holds]
        return words


ANY = Slots(0, 1.0, {})


class LaunchQueue:
    """The queue, and the hints that tell rescuers when to look at a task."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        # Launches that waited when this process looked last, or launched something.
        self.waiting = 0

    async def launch(self, ref: TaskRef, number: int, *, if_queued: str = "") -> bool:
        """Queue launch ``number`` of a task and ring the doorbell; safe to repeat.

        With ``if_queued``, the key of the task's hash on this server, only if the task waits for that launch;
        False when it does not.
        """
        job = Job(ref, number)
        payload = serialize(
            {"t": None, "f": FUNCTION, "a": [str(ref), number], "k": {}, "et": int(time.time() * 1000)}
        )
        queue = (keys.QUEUE, keys.QUEUE_TAGS, keys.job(job.id), keys.RECENT, keys.LIVE, keys.DUE)
        waiting: int = await _launch(
            self._redis,
            (*queue, if_queued) if if_queued else queue,
            (
                job.id,
                ref.owner,
                payload,
                JOB_MS,
                keys.DOORBELL,
                str(ref),
                MOST_RECENT,
                QUEUED_LOOK_MS,
                number,
            ),
        )
        if waiting < 0:
            return False
        self.waiting = waiting
        return True

    async def claim(self, count: int, look_ms: int = LAUNCH_GRACE_MS, slots: Slots = ANY) -> dict[str, bytes]:
        """Take up to ``count`` launches out of the queue, owners in turn: job ids and jobs, in the order to run them.

        After ``look_ms`` a rescuer looks whether they were begun, and are still held. Launches of owners that hold
        their share of the ``slots`` are left where they are.
        """
        claimed: list[bytes] = await _claim(
            self._redis,
            (keys.QUEUE, keys.QUEUE_TAGS, keys.DUE, keys.job("")),
            (count, look_ms, *slots.words(count)),
        )
        jobs = zip(claimed[::2], claimed[1::2], strict=True)
        return {job.decode(errors="replace"): payload for job, payload in jobs}

    async def lost(self) -> bool:
        """Whether the queue lost launches since this was asked last; `ALL` is due then."""
        return bool(await _lost(self._redis, (keys.QUEUE, keys.QUEUE_TAGS, keys.DUE), (ALL,)))

    async def depth(self) -> int:
        """How many launches wait."""
        self.waiting = int(await command(self._redis, "ZCARD", keys.QUEUE))
        return self.waiting

    async def try_writing(self) -> None:
        """Nothing, by a command that a read-only broker refuses; a full one still keeps leases and hints.

        Raises:
            redis.exceptions.RedisError, OSError: the broker takes no writes.
        """
        await command(self._redis, "ZREM", keys.DUE, "-")

    async def remind(self, ref: TaskRef, ms: int) -> None:
        """Have a rescuer look at the task in ``ms`` at the latest. Await it before what it is for."""
        await _remind(self._redis, (keys.DUE,), (str(ref), ms))

    async def note(self, ref: TaskRef) -> None:
        """Put a task that is not launched yet on the operators' lists, and have a rescuer look at it."""
        await _remind(self._redis, (keys.DUE, keys.RECENT, keys.LIVE), (str(ref), QUEUED_LOOK_MS))

    async def ended(self, ref: TaskRef, op: str) -> None:
        """Count a task no more that has ended: neither as live nor against its owner's limit; ``op`` made it.

        Should this be lost, workers notice the one, and front ends the other when it matters.
        """
        await asyncio.gather(
            command(self._redis, "ZREM", keys.LIVE, str(ref)),
            command(self._redis, "ZREM", keys.owner_turns(ref.owner), keys.admission(ref, op)),
        )

    async def due(self, count: int, again_ms: int, servers: Sequence[str] = ()) -> tuple[int, list[bytes]]:
        """Take hints whose time has come; each is due again in ``again_ms`` unless it is re-dated.

        `ALL` is among them when hints may be missing: they were deleted, or one of the ``servers`` (see
        `turnstream.shared.broker.client.incarnation`) is another one than before.

        Returns the date that they have meanwhile, too: `redate` wants it.
        """
        again, *hints = await _due(self._redis, (keys.DUE, keys.CLOCK), (count, again_ms, ALL, *servers))
        return int(again), hints

    async def recall(self, refs: Sequence[TaskRef]) -> None:
        """Have rescuers look at these tasks now, and operators see them, whatever was noted of them."""
        if refs:
            await _recall(self._redis, (keys.DUE, keys.LIVE), tuple(map(str, refs)))

    async def forget(self, hint: bytes) -> None:
        """Drop a hint that names no task."""
        await command(self._redis, "ZREM", keys.DUE, hint)

    async def redate(self, ref: TaskRef | str, ms: int, taken: int) -> int:
        """Look at the task again in ``ms``; never again when negative. Returns the date that its hint has now.

        Not if the hint is no more the one that was ``taken``: then somebody needs an earlier look. 0 says so.
        """
        return int(await _redate(self._redis, (keys.DUE,), (str(ref), ms, taken)))
