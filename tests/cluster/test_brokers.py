"""The shipped deployment with its sessions on a Redis Cluster of three primaries and their replicas."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from deploy.cluster import Cluster, ClusterError
from tests.cluster.conftest import started
from tests.cluster.test_cluster import to_the_end
from tests.support.client import Client, check_whole, terminal, text_of
from tests.support.commands import turnstream
from tests.support.waiting import wait_until
from tests.unit.turnstream.test_doctor import told

# Enough that each node has some.
SESSIONS = [f"s{number}" for number in range(9)]


async def asked(cluster: Cluster, name: str, *words: str) -> Any:
    """A server's reply to the operator."""
    redis = Redis(
        port=cluster.parts[name].port, username="operator", password=cluster.passwords["operator"],
        decode_responses=True, lib_name="", lib_version="",
    )  # fmt: skip
    redis.response_callbacks.clear()
    async with redis:
        return await redis.execute_command(*words)  # type: ignore[no-untyped-call]


async def test_turns_go_on_when_a_node_is_killed() -> None:
    """Its replica takes over, and all turns are told whole; sessions are nowhere but at the nodes. What is kept is found again."""
    with tempfile.TemporaryDirectory(prefix="turnstream-") as folder:
        async with started(Path(folder), brokers=3) as cluster:
            client = Client(cluster.url, cluster.key)
            nodes = [name for name in cluster.parts if name.startswith(("sessions", "replica"))]
            assert len(nodes) == 6
            seen = {}
            for session in SESSIONS:
                async with client.process(session, "/tokens 300 40", id="t1") as stream:
                    seen[session] = list(await stream.until(lambda frames: len(frames) > 5))
            held = [int(await asked(cluster, name, "DBSIZE")) for name in nodes]
            assert all(held), held
            followed = [to_the_end(client, session, "t1", seen[session]) for session in SESSIONS]
            following = asyncio.gather(*followed)
            killed = cluster.parts["sessions-2"]
            killed.signal(signal.SIGSTOP)

            async def promoted() -> bool:
                return bool((await asked(cluster, "replica-2", "INFO", "replication")).count("role:master"))

            await wait_until(promoted, "the replica to take over", 60)
            killed.signal(signal.SIGKILL)
            for frames in await following:
                check_whole(frames)
                end = terminal(frames)
                assert end is not None
                assert end["status"] == "completed"
                assert end["output"][-1]["content"][0]["text"] == "".join(f"tok{n} " for n in range(300))
            await _check_servers(cluster, nodes)
            await client.close()
        async with started(Path(folder), brokers=3) as cluster:
            client = Client(cluster.url, cluster.key)
            for session in SESSIONS:
                async with client.follow(session, "t1") as stream:
                    check_whole(await stream.all())
                assert text_of(await client.turn(session, "again")) == "You said: again"
            await client.close()


def test_two_are_refused(tmp_path: Path) -> None:
    """They could not agree that one of them has failed."""
    with pytest.raises(ClusterError, match="BROKERS=2: take 1, or 3 and more"):
        Cluster(tmp_path, brokers=2)


async def _check_servers(cluster: Cluster, nodes: list[str]) -> None:
    """Nothing was refused, by nobody; the doctor finds nothing wrong at any of them."""
    broker = await asked(cluster, "broker", "SCAN", "0", "MATCH", "ts:{*", "COUNT", "10000")
    assert broker[1] == []

    async def back() -> bool:
        return "master_link_status:up" in await asked(cluster, "sessions-2", "INFO", "replication")

    await wait_until(back, "the killed node to copy its heir", 60)
    for name in ("broker", *nodes):
        log = [
            dict(zip(entry[::2], entry[1::2], strict=True))
            for entry in await asked(cluster, name, "ACL", "LOG")
        ]
        assert not [(each["username"], each["object"]) for each in log], name
    done = await turnstream(
        "doctor", "--url", cluster.url, TURNSTREAM_REDIS_PASSWORD=cluster.passwords["operator"],
        TURNSTREAM_KEY=cluster.key, **cluster.broker_urls("operator"),
    )  # fmt: skip
    levels = {what: level for what, (level, _) in told(done).items()}
    assert {what for what, level in levels.items() if level != "ok"} <= {"rights"}, done.out
    assert done.code == 0
