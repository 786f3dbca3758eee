"""The launch queue: how a front end asks for a worker, and how a worker claims what is asked.

What launches is arq, which only this module, worker/arq_worker.py and the key names know (docs/design.md). The job is written as arq's own
``enqueue_job`` writes it (JSON instead of pickle, ids only), but in one round trip, and a claimed job
leaves the queue at once: our lease owns it from then on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import Retrying
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.outcomes import HintUsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from redis.asyncio import Redis

T = TypeVar("T")

# The one function that workers run.
FUNCTION = "run_task"

# How long an unclaimed job is kept. The task itself lives at least as long, and a launch that expired
# is launched again by the rescuer.
JOB_MS = 86_400_000

# Tasks that the operator's list remembers.
MOST_RECENT = 10_000

# Workers that hear of a launch, if there are so many. One of them should have a free slot; if none has, the first that looks
# by itself takes it, within a second.
ENOUGH_RUNG = 16

# A task that is queued but not launched, or claimed but not begun, is looked at after this. It must be longer
# than a launch takes to be put into the queue, or a claimed one to begin; too long, and a crash in between is felt.
LAUNCH_GRACE_MS = 3_000

# The first of these, where the launch goes to the server that has queued it: it was sent with the command that did.
TOGETHER_GRACE_MS = 1_000

# When a launch is looked at that was put into the queue, if nobody wanted an earlier look.
QUEUED_LOOK_MS = 10_000

# How often one is looked at that a rescuer found to wait, there or for another turn of its session: for its deadline, and
# to keep its session. That a launch is lost shows otherwise: the queue knows how many it has (`LaunchQueue.lost`), and what
# was claimed has an early hint; so has a turn that others wait for, before it is ended.
BACKLOG_LOOK_MS = 7_200_000

# The hint that stands for all live tasks: who takes it has each of them looked at (worker/recall.py). While nothing was
# lost it is dated so far ahead that it is never due; that it is there says so.
ALL = "*"

_launch = Script(
    "launch",
    keys=("queue", "tags", "job_key", "recent", "live", "due"),
    optional=("task",),
    args=(
        "job_id",
        "owner",
        "job",
        "job_ms",
        "workers",
        "doorbell",
        "bells",
        "enough",
        "ref",
        "most_recent",
        "look_ms",
        "launch",
    ),
)
_lost = Script("lost", keys=("queue", "tags", "due"), args=("all",))
_claim = Script(
    "claim",
    keys=("queue", "tags", "due", "noted", "job_prefix"),
    args=("most", "look_ms", "free", "times", "holder"),
    rest="holders",
    once=True,
)
remind = Script("remind", keys=("due",), optional=("recent", "live"), args=("ref", "look_ms"))
_due = Script("due", keys=("due", "known_servers"), args=("most", "again_ms", "all"), rest="servers")
_recall = Script("recall", keys=("due", "live"), rest="refs")
redate = Script("redate", keys=("due",), args=("ref", "look_ms", "taken"))


@dataclass(frozen=True, slots=True)
class Job:
    """One launch in the queue."""

    ref: TaskRef
    launch: int

    @property
    def id(self) -> str:
        """The arq job id; a repeated launch has the same, so it cannot queue twice."""
        return f"{self.ref}:{self.launch}"

    @classmethod
    def parse(cls, job_id: str) -> Job:
        """The launch of a job id.

        Raises:
            ValueError: it is none.
        """
        ref, _, launch = job_id.rpartition(":")
        return cls(TaskRef.parse(ref), int(launch))

    def payload(self) -> bytes:
        """The job as arq writes it."""
        arguments = [str(self.ref), self.launch]
        return serialize({"t": None, "f": FUNCTION, "a": arguments, "k": {}, "et": int(time.time() * 1000)})


def offered(message: bytes) -> tuple[Job, str, str] | None:
    """The launch that a doorbell's message offers, its agent and version; None if it only rings."""
    try:
        ref, launch, agent, version = message.decode().split(" ")
        return Job(TaskRef.parse(ref), int(launch)), agent, version
    except ValueError:
        return None


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

    @property
    def times(self) -> float:
        """How many times the free slots that it leaves one owner may hold; 0: any number of slots."""
        return 0 if self.share >= 1 else round(self.share / (1 - self.share), 6)

    def has_room(self, owner: str) -> bool:
        """Whether the owner may have one more."""
        times = self.times
        return self.free > 0 and (not times or self.held.get(owner, 0) < times * self.free)

    def holders(self, count: int) -> list[str | int]:
        """The owners that may meet their share when ``count`` are claimed, each with the slots that it holds."""
        times = self.times
        if not times:
            return []
        return [
            word
            for owner, holds in self.held.items()
            if holds + count >= times * (self.free - count)
            for word in (owner, holds)
        ]


ANY = Slots(0, 1.0, {})


@dataclass(slots=True)
class _Backlog:
    launches: int = 0


class LaunchQueue(Retrying):
    """The queue, and the hints that tell rescuers when to look at a task."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._backlog = _Backlog()

    @property
    def waiting(self) -> int:
        """Launches that waited when this process looked last, or launched something, with whatever retry limit."""
        return self._backlog.launches

    async def launch(self, ref: TaskRef, number: int, *, if_queued: str = "") -> bool:
        """Queue launch ``number`` of a task and ring the doorbell; safe to repeat.

        With ``if_queued``, the key of the task's hash on this server, only if the task waits for that launch;
        False when it does not.
        """
        job = Job(ref, number)
        waiting: int = await _launch(
            self._redis,
            queue=keys.QUEUE,
            tags=keys.QUEUE_TAGS,
            job_key=keys.job(job.id),
            recent=keys.RECENT,
            live=keys.LIVE,
            due=keys.DUE,
            task=if_queued or None,
            job_id=job.id,
            owner=ref.owner,
            job=job.payload(),
            job_ms=JOB_MS,
            workers=keys.WORKERS,
            doorbell=keys.DOORBELL,
            bells=len(keys.BELLS),
            enough=ENOUGH_RUNG,
            ref=str(ref),
            most_recent=MOST_RECENT,
            look_ms=QUEUED_LOOK_MS,
            launch=number,
        )
        if waiting < 0:
            return False
        self._backlog.launches = waiting
        return True

    async def offer(self, job: Job, agent: str, version: str) -> None:
        """Offer a launch that is not in the queue to workers that serve this version of its agent.

        Where none has a slot for it nothing happens: it is due again by itself.
        """
        await command(self._redis, "PUBLISH", keys.DOORBELL, f"{job.ref} {job.launch} {agent} {version}")

    async def claim(
        self, count: int, look_ms: int = LAUNCH_GRACE_MS, slots: Slots = ANY, holder: str = ""
    ) -> dict[str, bytes]:
        """Take up to ``count`` launches out of the queue, owners in turn: job ids and jobs, in the order to run them.

        After ``look_ms`` a rescuer looks whether they were begun, and are still held. Launches of owners that hold
        their share of the ``slots`` are left where they are. ``holder`` is noted as the process that holds them: see
        `turnstream.shared.lifelines`.
        """
        claimed: list[bytes] = await _claim(
            self._redis,
            queue=keys.QUEUE,
            tags=keys.QUEUE_TAGS,
            due=keys.DUE,
            noted=keys.HELD,
            job_prefix=keys.job(""),
            most=count,
            look_ms=look_ms,
            free=slots.free,
            times=str(slots.times),
            holder=holder,
            holders=slots.holders(count),
        )
        jobs = zip(claimed[::2], claimed[1::2], strict=True)
        return {job.decode(errors="replace"): payload for job, payload in jobs}

    async def lost(self) -> bool:
        """Whether the queue lost launches since this was asked last; `ALL` is due then."""
        return bool(await _lost(self._redis, queue=keys.QUEUE, tags=keys.QUEUE_TAGS, due=keys.DUE, all=ALL))

    async def depth(self) -> int:
        """How many launches wait."""
        self._backlog.launches = int(await command(self._redis, "ZCARD", keys.QUEUE))
        return self._backlog.launches

    async def remind(self, ref: TaskRef, ms: int) -> None:
        """Have a rescuer look at the task in ``ms`` at the latest. Await it before what it is for."""
        await remind(self._redis, due=keys.DUE, recent=None, live=None, ref=str(ref), look_ms=ms)

    async def hinted(self, ref: TaskRef, ask: Callable[[str], Awaitable[T | HintUsed]], *, here: bool) -> T:
        """What a script says that makes the task need a look soon. It leaves the hint itself ``here``; else that comes first.

        ``ask`` runs it, and is given the look that is known of (`HintUsed`).
        """
        look = ""
        while True:
            if not here:
                await self.remind(ref, LAUNCH_GRACE_MS)
            outcome = await ask(look)
            if not isinstance(outcome, HintUsed):
                return outcome
            look = outcome.look

    async def note(self, ref: TaskRef) -> None:
        """Put a task that is not launched yet on the operators' lists, and have a rescuer look at it."""
        await remind(
            self._redis,
            due=keys.DUE,
            recent=keys.RECENT,
            live=keys.LIVE,
            ref=str(ref),
            look_ms=QUEUED_LOOK_MS,
        )

    async def ended(self, ref: TaskRef, op: str) -> None:
        """Count a task no more that has ended: neither as live nor against its owner's limit; ``op`` made it.

        Should this be lost, workers notice the one, and front ends the other when it matters.
        """
        await asyncio.gather(
            command(self._redis, "ZREM", keys.LIVE, str(ref)),
            command(self._redis, "ZREM", keys.owner_turns(ref.owner), keys.admission(ref, op)),
        )

    async def first_due(self) -> float:
        """When the first hint is due, Unix milliseconds by the broker's clock; at once if not even `ALL` is there."""
        first = await command(self._redis, "ZRANGE", keys.DUE, 0, 0, "WITHSCORES")
        return float(first[1]) if first else 0.0

    async def due(self, count: int, again_ms: int, servers: Sequence[str] = ()) -> tuple[int, list[bytes]]:
        """Take hints whose time has come; each is due again in ``again_ms`` unless it is re-dated.

        `ALL` is among them when hints may be missing: they were deleted, or one of the ``servers`` (see
        `turnstream.shared.broker.client.incarnation`) is another one than before.

        Returns the date that they have meanwhile, too: `redate` wants it.
        """
        again, *hints = await _due(
            self._redis,
            due=keys.DUE,
            known_servers=keys.CLOCK,
            most=count,
            again_ms=again_ms,
            all=ALL,
            servers=servers,
        )
        return int(again), hints

    async def recall(self, refs: Sequence[TaskRef]) -> None:
        """Have rescuers look at these tasks now, and operators see them, whatever was noted of them."""
        if refs:
            await _recall(self._redis, due=keys.DUE, live=keys.LIVE, refs=tuple(map(str, refs)))

    async def forget(self, hint: bytes) -> None:
        """Drop a hint that names no task."""
        await command(self._redis, "ZREM", keys.DUE, hint)

    async def redate(self, ref: TaskRef | str, ms: int, taken: int) -> int:
        """Look at the task again in ``ms``; never again when negative. Returns the date that its hint has now.

        Not if the hint is no more the one that was ``taken``: then somebody needs an earlier look. 0 says so.
        """
        return int(await redate(self._redis, due=keys.DUE, ref=str(ref), look_ms=ms, taken=taken))
