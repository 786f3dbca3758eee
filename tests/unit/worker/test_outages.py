"""Whose silence tells nothing, because a server took no renewals."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.conftest import Place
from tests.processes.servers import RedisCluster
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.broker import keys
from turnstream.worker.rescuer import AGAIN_MS, Rescuer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.servers import ClusterNode


def _rescuer(desk: Desk) -> Rescuer:
    rescuer = Rescuer(desk.ender, desk.settings)
    rescuer.outages.whole_since = time.monotonic() - 3600
    return rescuer


async def _look(rescuer: Rescuer) -> None:
    await rescuer._look()
    await asyncio.gather(*rescuer._sweeping.values())


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    """Three nodes, each alone with its slots."""
    async with RedisCluster(tmp_path, replicas=False) as cluster:
        yield cluster


@pytest.fixture
async def desk(real: Place, cluster: RedisCluster) -> Any:
    """Its sessions are at these nodes."""
    place = Place(real.url, None, cluster.url)
    yield Desk(place)
    await place.close()


async def _node_of(cluster: RedisCluster, session: str) -> ClusterNode:
    return await cluster.owner(await cluster.slot(ref(session=session).keys.meta))


async def test_what_a_node_is_asked_before_it_stands_still_is_judged_as_of_then(
    desk: Desk, cluster: RedisCluster
) -> None:
    """It carries out what was sent before, when it goes on: ahead of renewals, and when the lease is over."""
    rescuer = _rescuer(desk)
    await _look(rescuer)
    await desk.running()
    node = await _node_of(cluster, "s1")
    await rescuer.outages.look()
    await desk.put(ref(), lease=int(1000 * time.time()) + 1000)
    node.freeze()
    over = time.monotonic() + 1.1
    try:
        sweep = asyncio.create_task(rescuer.sweep(ref(), 0))
        await wait_until(lambda: _is_past(over), "the lease to be over")
    finally:
        node.thaw()
    await sweep
    assert await desk.field(ref(), "crashes") == "0"
    # Nobody has renewed it since it goes on: that counts.
    await rescuer.outages.look()
    assert rescuer.outages.silence_tells(ref())
    await rescuer.sweep(ref(), 0)
    assert await desk.field(ref(), "crashes") == "1"


async def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


async def test_a_node_that_just_took_no_write_is_sent_nothing_that_judges(
    desk: Desk, cluster: RedisCluster
) -> None:
    """It is asked again at the next look, and its hints come back by then; others' turns go on being looked at."""
    rescuer = _rescuer(desk)
    await _look(rescuer)
    node = await _node_of(cluster, "s1")
    other = await _session_at(cluster, next(each for each in cluster.primaries if each is not node))
    for session in ("s1", other):
        await desk.running(ref(session=session))
        await desk.put(ref(session=session), lease=1)
    await rescuer.outages.look()
    node.freeze()
    try:
        await rescuer.outages.look()
        assert not rescuer.outages.silence_tells(ref())
        assert rescuer.outages.silence_tells(ref(session=other))
    finally:
        node.thaw()
    await wait_until(lambda: _answers(node), "the node to answer again")
    await rescuer.outages.look()
    assert rescuer.outages.silence_tells(ref())


async def _answers(node: ClusterNode) -> bool:
    return bool(await node.ask("PING"))


async def test_slots_that_move_between_others_while_a_node_is_away_are_no_outage(
    desk: Desk, cluster: RedisCluster
) -> None:
    """Only who takes the place of a node that took no writes has leases that nobody could renew."""
    rescuer = _rescuer(desk)
    await _look(rescuer)
    away, source, target = cluster.primaries
    nodes: Any = desk.redis.nodes
    session = await _session_at(cluster, source)
    slot, heir = await cluster.slot(ref(session=session).keys.meta), (await cluster.of(target)).name
    away.freeze()
    try:
        await rescuer.outages.look()
        for node in (target, source):
            await node.ask("CLUSTER", "SETSLOT", slot, "NODE", heir)
        await nodes.learn()
        assert nodes.owner(slot)[1] == target.port
        await rescuer.outages.look()
        assert rescuer.outages.is_calm, "it was taken for an outage of all"
    finally:
        away.thaw()
    await wait_until(lambda: _answers(away), "the node to answer again")
    session = await _session_at(cluster, away)
    slot = await cluster.slot(ref(session=session).keys.meta)
    await cluster.move(slot, target)
    await nodes.learn()
    assert not rescuer.outages.silence_tells(ref(session=session)), "its new node may be judged at once"
    await rescuer.outages.look()
    assert not rescuer.outages.is_calm


async def test_a_new_node_judges_nobody_for_a_lease(desk: Desk, cluster: RedisCluster) -> None:
    """Its clock may be ahead of that of the node that had the slot, and then all leases there seem to be over."""
    rescuer = _rescuer(desk)
    await rescuer.outages.look()
    assert rescuer.outages.silence_tells(ref())
    nodes: Any = desk.redis.nodes
    slot = await cluster.slot(ref().keys.meta)
    node = await cluster.add()
    await cluster.move(slot, node)
    await nodes.learn()
    assert nodes.owner(slot)[1] == node.port
    assert not rescuer.outages.silence_tells(ref())

    async def has_taken_one() -> bool:
        await rescuer.outages.look()
        return bool(rescuer.outages._away)

    await wait_until(has_taken_one, "the node to take a write")
    await rescuer.outages.look()
    assert not rescuer.outages.silence_tells(ref())


async def test_who_alone_does_not_reach_a_node_does_not_keep_others_from_its_turns(
    desk: Desk, cluster: RedisCluster
) -> None:
    """A worker that is cut off from it looks at hints as everybody does, and those of its own turns among them."""
    rescuer = _rescuer(desk)
    await _look(rescuer)
    await desk.running()
    await desk.put(ref(), lease=1)
    await rescuer.outages.look()
    assert await rescuer.outages.is_of_a_node(RedisConnectionError(), ref())
    await desk.launches.remind(ref(), 0)
    await _look(rescuer)
    assert await desk.field(ref(), "crashes") == "0"
    due = await desk.primary.zscore(keys.DUE, str(ref()))
    assert due - 1000 * time.time() <= AGAIN_MS


async def _session_at(cluster: RedisCluster, node: ClusterNode) -> str:
    number = 1
    while await _node_of(cluster, f"s{number}") is not node:
        number += 1
    return f"s{number}"


@pytest.mark.parametrize("seconds", [15, 3600])
async def test_a_clock_that_jumped_ends_no_lease(
    monkeypatch: pytest.MonkeyPatch, place: Place, seconds: float
) -> None:
    """The broker's clock was set, or the host was suspended: wall clocks went on, and nobody could renew."""
    if place.real:
        pytest.skip("its clock is the host's, which is nobody's to set")
    desk = Desk(place)
    rescuer = _rescuer(desk)
    await desk.running()
    await _look(rescuer)
    await desk.launches.remind(ref(), 1000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    for _ in range(2):
        await _look(rescuer)
        assert not rescuer.outages.is_calm
        assert await desk.field(ref(), "crashes") == "0"
    # Its worker had one lease to renew it.
    rescuer.outages.whole_since -= desk.settings.lease_seconds
    await desk.launches.remind(ref(), 0)
    await _look(rescuer)
    assert await desk.field(ref(), "crashes") == "1"
