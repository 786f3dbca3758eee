"""arq's worker, with what it does at risk replaced. arq is pinned exactly; tests hold each override to it.

Kept from arq: what a job is and how it is written, its functions, its tasks and counts. Replaced: how jobs
are claimed (a claimed job is gone from the broker, so the queue holds only what waits, and running a job
costs no round trip), the loop (a broker that is away does not end the process), health (ours), signals (we
drain), results, retries and aborts (unused: our own lease, attempts and stop are in the task's hash).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import structlog
from arq.connections import ArqRedis
from arq.jobs import deserialize_job_raw
from arq.worker import Worker, func

from turnstream.shared.broker import keys
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.queue import FUNCTION, Slots, deserialize, serialize

if TYPE_CHECKING:
    from collections.abc import Callable

    from arq.typing import WorkerCoroutine
    from redis.asyncio import Redis

    from turnstream.shared.session.queue import Job, LaunchQueue
    from turnstream.worker.budget import Budget
    from turnstream.worker.lifeline import Lifeline

log = structlog.get_logger(__name__)

# Jobs claimed in one round trip. More would let one worker hoard a backlog that others could share.
CLAIM_AT_ONCE = 8

# Between two looks at the queue when no doorbell rang. It is the safety net, not the way.
POLL_SECONDS = 1.0

# arq cancels a job after its timeout and calls that final. Our own deadlines are shorter than this.
NEVER_SECONDS = 30 * 86_400


class ArqWorker(Worker):
    """Claims launches and runs each as a task.

    Duties:
        1. claim as many launches as there are free slots, woken by the doorbell; of one owner, not more than its share;
        2. outlive the broker's absence;
        3. run what it is handed, where a slot is free (`take`); with ``retiring`` nothing else;
        4. stop claiming when told (`pause`), and say when nothing runs any more (`idle`).
    """

    def __init__(
        self,
        redis: Redis,
        launches: LaunchQueue,
        run_task: WorkerCoroutine,
        *,
        max_jobs: int,
        budget: Budget,
        look_ms: int,
        owner_share: float,
        doorbell: asyncio.Event,
        on_trouble: Callable[[], None],
        retiring: bool = False,
        lifeline: Lifeline | None = None,
    ) -> None:
        super().__init__(
            [func(run_task, name=FUNCTION, keep_result=0, timeout=NEVER_SECONDS, max_tries=1_000_000)],
            redis_pool=ArqRedis(
                redis.connection_pool, job_serializer=serialize, job_deserializer=deserialize
            ),
            queue_name=keys.ARQ_QUEUE,
            handle_signals=False,
            max_jobs=max_jobs,
            poll_delay=0,
            keep_result=0,
            retry_jobs=False,
            log_results=False,
            job_serializer=serialize,
            job_deserializer=deserialize,
        )
        self._launches = launches
        self._budget = budget
        self._look_ms = look_ms
        self._owner_share = owner_share
        self._doorbell = doorbell
        self._on_trouble = on_trouble
        self._retiring = retiring
        # By an operator, until the operator says otherwise.
        self.paused = False
        self._lifeline = lifeline
        # Slots that are kept for what is being claimed.
        self._claiming = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def pause(self) -> None:
        """Claim nothing more: `main` returns when what it is claiming right now has begun."""
        self.allow_pick_jobs = False
        self._doorbell.set()

    def take(self, job: Job) -> None:
        """Run a launch that was not claimed, if there is a slot for its owner; the attempt decides who of several runs it."""
        if (
            self.allow_pick_jobs
            and not self.paused
            and job.id not in self.tasks
            and self._slots().has_room(job.ref.owner)
        ):
            if self._lifeline is not None:
                self._lifeline.took(job.id)
            self._start(job.id, job.payload())

    def _free(self) -> int:
        # A turn that waits for room in memory takes no slot.
        return self.max_jobs - len(self.tasks) - self._claiming + self._budget.waiting

    def _slots(self) -> Slots:
        held = Counter(job_id.partition("/")[0] for job_id in self.tasks)
        return Slots(self._free(), self._owner_share, held)

    async def main(self) -> None:
        """The loop, until `pause`. arq's own asks for INFO first and dies with the broker."""
        delay = 0.05
        while self.allow_pick_jobs:
            try:
                await self._poll_iteration()
                delay = 0.05
            except Exception as error:
                if is_transient(error):
                    self._on_trouble()
                else:
                    log.exception("worker.poll_failed")
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _poll_iteration(self) -> None:
        rang = self._doorbell.is_set()
        # When full, a finished turn rings for its slot.
        self._doorbell.clear()
        if (
            self.allow_pick_jobs
            and not self._retiring
            and not self.paused
            and self._free() > 0
            and (rang or await self._launches.depth())
        ):
            await self._claim()
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._doorbell.wait()
        except TimeoutError:
            pass

    async def _claim(self) -> None:
        slots = self._slots()
        count = max(0, min(slots.free, CLAIM_AT_ONCE))
        self._claiming = count
        try:
            holder = "" if self._lifeline is None else self._lifeline.process
            claimed = await self._launches.claim(count, self._look_ms, slots, holder)
        finally:
            self._claiming = 0
        for job_id, job in claimed.items():
            # A launch repeated while it runs here (a client's second callback) has nothing to do.
            if job_id not in self.tasks:
                self._start(job_id, job)
        if len(claimed) == CLAIM_AT_ONCE:
            # There may be more.
            self._doorbell.set()

    def _start(self, job_id: str, job: bytes) -> None:
        self.idle.clear()
        self.job_counter += 1
        task = asyncio.get_running_loop().create_task(self._run(job_id, job), name=f"job {job_id}")
        self.tasks[job_id] = task
        task.add_done_callback(lambda done: self._ended(job_id, done))

    async def _run(self, job_id: str, job: bytes) -> None:
        """Run a job. Its string went with the claim, so arq's own round trips before and after have no object."""
        name, arguments, named, _, _ = deserialize_job_raw(job, deserializer=deserialize)
        await self.functions[name].coroutine({**self.ctx, "job_id": job_id}, *arguments, **named)

    def _ended(self, job_id: str, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(job_id, None)
        self.job_counter -= 1
        self._doorbell.set()
        if self._lifeline is not None:
            self._lifeline.ended(job_id)
        if not self.tasks:
            self.idle.set()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.jobs_failed += 1
        else:
            self.jobs_complete += 1
        if error is not None:
            # The runner settles all that may happen to a turn: this job is not one of ours, or has expired.
            log.error("worker.job_failed", job=job_id, error=repr(error))
