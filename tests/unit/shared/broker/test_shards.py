"""The subscriber of a cluster: each channel at the node that has its slot, wherever that is by now."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from tests.processes.servers import RedisCluster
from tests.support.waiting import wait_until
from turnstream.shared.broker import shards
from turnstream.shared.broker.client import Broker, command
from turnstream.shared.broker.retry import limited
from turnstream.shared.broker.shards import ClusterSubscriber, subscriber
from turnstream.shared.broker.subscriber import SUBSCRIBE_AT_ONCE, Subscriber
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.conftest import Place


class Recorder:
    """A listener that records every call."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.acknowledged: list[bytes] = []
        self.losses: list[Collection[bytes]] = []

    def message_received(self, channel: bytes, message: bytes) -> None:
        """Record a message."""
        self.messages.append((channel, message))

    def subscribed(self, channel: bytes) -> None:
        """Record an acknowledgement."""
        self.acknowledged.append(channel)

    def connection_lost(self) -> None:
        """Not said of a cluster."""
        raise AssertionError

    def lost(self, channels: Collection[bytes]) -> None:
        """Record a loss."""
        self.losses.append(channels)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RedisCluster]:
    """A cluster of the test's own."""
    async with RedisCluster(tmp_path / "cluster") as cluster:
        yield cluster


@asynccontextmanager
async def running(
    cluster: RedisCluster, *channels: bytes
) -> AsyncIterator[tuple[Redis, ClusterSubscriber, Recorder]]:
    """A subscriber to these channels, which are acknowledged, and a client."""
    broker = Broker(Settings(session_redis_url=SecretStr(cluster.url)))
    recorder = Recorder()
    made: Any = subscriber(broker.sessions, recorder, lost="test.lost", back="test.back")
    for channel in channels:
        made.subscribe(channel)
    task = asyncio.create_task(made.run())
    try:
        await wait_until(lambda: set(recorder.acknowledged) == set(channels), "the acknowledgements")
        yield limited(broker.sessions, 20), made, recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await broker.close()


async def test_a_single_server_is_subscribed_to_as_ever(real: Place) -> None:
    """By the connection that needs no cluster."""
    made = subscriber(real.connect().primary, Recorder(), lost="test.lost", back="test.back")
    assert type(made) is Subscriber


async def test_messages_of_all_nodes_are_received(cluster: RedisCluster) -> None:
    """Any number of channels of one slot; and not those that are wanted no more."""
    same = [b"{x}%d" % number for number in range(SUBSCRIBE_AT_ONCE + 3)]
    others = [b"c%d" % number for number in range(20)]
    async with running(cluster, *same, *others) as (redis, made, recorder):
        for channel in (same[-1], *others):
            assert await command(redis, "SPUBLISH", channel, "1") == 1
        await wait_until(lambda: len(recorder.messages) == 21, "the messages")
        made.unsubscribe(b"c7")
        made.subscribe(b"new")
        await wait_until(lambda: recorder.acknowledged[-1] == b"new", "the acknowledgement")

        async def left() -> bool:
            return bool(await command(redis, "SPUBLISH", "c7", "2") == 0)

        await wait_until(left, "the channel to be left")
        assert await command(redis, "SPUBLISH", "new", "2") == 1
        # One connection to each node.
        for node in cluster.primaries:
            listening = (await node.ask("CLIENT", "LIST", "TYPE", "pubsub")).splitlines()
            assert len(listening) == 1
    assert not recorder.losses


async def test_only_channels_of_a_slot_that_moves_are_lost(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are subscribed at its new node; to and fro. What the node says of them is enough: the map is not read for that."""
    monkeypatch.setattr(shards, "LOOK_SECONDS", 600.0)
    others = [b"c%d" % number for number in range(20)]
    moved = [b"{x}%d" % number for number in range(5)]
    async with running(cluster, *moved, *others) as (redis, _, recorder):
        slot = await cluster.slot("{x}")
        first = await cluster.owner(slot)
        for node in (*(each for each in cluster.primaries if each is not first), first):
            recorder.acknowledged.clear()
            recorder.losses.clear()
            await cluster.move(slot, node)
            await wait_until(
                lambda: set(recorder.acknowledged) == set(moved), "the channels to be there again"
            )
            assert {channel for channels in recorder.losses for channel in channels} == set(moved)
            assert await command(redis, "SPUBLISH", moved[0], "1") == 1
        await wait_until(lambda: len(recorder.messages) == 3, "the messages")


async def test_a_slot_that_was_away_while_the_map_was_read(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has refused the channel meanwhile, and is asked for it again though the map is what it was."""
    monkeypatch.setattr(shards, "LOOK_SECONDS", 0.1)
    async with running(cluster, b"c") as (redis, made, recorder):
        nodes = made._nodes
        slot = await cluster.slot("c")
        owner = await cluster.owner(slot)
        other = next(each for each in cluster.primaries if each is not owner)
        reads, may_read, learn = asyncio.Event(), asyncio.Event(), nodes.learn

        async def learn_late() -> None:
            reads.set()
            await may_read.wait()
            await learn()

        monkeypatch.setattr(nodes, "learn", learn_late)
        await reads.wait()
        address = nodes.owner(slot)
        await cluster.move(slot, other)
        await wait_until(lambda: nodes.owner(slot) != address, "the node to refuse the channel")
        await cluster.move(slot, owner)

        async def back() -> bool:
            await learn()
            return nodes.owner(slot) == address

        await wait_until(back, "the slot to be back")
        may_read.set()
        await wait_until(lambda: len(recorder.acknowledged) == 2, "the channel to be there again")
        assert await command(redis, "SPUBLISH", "c", "1") == 1
        await wait_until(lambda: recorder.messages, "the message")


async def test_a_node_that_was_replaced_while_it_stood_still(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection was lost and no node said anything, but messages were: so the channels are."""
    monkeypatch.setattr(shards, "LOOK_SECONDS", 0.3)
    async with running(cluster, b"c") as (redis, _, recorder):
        owner = await cluster.owner(await cluster.slot("c"))
        replica = cluster.replicas[cluster.primaries.index(owner)]
        owner.freeze()
        await replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        await wait_until(replica_is_primary(replica), "the replica to take over")
        owner.thaw()
        await wait_until(lambda: recorder.losses, "the loss")
        await wait_until(lambda: len(recorder.acknowledged) == 2, "the channel to be there again")
        await cluster.failed_over(replica)
        assert await command(redis, "SPUBLISH", "c", "1") >= 1
        await wait_until(lambda: recorder.messages, "the message")


def replica_is_primary(node: Any) -> Any:
    """A condition: the node has that role."""

    async def promoted() -> bool:
        return bool(await node.role() == "master")

    return promoted


async def test_a_node_that_died_is_lost_once(cluster: RedisCluster) -> None:
    """Its channels are subscribed at who takes its place."""
    async with running(cluster, b"c", b"d1", b"d2", b"d3") as (redis, _, recorder):
        owner = await cluster.owner(await cluster.slot("c"))
        replica = cluster.replicas[cluster.primaries.index(owner)]
        recorder.acknowledged.clear()
        owner.kill()
        await wait_until(lambda: b"c" in recorder.acknowledged, "the channel to be there again")
        assert len(recorder.losses) == 1
        assert b"c" in recorder.losses[0]
        assert await command(redis, "SPUBLISH", "c", "1") == 1
        await wait_until(lambda: recorder.messages == [(b"c", b"1")], "the message")
        assert await cluster.owner(await cluster.slot("c")) is replica
