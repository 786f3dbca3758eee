"""Processes, counters and agents, as operators see them through HTTP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson

from tests.support.client import calls_of
from tests.support.waiting import wait_until
from turnstream.shared import presence
from turnstream.shared.agents import config
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    import pytest

    from tests.support.stack import Stack


async def test_processes_show_themselves_and_leave(stack: Stack) -> None:
    """Two workers and a front end are listed with what they do; a drained worker is not."""
    first, _ = await stack.worker(max_jobs=3), await stack.worker(max_jobs=4)
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)

    async def processes() -> dict[str, Any]:
        told: dict[str, Any] = (await admin.http.get("/admin/v1/workers")).json()
        return told

    async def all_shown() -> bool:
        told = await processes()
        return (len(told["workers"]), len(told["front_ends"])) == (2, 1)

    await wait_until(all_shown, "all processes to be listed")
    told = await processes()
    assert sorted(worker["max_jobs"] for worker in told["workers"]) == [3, 4]
    assert {each["pid"] for each in [*told["workers"], *told["front_ends"]]} == {os.getpid()}
    await stack.stop_worker(first)
    (left,) = (await processes())["workers"]
    assert left["worker"] != first.id
    assert (await admin.http.get("/admin/v1/agents")).json()["agents"][0]["agent"] == next(
        iter(config.load(None))
    ).name


async def test_stats_tell_what_there_is(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a worker turns queue, and their age grows; with one they run, park and end, and are added up."""
    monkeypatch.setattr(presence, "SIGN_OF_LIFE_SECONDS", 0.05)
    monkeypatch.setattr("turnstream.shared.session.deployment_stats.FRESH_SECONDS", 0.0)
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)

    async def stats() -> dict[str, Any]:
        told: dict[str, Any] = (await admin.http.get("/admin/v1/stats")).json()
        return told

    before = (await stats())["totals"]
    async with client.process("s1", "/call f {}", id="t1") as stream:
        await stream.until(lambda frames: frames)
        told = await stats()
        assert told["queue"]["depth"] == 1
        assert told["tasks"] == {
            "live": 1,
            "queued": 1,
            "running": 0,
            "parked": 0,
            "waiting": {},
            "partial": False,
        }
        await wait_until(older(stats, told["queue"]["oldest_seconds"]), "the queue to age")
        await stack.worker()
        (call,) = calls_of(await stream.until(calls_of))

        async def parked() -> bool:
            return bool((await stats())["tasks"]["parked"] == 1)

        await wait_until(parked, "the turn to be parked")
        await client.callback("s1", call["call_id"], "x")
        await stream.all()

    async def added_up() -> bool:
        now = (await stats())["totals"]
        grown = {name: n - before.get(name, 0) for name, n in now.items()}
        return all(
            grown.get(name, 0) >= least
            for name, least in (
                ("submitted", 1),
                ("completed", 1),
                ("callbacks", 1),
                ("attempts", 2),
                ("events", 5),
            )
        )

    await wait_until(added_up, "the totals to be added up")
    told = await stats()
    assert told["queue"] == {"depth": 0, "oldest_seconds": 0.0}
    assert told["tasks"]["live"] == 0
    assert told["workers"]["slots"] == 100
    assert told["front_ends"]["count"] == 1
    assert await stack.broker.primary.exists(keys.TOTALS)


def older(stats: Any, than: float) -> Any:
    """Whether the oldest launch has waited longer than that."""

    async def told() -> bool:
        return bool((await stats())["queue"]["oldest_seconds"] > than)

    return told


async def test_a_process_that_says_nothing_is_called_silent(stack: Stack) -> None:
    """It stands in the list for a minute, and none of its slots are counted."""
    worker = await stack.worker(max_jobs=3)
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)
    primary = stack.broker.primary
    await wait_until(lambda: command(primary, "HEXISTS", keys.WORKERS, worker.id), "the worker to be listed")
    sign = orjson.loads(await command(primary, "HGET", keys.WORKERS, worker.id))
    dead = {**sign, "seen": sign["seen"] - 30}
    await command(primary, "HSET", keys.WORKERS, "gone-7-abcdef", orjson.dumps(dead))
    told = (await admin.http.get("/admin/v1/workers")).json()["workers"]
    assert {each["worker"]: each["silent"] for each in told} == {worker.id: False, "gone-7-abcdef": True}
    stats = (await admin.http.get("/admin/v1/stats")).json()["workers"]
    assert (stats["count"], stats["slots"]) == (1, 3)


async def test_an_operator_pauses_resumes_and_drains_a_worker(stack: Stack) -> None:
    """A paused one finishes what it runs and claims nothing; a drained one ends; others hear nothing of it."""
    worker = await stack.worker()
    client = await stack.front_end()
    admin = stack.client(client.base_url, stack.admin)

    async def order(what: str, whom: str = worker.id) -> int:
        answer = await admin.http.post(f"/admin/v1/workers/{what}", json={"worker": whom})
        return answer.status_code

    async def row(whom: str = worker.id) -> dict[str, Any]:
        told = (await admin.http.get("/admin/v1/workers")).json()["workers"]
        return next((each for each in told if each["worker"] == whom), {})

    async def paused() -> bool:
        return bool((await row()).get("paused"))

    await wait_until(row, "the worker to be listed")
    async with client.process("s1", "/tokens 100 10") as running:
        await running.until(lambda frames: len(frames) > 3)
        assert await order("pause") == 200
        await wait_until(paused, "the worker to tell that it is paused")
        await running.all()
    assert (await admin.http.get("/admin/v1/stats")).json()["workers"]["slots"] == 0
    async with client.process("s2", "hello", id="t2") as waiting:
        await waiting.until(len)
        other = await stack.worker()
        await waiting.all()
        assert (await admin.http.get("/admin/v1/tasks/dev/s2/t2")).json()["worker"] == other.id
    await wait_until(lambda: row(other.id), "the other worker to be listed")
    assert await order("drain", other.id) == 200

    async def gone() -> bool:
        return not await row(other.id)

    await wait_until(gone, "the drained worker to leave")
    assert await paused()
    assert await order("resume") == 200
    await client.turn("s3", "hello")
    assert await order("pause", "nobody-1-abcdef") == 404
    assert await order("pause", "") == 422
