"""The rescuer: finds tasks that make no progress, such as those of a lost worker.

Every worker has one. They share the hints in ``ts:due``; taking a hint dates it anew, so two rarely
look at one task at a time. It does no harm if they do: lua/sweep.lua decides on the task's own hash what must be done, once.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

import structlog

from turnstream.shared import metrics
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.endings import END_RETRY_SECONDS, end_from_outside
from turnstream.shared.session.outcomes import Drop, Launch, Lives, MustEnd, Passed, Redate
from turnstream.shared.session.queue import ALL, Job
from turnstream.shared.session.tasks import operation
from turnstream.shared.session.webhooks import Webhooks
from turnstream.worker.outages import LOOK_SECONDS, Outages
from turnstream.worker.recall import Recall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.shared.session.endings import Ender
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# Between two looks at the hints no less than this passes, where one is due earlier than in `LOOK_SECONDS`. That adds to the time
# in which a lost worker is noticed.
SOON_SECONDS = 0.5

# Between two looks that also ask whether hints were lost or the broker's clock went back, which a deleted key or an
# operator may have caused; a failover shows by itself. Those in between cost one command while no hint is near, and
# else, as thorough ones do, two more at each server.
THOROUGH_SECONDS = 6.0

# Between two looks whether the queue has all launches that were put there.
COUNT_SECONDS = 60.0

# Turns swept at the same time: each takes some round trips, and one that is slow must not keep the others waiting.
AT_ONCE = 20

# A hint that was taken is due again after this, should the rescuer die with it, or never hear that it has it.
AGAIN_MS = 3_000

# A turn that cannot be swept is tried again after `AGAIN_MS`, then after twice that, up to this.
RARELY_MS = 600_000

# Such turns that are remembered; one that is forgotten is tried more often again.
MOST_FAILED = 1000


class Rescuer:
    """Sweeps what is due.

    Duties:
        1. take due hints and sweep their turns side by side: launch again, end, re-date or drop;
        2. when hints were lost, have every live turn looked at (`Recall`);
        3. go on whatever becomes of one of them: drop a hint that names no turn, try one that fails ever more rarely;
        4. sweep turns of this worker that wait for a time exactly then (`look`), not a second later;
        5. hold still until both brokers have taken its writes for one lease (`Outages`), so that an outage (away, read-only)
           does not look like a hundred dead workers: their renewals come first.

    Attributes:
        outages: what it knows of them.
    """

    def __init__(self, ender: Ender, settings: Settings) -> None:
        self._ender = ender.once
        self._retrying = ender.retrying(END_RETRY_SECONDS)
        self._recall = Recall(
            self._ender.tasks.redis,
            self._ender.launches,
            Webhooks(self._ender.primary, self._ender.tasks),
        )
        self._lease = settings.lease_seconds
        self.outages = Outages(self._ender.primary, self._ender.tasks.redis, self._lease)
        self._counted_at = -math.inf
        # The last thorough look: when it was here, what time it was at the broker (ms), and which servers there were.
        self._looked_at = -math.inf
        self._looked_ms = 0
        # Seconds from the last look until the first hint was due; and to the latest hint of an attempt.
        self._until_due = math.inf
        self._near = self._lease + AGAIN_MS / 1000
        self._known: list[str] = []
        self._sweeping: dict[bytes, asyncio.Task[None]] = {}
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        # Hints whose sweep failed → how often in a row.
        self._failed: dict[bytes, int] = {}

    def look(self, ref: TaskRef, ms: int) -> None:
        """Sweep the turn in ``ms``. Its hint is for when this process is gone by then, or has too much to do."""
        hint = str(ref).encode()
        if (former := self._timers.pop(hint, None)) is not None:
            former.cancel()
        self._timers[hint] = asyncio.get_running_loop().call_later(ms / 1000, self._time_has_come, hint)

    def _time_has_come(self, hint: bytes) -> None:
        del self._timers[hint]
        if hint not in self._sweeping and len(self._sweeping) < AT_ONCE:
            # It was not taken, so there is no date to change.
            self._sweeping[hint] = asyncio.create_task(self._attend(hint, taken=0), name="sweep")

    async def watch(self) -> None:
        """Look for ever; to be run as a task for as long as the worker lives."""
        last = time.monotonic()
        more = False
        try:
            while True:
                if more and self._sweeping:
                    await asyncio.wait(
                        self._sweeping.values(), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(min(max(self._until_due, SOON_SECONDS), LOOK_SECONDS))
                now = time.monotonic()
                if now - last > LOOK_SECONDS + self._lease:
                    # This process stood still (frozen, or starved). It cannot judge others' silence yet.
                    self.outages.trouble()
                last = now
                try:
                    more = await self._look()
                except Exception as error:
                    more = False
                    self._noticed(error, "rescuer.failed")
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            sweeping = list(self._sweeping.values())
            for sweep in sweeping:
                sweep.cancel()
            await asyncio.gather(*sweeping, return_exceptions=True)

    async def _look(self) -> bool:
        """Begin to sweep what is due, as far as there is room; whether more may be due.

        Each look has each server take a write, also when nothing is due: what took no renewals until just now tells nothing of
        anybody. While no hint is near, thorough ones do: each attempt has one within a lease, but for those that cannot be swept.
        """
        room = AT_ONCE - len(self._sweeping)
        if not room:
            return True
        outages, launches = self.outages, self._ender.launches
        since = time.monotonic() - self._looked_at
        is_anew = self._looked_at < outages.whole_since
        is_thorough = is_anew or since >= THOROUGH_SECONDS
        if not is_thorough:
            self._until_due = (await launches.first_due() - self._looked_ms) / 1000 - since
        servers = await outages.look(writing=is_thorough or self._until_due <= self._near)
        if not outages.is_calm or not (is_thorough or servers != self._known or self._until_due <= 0):
            return False
        began = time.monotonic()
        if began - self._counted_at >= COUNT_SECONDS:
            self._counted_at = began
            if await launches.lost():
                log.warning("rescuer.queue_lost_launches")
            began = time.monotonic()
        taken, due = await launches.due(room, AGAIN_MS, servers)
        # No less than the time there: it came rounded down, and some passed before it was read.
        self._looked_at, self._looked_ms, self._known = began, taken - AGAIN_MS + 1, servers
        outages.took(self._ender.primary, began, taken - AGAIN_MS)
        if not outages.is_calm:
            return False
        for hint in due:
            # One that is in hand for longer than `AGAIN_MS` is due meanwhile.
            if hint not in self._sweeping:
                self._sweeping[hint] = asyncio.create_task(self._attend(hint, taken), name="sweep")
        return len(due) == room

    async def _attend(self, hint: bytes, taken: int) -> None:
        """Sweep one turn, or recall all; nothing is raised, whatever is wrong with it."""
        try:
            if hint == ALL.encode():
                await self._recall_all(taken)
                return
            try:
                ref = TaskRef.parse(hint)
            except ValueError:
                metrics.unreadable.add("hint")
                log.warning("rescuer.unreadable_hint", hint=repr(hint[:80]))
                await self._ender.launches.forget(hint)
                return
            # Left as it is, it is due again in `AGAIN_MS`, for whoever takes it then: its node may be away from here alone.
            if not self.outages.silence_tells(ref):
                return
            try:
                await self.sweep(ref, taken)
            except Exception as error:
                if await self.outages.is_of_a_node(error, ref):
                    return
                self._noticed(error, "rescuer.turn_failed", ref=str(ref))
                await self._put_off(hint, ref, taken)
            else:
                self._failed.pop(hint, None)
        except Exception as error:
            self._noticed(error, "rescuer.failed")
        finally:
            del self._sweeping[hint]

    async def _recall_all(self, taken: int) -> None:
        try:
            await self._recall.run(taken)
        except Exception as error:
            # Somebody begins anew later.
            if not await self.outages.is_of_a_node(error):
                raise

    async def _put_off(self, hint: bytes, ref: TaskRef, taken: int) -> None:
        """Try a turn ever more rarely that fails again and again. The first time it may be the broker's fault."""
        failed = self._failed[hint] = self._failed.pop(hint, 0) + 1
        if len(self._failed) > MOST_FAILED:
            del self._failed[next(iter(self._failed))]
        if failed > 1:
            metrics.unreadable.add("turn")
            ms = min(AGAIN_MS * 2 ** (failed - 1), RARELY_MS)
            log.warning("rescuer.puts_off", ref=str(ref), failed=failed, seconds=ms // 1000)
            await self._ender.launches.redate(ref, ms, taken)

    def _noticed(self, error: Exception, event: str, **about: str) -> None:
        """The broker's trouble is no fault of what was being done, and no reason to judge anybody's silence."""
        if is_transient(error) or isinstance(error, BrokerAway):
            self.outages.trouble()
        else:
            log.error(event, exc_info=error, **about)

    async def take_over(self, process: str, jobs: Sequence[str], until: float) -> list[str]:
        """Sweep what a process held that was killed, without waiting for leases. Returns the jobs that it holds no more.

        Only ``until`` then, by the loop's clock: later nobody knows whether it is still gone.
        """
        room = asyncio.Semaphore(AT_ONCE)
        loop = asyncio.get_running_loop()

        async def settle(job_id: str) -> bool:
            try:
                job = Job.parse(job_id)
            except ValueError:
                metrics.unreadable.add("held job")
                return True
            if not self.outages.silence_tells(job.ref):
                return False
            try:
                async with room:
                    return loop.time() < until and await self.sweep(job.ref, 0, process, job.launch)
            except Exception as error:
                if await self.outages.is_of_a_node(error, job.ref):
                    return False
                self._noticed(error, "rescuer.turn_failed", ref=str(job.ref))
                # Where it is not the broker's trouble, its hint leads to it in the end, ever more rarely.
                return not (is_transient(error) or isinstance(error, BrokerAway))

        settled = await asyncio.gather(*map(settle, jobs))
        return [job for job, is_settled in zip(jobs, settled, strict=True) if is_settled]

    async def sweep(self, ref: TaskRef, taken: int, gone: str = "", gone_launch: int = 0) -> bool:
        """Look at one task, whose hint is ``taken``, and do what must be done.

        ``gone`` is a process that was killed, and held that launch of the task. False: it was heard of just now.
        """
        launches = self._ender.launches
        as_of = self.outages.as_of(ref)
        match await self._ender.tasks.sweep(ref, operation(), gone, gone_launch, as_of=as_of):
            case Lives():
                return False
            case Launch(number) as launch:
                metrics.rescues.add("taken_over" if gone else "launched")
                log.info("rescuer.launched", ref=str(ref), launch=number, **({"gone": gone} if gone else {}))
                await launches.launch(ref, number)
                # Under a backlog it may wait there for long. Once it is claimed this is void.
                await launches.redate(ref, launch.look_ms, taken)
            case Passed(task, number):
                log.info("rescuer.passed", ref=str(ref), to=task)
                await launches.launch(TaskRef(ref.owner, ref.session, task), number)
                await self._ender.tasks.passed_on(ref)
            case MustEnd(seen, status, why):
                metrics.rescues.add("ended")
                log.warning("rescuer.ends", ref=str(ref), status=status, why=why)
                await end_from_outside(self._retrying, ref, status, why, who="rescuer", seen=seen)
            case Redate(ms):
                await launches.redate(ref, ms, taken)
            case Drop(waiting):
                if waiting:
                    await launches.remind(TaskRef(ref.owner, ref.session, waiting), 0)
                await launches.redate(ref, -1, taken)
                # Its events may have been cut.
                await self._ender.storage.try_report(ref.keys)
        return True
