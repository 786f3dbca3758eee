"""`turnstream doctor` looks at each node of a Redis Cluster, and at its slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.broker import Broker
from tests.processes.servers import Node, RedisCluster
from tests.support import users
from tests.support.commands import turnstream
from tests.support.waiting import wait_until
from tests.unit.turnstream.test_doctor import told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[str]:
    """The first broker's URL."""
    broker = Broker(tmp_path / "primary")
    broker.start()
    yield f"redis://127.0.0.1:{broker.port}/0"
    broker.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RedisCluster]:
    """That of the sessions."""
    async with RedisCluster(tmp_path / "cluster", with_users=True) as cluster:
        for node in cluster.nodes:
            await node.ask("CONFIG", "SET", "maxmemory", "500mb")
        yield cluster


async def looked(
    primary: str,
    cluster: RedisCluster,
    hosts: str = "",
    *,
    user: str = "operator",
    kind: str = "redis+cluster",
) -> dict[str, tuple[str, str]]:
    """What a user finds; ``hosts`` and ``kind``: of the URL, where it is not the cluster's."""
    done = await turnstream(
        "doctor", "--url", "http://127.0.0.1:9",
        TURNSTREAM_REDIS_URL=primary,
        TURNSTREAM_SESSION_REDIS_URL=f"{kind}://{user}:{users.password(user)}@{hosts or cluster.addresses}",
    )  # fmt: skip
    assert "Traceback" not in done.err, done.err
    return told(done)


async def test_each_node_is_looked_at(primary: str, cluster: RedisCluster) -> None:
    """One line for each that is well; what is wrong with one is named with it."""
    found = await looked(primary, cluster)
    assert found["slots"] == ("ok", "all have a node; 3 primaries, 6 nodes")
    for role, nodes in (("primary", cluster.primaries), ("replica", cluster.replicas)):
        for node in nodes:
            level, text = found[f"{role} 127.0.0.1:{node.port}"]
            assert level == "ok"
            assert "appendfsync everysec" in text
            assert "noeviction; 0 % of maxmemory" in text
    assert found["scripts"][0] == "ok"
    await cluster.replicas[1].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = await looked(primary, cluster)
    level, text = found[f"replica 127.0.0.1:{cluster.replicas[1].port}, eviction"]
    assert (level, "policy allkeys-lru" in text) == ("wrong", True)
    found = await looked(primary, cluster, user="worker")
    assert found["slots"][0] == "skipped"


async def test_what_a_url_says_that_is_not_so(primary: str, cluster: RedisCluster, tmp_path: Path) -> None:
    """An address where nobody is, a server that is no cluster, and a node that is taken for a server."""
    node = cluster.primaries[0].port
    found = await looked(primary, cluster, f"127.0.0.1:1,127.0.0.1:{node}")
    assert found["URL"][0] == "warning"
    assert found["URL"][1].startswith("127.0.0.1:1 is named, and does not answer: ")
    assert found["slots"][0] == "ok"
    alone = Node(tmp_path / "alone", with_users=True)
    try:
        await alone.start()
        found = await looked(primary, cluster, f"127.0.0.1:{alone.port}")
    finally:
        alone.kill()
    level, text = found["sessions' broker"]
    assert (level, "cluster support disabled" in text) == ("wrong", True), text
    found = await looked(primary, cluster, f"127.0.0.1:{node}", kind="redis")
    level, text = found["cluster"]
    assert (level, "redis+cluster://" in text) == ("wrong", True), text


async def test_slots_and_lost_nodes(primary: str, cluster: RedisCluster) -> None:
    """A slot that stays half moved, a primary without a replica, and slots whose node has failed."""
    await cluster.begin_move(16000, cluster.primaries[1])
    found = await looked(primary, cluster)
    assert found["moving slots"][0] == "warning"
    assert found["moving slots"][1].startswith("16000 →")
    cluster.replicas[1].kill()

    async def lonely() -> bool:
        level, text = (await looked(primary, cluster)).get("nodes", ("", ""))
        return level == "warning" and f"without a replica: 127.0.0.1:{cluster.primaries[1].port}" in text

    await wait_until(lonely, "the replica to be missed", 60)
    cluster.primaries[1].kill()

    async def failed() -> bool:
        found = await looked(primary, cluster)
        level, text = found.get("slots", ("", ""))
        if level != "wrong" or "have failed: their sessions wait" not in text:
            return False
        level, text = found["failed nodes"]
        return level == "warning" and f"127.0.0.1:{cluster.primaries[1].port}" in text

    await wait_until(failed, "the slots to be missed", 60)


async def test_slots_without_a_node(primary: str, cluster: RedisCluster) -> None:
    """Sessions of these cannot be used; that is said before anything else of the slots."""
    owner = await cluster.owner(16000)
    for node in (owner, *(each for each in cluster.nodes if each is not owner)):
        if await node.role() == "master":
            await node.ask("CLUSTER", "DELSLOTS", 16000)
    level, text = (await looked(primary, cluster))["slots"]
    assert (level, "16383 of 16384 have a node" in text) == ("wrong", True), text
