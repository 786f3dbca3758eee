"""arq 0.28.0 held to what worker/arq_worker.py overrides, and to what it relies on."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import tomllib
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from arq.connections import ArqRedis
from arq.constants import default_queue_name, job_key_prefix
from arq.jobs import deserialize_job_raw
from arq.worker import Worker
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.broker import keys
from turnstream.shared.session.queue import (
    ANY,
    FUNCTION,
    JOB_MS,
    Job,
    LaunchQueue,
    Slots,
    deserialize,
    serialize,
)
from turnstream.worker.arq_worker import CLAIM_AT_ONCE, ArqWorker
from turnstream.worker.budget import Budget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from tests.conftest import Place


class Turns:
    """The function that workers run: turns that last until they are let go."""

    def __init__(self, *, free: bool = True) -> None:
        self.started: list[tuple[str, int]] = []
        self.ended: list[str] = []
        self.most = 0
        self.gate = asyncio.Semaphore(1_000 if free else 0)

    @property
    def running(self) -> int:
        """How many turns run."""
        return len(self.started) - len(self.ended)

    async def run_task(self, ctx: dict[Any, Any], text: str, launch: int) -> None:
        """What an arq job does."""
        self.started.append((text, launch))
        self.most = max(self.most, self.running)
        try:
            await self.gate.acquire()
        finally:
            self.ended.append(text)

    def let_go(self, count: int) -> None:
        """Let so many turns end."""
        for _ in range(count):
            self.gate.release()

    async def all_started(self, count: int) -> None:
        """Wait for that many turns to have started."""
        await wait_until(lambda: len(self.started) >= count, f"{count} turns to start")


class Faulty(LaunchQueue):
    """A queue whose first claims fail."""

    def __init__(self, redis: Redis, *errors: Exception) -> None:
        super().__init__(redis)
        self.errors = list(errors)

    async def claim(
        self, count: int, look_ms: int = 2_000, slots: Slots = ANY, holder: str = ""
    ) -> dict[str, bytes]:
        """Fail while there is something to fail with."""
        if self.errors:
            raise self.errors.pop(0)
        return await super().claim(count, look_ms, slots, holder)


@asynccontextmanager
async def working(
    desk: Desk,
    turns: Turns,
    *,
    max_jobs: int = 10,
    owner_share: float = 1.0,
    launches: LaunchQueue | None = None,
    on_trouble: Callable[[], None] = lambda: None,
    retiring: bool = False,
) -> AsyncIterator[tuple[ArqWorker, asyncio.Event]]:
    """A worker that runs these turns, and its doorbell."""
    doorbell = asyncio.Event()
    worker = ArqWorker(
        desk.primary,
        launches or desk.launches,
        turns.run_task,
        max_jobs=max_jobs,
        look_ms=2_000,
        budget=Budget(2**20),
        owner_share=owner_share,
        doorbell=doorbell,
        on_trouble=on_trouble,
        retiring=retiring,
    )
    main = asyncio.create_task(worker.main())
    try:
        yield worker, doorbell
    finally:
        worker.pause()
        # More than any test runs: they may be other workers' turns that go first.
        turns.let_go(5_000)
        await worker.idle.wait()
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)


async def _launch(desk: Desk, count: int) -> None:
    for number in range(count):
        await desk.launches.launch(ref(f"t{number}"), 1)


def test_arq_is_the_version_that_was_read() -> None:
    """Another version must be read anew before it is used: overrides and bookkeeping may differ."""
    assert version("arq") == "0.28.0"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert "arq==0.28.0" in project["project"]["optional-dependencies"]["server"]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("main", ["self"]),
        ("_poll_iteration", ["self"]),
        ("run_job", ["self", "job_id", "score"]),
        (
            "finish_job",
            [
                "self",
                "job_id",
                "finish",
                "result_data",
                "result_timeout_s",
                "keep_result_forever",
                "incr_score",
                "keep_in_progress",
            ],
        ),
        ("finish_failed_job", ["self", "job_id", "result_data"]),
    ],
)
def test_arqs_methods_are_what_they_were(method: str, parameters: list[str]) -> None:
    """What we override or call is a coroutine with the parameters that we know."""
    theirs, ours = getattr(Worker, method), getattr(ArqWorker, method)
    assert inspect.iscoroutinefunction(theirs)
    assert list(inspect.signature(theirs).parameters) == parameters
    assert list(inspect.signature(ours).parameters) == parameters


def test_only_the_loop_is_overridden() -> None:
    """Beside the loop and the claim, no method of arq's is shadowed by one of ours."""
    ours = {name for name, value in vars(ArqWorker).items() if inspect.isfunction(value)}
    assert ours & set(dir(Worker)) == {"__init__", "main", "_poll_iteration"}


async def test_arqs_bookkeeping_is_where_we_use_it(place: Place) -> None:
    """Running tasks, the switch for claiming, and neither results, retries, aborts nor signals."""
    desk = Desk(place)
    worker = ArqWorker(
        desk.primary,
        desk.launches,
        Turns().run_task,
        max_jobs=7,
        look_ms=2_000,
        budget=Budget(2**20),
        owner_share=1.0,
        doorbell=asyncio.Event(),
        on_trouble=lambda: None,
    )
    assert (worker.tasks, worker.job_tasks, worker.allow_pick_jobs, worker.max_jobs) == ({}, {}, True, 7)
    assert (worker.keep_result_s, worker.retry_jobs, worker.allow_abort_jobs) == (0, False, False)
    assert (worker._handle_signals, worker.log_results) == (False, False)
    function = worker.functions[FUNCTION]
    assert getattr(function, "keep_result_s", None) == 0
    assert (getattr(function, "max_tries", 0), getattr(function, "timeout_s", 0)) == (1_000_000, 2_592_000)


async def test_arq_reads_the_jobs_we_write(place: Place) -> None:
    """The job that a launch writes is one of arq's, read by its own function."""
    desk = Desk(place)
    before = await desk.now()
    await desk.launches.launch(ref(), 4)
    written = await desk.primary.get(keys.job(Job(ref(), 4).id))
    assert written is not None
    read: Any = deserialize_job_raw(written, deserializer=deserialize)
    assert read[:4] == ("run_task", ["o1/s1/t1", 4], {}, None)
    assert abs(read[4] - before) < 60_000


async def test_our_jobs_have_the_shape_of_arqs(place: Place) -> None:
    """Key, fields, types and lifetime are those of ``enqueue_job``, so arq's own tools read our queue."""
    desk = Desk(place)
    arq = ArqRedis(desk.primary.connection_pool, job_serializer=serialize, job_deserializer=deserialize)
    assert await arq.enqueue_job(FUNCTION, str(ref()), 1, _job_id="theirs") is not None
    await desk.launches.launch(ref(), 1)
    theirs = await desk.primary.get(job_key_prefix + "theirs")
    ours = await desk.primary.get(job_key_prefix + "o1/s1/t1:1")
    assert theirs is not None
    assert ours is not None
    read, written = orjson.loads(theirs), orjson.loads(ours)
    assert list(read) == list(written)
    assert abs(read.pop("et") - written.pop("et")) < 60_000
    assert read == written
    assert JOB_MS - 60_000 < await desk.primary.pttl(job_key_prefix + "theirs") <= JOB_MS
    await desk.primary.delete(default_queue_name)


async def test_a_job_leaves_nothing_behind(place: Place) -> None:
    """After the run no key of arq's is left: job, retry count, lock, result."""
    desk = Desk(place)
    turns = Turns()
    await _launch(desk, 3)
    async with working(desk, turns) as (worker, _):
        await turns.all_started(3)
        await wait_until(worker.idle.is_set, "the worker to be idle")
        assert set(await desk.primary.keys("*")) == {b"ts:recent", b"ts:live", b"ts:due"}
        assert (worker.jobs_complete, worker.jobs_failed, worker.tasks) == (3, 0, {})
    assert sorted(turns.started) == [(f"o1/s1/t{number}", 1) for number in range(3)]


async def test_a_claimed_job_that_is_gone_is_passed_over(place: Place) -> None:
    """A launch whose job expired takes no slot for long, and the next one runs."""
    desk = Desk(place)
    turns = Turns()
    await _launch(desk, 2)
    await desk.primary.delete(keys.job(Job(ref("t0"), 1).id))
    async with working(desk, turns, max_jobs=1) as (worker, _):
        await turns.all_started(1)
        await wait_until(worker.idle.is_set, "the worker to be idle")
        assert worker.jobs_failed == 1
    assert turns.started == [("o1/s1/t1", 1)]


async def test_no_pickle(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither writing, running nor finishing a job touches pickle, which could run what it reads."""

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    monkeypatch.setattr(pickle, "dumps", forbidden)
    monkeypatch.setattr(pickle, "loads", forbidden)
    desk = Desk(place)
    turns = Turns()
    await _launch(desk, 1)
    await desk.launches.launch(ref("gone"), 1)
    await desk.primary.delete(keys.job(Job(ref("gone"), 1).id))
    async with working(desk, turns) as (worker, _):
        await turns.all_started(1)
        await wait_until(worker.idle.is_set, "the worker to be idle")
    assert serialize({"a": [1]}) == b'{"a":[1]}'
    assert deserialize(b'{"a":[1]}') == {"a": [1]}


async def test_a_worker_survives_trouble_in_claiming(place: Place) -> None:
    """A broker that is away is reported to the rescuer, a defect is not; the worker goes on claiming after both."""
    desk = Desk(place)
    turns = Turns()
    troubles: list[int] = []
    launches = Faulty(desk.primary, RedisConnectionError("away"), OSError("reset"), ValueError("a defect"))
    await _launch(desk, 2)
    async with working(desk, turns, launches=launches, on_trouble=lambda: troubles.append(1)):
        await turns.all_started(2)
    assert len(troubles) == 2


async def test_a_turn_goes_on_while_claiming_fails(place: Place) -> None:
    """Trouble in claiming costs no running turn and no slot."""
    desk = Desk(place)
    turns = Turns(free=False)
    launches = Faulty(desk.primary)
    await _launch(desk, 1)
    async with working(desk, turns, max_jobs=2, launches=launches) as (worker, doorbell):
        await turns.all_started(1)
        launches.errors += [RedisConnectionError("away"), RedisConnectionError("away")]
        await desk.launches.launch(ref("t9"), 1)
        doorbell.set()
        await turns.all_started(2)
        assert (turns.running, len(worker.tasks)) == (2, 2)


async def test_a_worker_runs_at_most_max_jobs(place: Place) -> None:
    """A full worker leaves the rest in the queue, and claims the next one when a slot frees."""
    desk = Desk(place)
    turns = Turns(free=False)
    await _launch(desk, 5)
    async with working(desk, turns, max_jobs=2) as (worker, doorbell):
        await turns.all_started(2)
        doorbell.set()
        await wait_until(lambda: not doorbell.is_set(), "the full worker to hear the doorbell")
        assert (turns.running, await desk.launches.depth()) == (2, 3)
        for started in (3, 4, 5):
            turns.gate.release()
            await turns.all_started(started)
            assert await desk.launches.depth() == 5 - started
        assert len(worker.tasks) <= 2
    assert turns.most == 2
    assert [text for text, _ in turns.started] == [f"o1/s1/t{number}" for number in range(5)]


async def test_a_worker_takes_a_backlog_in_portions(place: Place) -> None:
    """More launches than fit in one claim are claimed one portion after the other, without a doorbell."""
    desk = Desk(place)
    turns = Turns(free=False)
    await _launch(desk, 2 * CLAIM_AT_ONCE + 1)
    async with working(desk, turns, max_jobs=100):
        await turns.all_started(2 * CLAIM_AT_ONCE + 1)
    assert turns.most == 2 * CLAIM_AT_ONCE + 1


async def test_a_launch_repeated_while_it_runs_is_not_run_beside_itself(place: Place) -> None:
    """A client's second callback queues the running launch again; this worker neither runs nor forgets it."""
    desk = Desk(place)
    turns = Turns(free=False)
    await _launch(desk, 1)
    async with working(desk, turns) as (worker, doorbell):
        await turns.all_started(1)
        await _launch(desk, 1)
        await desk.launches.launch(ref("t1"), 1)
        doorbell.set()
        await turns.all_started(2)
        assert turns.started == [("o1/s1/t0", 1), ("o1/s1/t1", 1)]
        assert (len(worker.tasks), worker.idle.is_set()) == (2, False)
        turns.gate.release()
        turns.gate.release()
        await wait_until(worker.idle.is_set, "the worker to be idle")
        assert (worker.jobs_complete, worker.jobs_failed) == (2, 0)
    assert set(await desk.primary.keys("*")) == {b"ts:recent", b"ts:live", b"ts:due"}


async def test_a_paused_worker_claims_nothing_and_finishes_what_runs(place: Place) -> None:
    """While it drains a worker leaves the queue to others, and says when it is idle."""
    desk = Desk(place)
    turns = Turns(free=False)
    await _launch(desk, 1)
    async with working(desk, turns) as (worker, doorbell):
        assert await wait_until(lambda: turns.running == 1, "the turn to start")
        worker.pause()
        await desk.launches.launch(ref("t9"), 1)
        doorbell.set()
        assert not worker.idle.is_set()
        turns.gate.release()
        await worker.idle.wait()
        assert await desk.launches.depth() == 1
    assert turns.started == [("o1/s1/t0", 1)]
