"""A process's sign of life."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.waiting import wait_until
from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.presence import FORGOTTEN_SECONDS, SILENT_SECONDS, Presence

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_it_ends_at_once_wherever_it_is_told_to(place: Place) -> None:
    """A cancellation is never swallowed, or a process that shuts down would hang: tried at every step of it."""
    broker = place.connect()
    for steps in range(150):
        presence = Presence(broker.primary, keys.WORKERS, "host-1-abc", dict, lambda: None)
        metrics.events_appended.n += 1
        showing = asyncio.create_task(presence.show())
        for _ in range(steps):
            await asyncio.sleep(0)
        showing.cancel()
        await asyncio.wait([showing], timeout=10)
        assert showing.done(), f"still there after {steps} steps"
        await presence.end()
    assert not await broker.primary.exists(keys.WORKERS)


async def test_who_lives_is_not_told_by_hosts_clocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says something new lives, however wrong its clock is; who does not is dead, and forgotten later."""
    redis: Any = place.connect().primary
    now = 1000.0
    clocks = SimpleNamespace(time=time.time, monotonic=lambda: now)
    monkeypatch.setattr("turnstream.shared.presence.time", clocks)

    async def says(name: str, seen: float) -> None:
        await redis.hset(keys.WORKERS, name, orjson.dumps({"seen": seen}))

    presence = Presence(redis, keys.WORKERS, "host-1-abc", dict, lambda: None)
    others = partial(presence.others, 0)
    behind = time.time() - 3600
    await says("late-2-abc", behind)
    await says("late-3-abc", behind)
    assert [sign.name for sign in await others()] == ["late-2-abc", "late-3-abc"]
    now += SILENT_SECONDS
    await says("late-2-abc", behind + 5)
    assert [sign.name for sign in await others()] == ["late-2-abc"]
    now += FORGOTTEN_SECONDS
    await says("late-2-abc", behind + 10)
    showing = asyncio.create_task(presence.show())
    try:
        await wait_until(partial(_gone, redis, "late-3-abc"), "the dead one to be forgotten")
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
    assert [sign.name for sign in await others()] == ["late-2-abc"]
    await redis.delete(keys.WORKERS, keys.TOTALS)


async def test_very_many_processes_do_not_each_read_what_all_others_say(real: Place) -> None:
    """What the broker sends for signs of life grows with their number, not with its square."""
    redis: Any = real.connect().primary
    record = orjson.dumps({"seen": int(time.time())})
    await redis.hset(keys.WORKERS, mapping={f"host-{number}-abc": record for number in range(2000)})
    said = 100
    await redis.config_resetstat()
    for _ in range(said):
        await Presence(redis, keys.WORKERS, "host-1-abc", dict, lambda: None)._say()
    stats = await redis.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] >= said
    assert stats.get("cmdstat_hgetall", {"calls": 0})["calls"] < said / 10
    await redis.delete(keys.WORKERS, keys.TOTALS)


async def _gone(redis: Any, name: str) -> bool:
    return not await redis.hexists(keys.WORKERS, name)
