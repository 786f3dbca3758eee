"""A lost worker's turn is taken up, whatever else stands at the broker: junk, or what another release wrote."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.client import Client, check_whole, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker import keys
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session.outcomes import Attempt
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.conftest import Place

# A lease until the loss shows, a lease of grace, two looks, and the machine's own delays. Junk may not add to it for ever.
IN_TIME_SECONDS = 30.0


@pytest.fixture
async def stack(place: Place, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """A deployment with short leases."""
    stack = Stack(place, lease_seconds=getattr(request, "param", 1))
    yield stack
    await stack.close()


async def _taken_up(stack: Stack, spoil: Callable[[Any], Awaitable[None]]) -> Client:
    """A worker dies with a turn in hand, beside whatever ``spoil`` writes; two others take the turn up.

    Returns the turn's client.
    """
    client = await stack.front_end()
    launches = LaunchQueue(stack.broker.primary)
    ref = TaskRef("dev", "s1", "t1")
    async with client.process("s1", "hi", id="t1") as stream:
        await stream.until(bool)
        assert await wait_until(lambda: launches.claim(1), "the launch")
        begun = await stack.tasks.begin(ref, 1, "dead-1-abc", operation())
        assert isinstance(begun, Attempt)
        await stack.tasks.create(SessionKeys("dev", "a"), "demo", "")
        await spoil(stack.broker.primary)
        for _ in range(2):
            await stack.worker()
        async with asyncio.timeout(IN_TIME_SECONDS):
            frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "You said: hi"
    redis: Any = stack.broker.sessions
    assert await redis.hmget(ref.keys.task("t1"), "crashes", "attempt") == [b"1", b"2"]
    assert all(not running.done() for _, running in stack.workers)
    return client


@pytest.mark.parametrize("stack", [6], indirect=True)
async def test_a_sign_of_life_of_another_release_keeps_nobody_from_being_rescued(stack: Stack) -> None:
    """Nothing is decided by signs of life: one that nobody can read is no trouble of the broker's."""

    async def spoil(redis: Any) -> None:
        await redis.hset(keys.WORKERS, "other-1-abc", "{}")

    await _taken_up(stack, spoil)


async def test_a_worker_sees_to_it_that_what_it_runs_is_looked_at(stack: Stack) -> None:
    """Hints that the broker lost come back, so that the turn is taken up should its worker die later."""
    client = await stack.front_end()
    await stack.worker()
    redis: Any = stack.broker.primary
    async with client.process("s1", "/tokens 100000 20", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        await redis.delete(keys.DUE)
        await wait_until(lambda: _noted(redis), "the turn to be noted again")
        assert (await client.stop("s1", "t1")).status_code == 200


async def _noted(redis: Any) -> bool:
    return await redis.zscore(keys.DUE, "dev/s1/t1") is not None


@pytest.mark.parametrize("seed", range(3))
async def test_no_junk_keeps_anybody_from_being_rescued(stack: Stack, seed: int) -> None:
    """Junk in every list of the deployment: the turn goes on in time, and operators see what can be read."""
    turns = await _taken_up(stack, Junk(Random(seed)).write)
    client = stack.client(turns.base_url, stack.admin)
    for path in ("/admin/v1/workers", "/admin/v1/stats", "/admin/v1/tasks", "/admin/v1/keys", "/metrics"):
        answer = await client.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
    found = (await client.http.get("/admin/v1/workers")).json()
    ours = {worker.id for worker, _ in stack.workers}
    assert ours <= {worker["worker"] for worker in found["workers"]}
    tasks = (await client.http.get("/admin/v1/tasks")).json()["tasks"]
    assert "dev/s1/t1" in [task["ref"] for task in tasks]


class Junk:
    """What might stand at a broker: of another release, of a slip at a command line, of nobody knows whom."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def write(self, redis: Any) -> None:
        """Put some of it into each of the deployment's lists."""
        for listed in (keys.DUE, keys.LIVE, keys.RECENT, keys.QUEUE):
            await redis.zadd(listed, {self._member(): self._score() for _ in range(40)})
        for hashed in (keys.WORKERS, keys.FRONT_ENDS, keys.API_KEYS, keys.QUEUE_TAGS, keys.TOTALS):
            await redis.hset(hashed, mapping={self._bytes(): self._value() for _ in range(10)})
        for name in range(10):
            await self._task(redis, TaskRef("dev", "a", f"t{name}"))
        for _ in range(5):
            await redis.publish(keys.CONTROL, self._bytes())
            await redis.set(keys.job(f"dev/a/t{self._rng.randrange(10)}:1"), self._value(), ex=600)

    async def _task(self, redis: Any, ref: TaskRef) -> None:
        key = ref.keys.task(ref.task)
        if self._rng.random() < 0.2:
            await redis.set(key, "x")
        else:
            fields = [
                "attempt", "launch", "lease", "launched", "deadline", "parked_until", "crashes", "ended", "out",
                "epoch", "next", "op", "future",
            ]  # fmt: skip
            some = self._rng.sample(fields, self._rng.randrange(len(fields)))
            status = self._rng.choice(["queued", "running", "parked", "completed", "failed", "dreaming"])
            numbers = {name: self._rng.choice(["0", "1", "1795295111478", "", "x"]) for name in some}
            await redis.hset(key, mapping={"status": status, **numbers})
        await redis.expire(key, 600)
        await redis.zadd(keys.DUE, {str(ref): 1})

    def _bytes(self) -> bytes:
        return self._rng.choice([self._rng.randbytes(self._rng.randrange(12)), b"a b c", b"{}", b"a-b-c"])

    def _member(self) -> bytes:
        ref = b"dev/a/t%d" % self._rng.randrange(20)
        return self._rng.choice([self._bytes(), ref, ref + b":1", b"/".join([self._bytes()] * 3)])

    def _score(self) -> float:
        return self._rng.choice([0, 1, -1, 1.5, math.inf, -math.inf, self._rng.uniform(0, 1e13)])

    def _value(self) -> bytes:
        field = self._rng.choice(
            ["seen", "started", "version", "running", "max_jobs", "followers", "id", "et"]
        )
        value: Any = self._rng.choice([None, [], {}, "x", 10**12, -1, True])
        return self._rng.choice([self._bytes(), orjson.dumps(value), orjson.dumps({field: value})])
