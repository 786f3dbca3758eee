"""When the rescuer looks, and when it holds still: silence may be the broker's fault, or the rescuer's own."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import RedisError

from shared import keys
from shared.broker import is_trouble
from shared.launches import QUEUED_LOOK_MS
from shared.tasks import Finished, Renewed, operation
from tests.conftest import Place
from tests.shared.support import Desk, keys_of, ref
from worker.rescuer import AGAIN_MS, Rescuer


def _rescuer(desk: Desk, *, whole_for: float) -> Rescuer:
    rescuer = Rescuer(desk.ender, desk.settings)
    rescuer._whole_since = time.monotonic() - whole_for
    return rescuer


async def _lost(desk: Desk) -> None:
    """A task is running, due, and its lease is over."""
    await desk.running()
    await desk.put(ref(), lease=await desk.past())
    await desk.launches.remind(ref(), 0)


async def test_a_lost_workers_task_is_launched_again(place: Place) -> None:
    """Once its connection has been whole for one lease, the rescuer does what the task needs."""
    desk = Desk(place)
    await _lost(desk)
    await _rescuer(desk, whole_for=60)._look()
    assert list(await desk.launches.claim(1)) == ["o1/s1/t1:2"]
    assert await desk.field(ref(), "crashes") == "1"


async def test_a_launch_that_waits_is_not_looked_at_all_the_time(place: Place) -> None:
    """What was launched again, and waits in the queue, has its next look in ten seconds."""
    desk = Desk(place)
    await _lost(desk)
    await _rescuer(desk, whole_for=60)._look()
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    assert hint is not None
    assert await desk.now() + AGAIN_MS < hint <= await desk.now() + QUEUED_LOOK_MS


async def test_it_holds_still_after_trouble(place: Place) -> None:
    """For one lease after the broker was away nobody's silence is judged."""
    desk = Desk(place)
    await _lost(desk)
    rescuer = _rescuer(desk, whole_for=60)
    rescuer.trouble()
    await rescuer._look()
    assert await desk.launches.depth() == 0
    assert await desk.field(ref(), "crashes") == "0"


async def test_a_forgotten_turn_is_launched_under_its_own_name(place: Place) -> None:
    """The rescuer that looks at one waiting task launches the one that has waited longer."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    await desk.put(ref(), status="completed")
    await desk.launches.remind(ref("t3"), 0)
    await _rescuer(desk, whole_for=60)._look()
    assert list(await desk.launches.claim(8)) == ["o1/s1/t2:1"]
    assert await desk.tasks.sweep(ref("t3"), operation()) is not None


async def test_the_turn_after_one_whose_worker_died_at_its_end_is_launched(place: Place) -> None:
    """The hint of the turn that ended leads to it: its own is not due for much longer. Then there is time."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.submit(ref("t2"))
    await desk.finish(attempt)
    await desk.put(ref("t2"), launched=await desk.past())
    await desk.launches.remind(ref(), 0)
    await _rescuer(desk, whole_for=60)._look()
    assert list(await desk.launches.claim(8)) == ["o1/s1/t2:1"]
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    assert hint is not None
    assert hint <= await desk.now() + AGAIN_MS


async def test_a_read_only_broker_is_trouble_also_while_it_holds_still(real: Place) -> None:
    """Workers cannot renew then, so the lease of grace begins anew; a read would not tell."""
    desk = Desk(real)
    rescuer = _rescuer(desk, whole_for=0)
    await rescuer._look()
    try:
        # A replica of nobody keeps what it has, and takes no writes.
        await desk.primary.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(RedisError) as raised:
            await rescuer._look()
        assert is_trouble(raised.value)
    finally:
        await desk.primary.execute_command("REPLICAOF", "NO", "ONE")


async def test_a_full_broker_keeps_leases_and_is_cleaned(real: Place) -> None:
    """At `maxmemory` a lease is renewed, a lost worker's turn launched again, and ended turns' events are cut."""
    desk = Desk(real, log_grace_seconds=0)
    await _lost(desk)
    held = await desk.running(ref("t2", "s2"))
    done = await desk.running(ref("t3", "s3"))
    await desk.finish(done)
    await desk.launches.remind(done.ref, 0)
    try:
        await desk.primary.config_set("maxmemory", 1)
        assert isinstance(await desk.tasks.renew(held.ref, held.number), Renewed)
        await _rescuer(desk, whole_for=60)._look()
        assert await desk.entries(keys_of("s3")) == []
        assert list(await desk.launches.claim(1)) == ["o1/s1/t1:2"]
        assert isinstance(await desk.finish(held), Finished)
    finally:
        await desk.primary.config_set("maxmemory", 0)
