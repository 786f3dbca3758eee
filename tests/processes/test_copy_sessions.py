"""The sessions of one server are copied to a cluster, and go on there: with their logs, cursors, turns and lifetimes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import OutOfMemoryError

from deploy import copy_sessions
from tests.conftest import Place
from tests.processes.servers import Node, RedisCluster
from tests.support import users
from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.commands import ROOT
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.errors import BrokerAway
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Node]:
    """The server that has everything."""
    node = Node(tmp_path / "old", with_users=True)
    yield await node.start()
    node.kill()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RedisCluster]:
    """The one that is to have the sessions."""
    async with RedisCluster(tmp_path / "cluster", with_users=True) as cluster:
        yield cluster


@asynccontextmanager
async def deployed(old: Node, **given: Any) -> AsyncIterator[Stack]:
    """A deployment on the old server, or on both."""
    place = Place(f"redis://127.0.0.1:{old.port}/0", None)
    stack = Stack(place, **given)
    # The same owner and keys, whichever deployment it is.
    stack.key, stack.admin = "sk-" + "1" * 32, "sk-" + "2" * 32
    try:
        yield stack
    finally:
        await stack.close()
        await place.close()


async def copied(old: Node, cluster: RedisCluster, **given: str) -> tuple[int, str]:
    """Run the command; its exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deploy.copy_sessions",
        cwd=ROOT,
        env={
            **os.environ,
            "TURNSTREAM_REDIS_URL": f"redis://server@127.0.0.1:{old.port}/0",
            "TURNSTREAM_SESSION_REDIS_URL": cluster.url.replace("//", "//server@"),
            "TURNSTREAM_REDIS_PASSWORD": users.password("server"),
            **given,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode is not None
    assert users.password("server") not in out.decode()
    return process.returncode, out.decode()


def counts(copied: int, same: int, left: int = 0) -> str:
    """Its last line."""
    return f"sessions copied: {copied}; unchanged since they were: {same}; left alone: {left}\n"


async def test_sessions_go_on_at_the_cluster(old: Node, cluster: RedisCluster) -> None:
    """Old cursors are served, a turn that waited for its client is answered, one that was queued runs, and none is left behind."""
    async with deployed(old) as stack:
        client = await stack.front_end()
        worker = await stack.worker()
        whole = {f"s{number}": await client.turn(f"s{number}", "hi", id="t1") for number in range(12)}
        async with client.process("parked", '/call weather {"city": "Bern"}', id="t1") as stream:
            (call,) = calls_of(await stream.until(calls_of))

        async def parked() -> bool:
            return await stack.status("parked", "t1") == "parked"

        await wait_until(parked, "the turn to park")
        assert await copied(old, cluster) == (0, counts(13, 0))
        # Meanwhile it goes on, and one more session comes.
        await client.turn("s3", "more", id="t2")
        await stack.stop_worker(worker)
        body = {"session_id": "queued", "id": "t1", "input": [{"role": "user", "content": "later"}]}
        async with client.http.stream("POST", "/process", json=body) as answer:
            assert answer.status_code == 200
    assert await copied(old, cluster) == (0, counts(2, 12))
    assert await copied(old, cluster) == (0, counts(0, 14))
    url = cluster.url.replace("//", "//{user}:{password}@")
    given = {"session_redis_url": url.format(user="worker", password=users.password("worker"))}
    async with deployed(old, **given) as stack:
        # The front end's own user has what it needs, too.
        as_api = url.format(user="api", password=users.password("api"))
        client = await stack.front_end(session_redis_url=as_api)
        for session, frames in whole.items():
            async with client.follow(session, "t1", cursor=frames[2].id) as stream:
                assert stream.response.status_code == 200
                rest = [frame.data for frame in await stream.all()]
            assert rest == [frame.data for frame in frames[3:]]
        await stack.worker()
        assert (await client.callback("parked", call["call_id"], "rain")).status_code == 200
        for session in ("parked", "queued"):
            async with client.follow(session, "t1") as stream:
                frames = await stream.all()
            check_whole(frames)
            end = terminal(frames)
            assert end is not None
            assert end["status"] == "completed"
        assert text_of(await client.turn("s1", "again", id="t2")) == "You said: again"
    assert await copied(old, cluster) == (0, counts(0, 14))
    # Somebody still writes to the old server: what is at the cluster is not lost for it.
    for session in ("s1", "s2"):
        await old.ask("HSET", f"ts:{{dev/{session}}}:meta", "user", "late")
    told = "dev/s1: left alone, since it was written to at the target\n"
    assert await copied(old, cluster) == (1, told + counts(1, 12, 1))
    owner = await cluster.owner(await cluster.slot("ts:{dev/s1}:meta"))
    assert await owner.ask("HGET", "ts:{dev/s1}:meta", "user") != "late"


async def test_lifetimes_are_kept(old: Node, cluster: RedisCluster) -> None:
    """A key lives as long as at the source, also when nothing else of it has changed."""
    name = "ts:{dev/s1}:meta"
    await old.ask("HSET", name, "epoch", "1", "seq", "0")
    await old.ask("PEXPIRE", name, 600_000)
    assert (await copied(old, cluster))[0] == 0
    owner = await cluster.owner(await cluster.slot(name))
    assert 500_000 < await owner.ask("PTTL", name) <= 600_000
    await old.ask("PEXPIRE", name, 900_000)
    assert (await copied(old, cluster))[0] == 0
    assert 800_000 < await owner.ask("PTTL", name) <= 900_000
    assert 800_000 < await owner.ask("PTTL", name.replace("meta", "copied")) <= 900_000
    # What the source has dropped goes with the next copy.
    await old.ask("HSET", "ts:{dev/s1}:task:t1", "status", "queued")
    assert (await copied(old, cluster))[0] == 0
    assert await owner.ask("EXISTS", "ts:{dev/s1}:task:t1") == 1
    await old.ask("DEL", "ts:{dev/s1}:task:t1")
    assert (await copied(old, cluster))[0] == 0
    assert await owner.ask("EXISTS", "ts:{dev/s1}:task:t1") == 0


async def test_who_was_promoted_has_not_been_written_to(old: Node, cluster: RedisCluster) -> None:
    """A large hash has another order at each server: that is nobody's write, and what the source has now is copied."""
    large = [word for number in range(30) for word in (f"field{number}", "x" * 100)]
    for session in range(9):
        await old.ask("HSET", f"ts:{{dev/s{session}}}:meta", "seq", 1)
        await old.ask("HSET", f"ts:{{dev/s{session}}}:task:t1", *large)
    assert await copied(old, cluster) == (0, counts(9, 0))
    for replica in cluster.replicas:
        await cluster.promote(replica)
    for session in range(9):
        await old.ask("HSET", f"ts:{{dev/s{session}}}:meta", "seq", 2)
    assert await copied(old, cluster) == (0, counts(9, 0))
    # Another value, in the same place.
    owner = await cluster.owner(await cluster.slot("ts:{dev/s1}:task:t1"))
    await owner.ask("HSET", "ts:{dev/s1}:task:t1", "field7", "y" * 100)
    await old.ask("HSET", "ts:{dev/s1}:meta", "seq", 3)
    told = "dev/s1: left alone, since it was written to at the target\n"
    assert await copied(old, cluster) == (1, told + counts(0, 8, 1))


async def test_who_may_not_copy_is_told_so_at_once(old: Node, cluster: RedisCluster) -> None:
    """A wrong password, a user without the rights, a server that is away, a target that is no cluster: each by its setting."""
    await old.ask("HSET", "ts:{dev/s1}:meta", "seq", 1)
    given = {"TURNSTREAM_REDIS_PASSWORD": "wrong"}
    code, said = await copied(old, cluster, **given)
    assert (code, said.startswith("TURNSTREAM_REDIS_URL = redis://server@")) == (2, True), said
    assert "does not let us in" in said
    as_worker = cluster.url.replace("//", f"//worker:{users.password('worker')}@")
    code, said = await copied(old, cluster, TURNSTREAM_SESSION_REDIS_URL=as_worker)
    assert (code, said.startswith("TURNSTREAM_SESSION_REDIS_URL = redis+cluster://worker@")) == (2, True), (
        said
    )
    assert "dump" in said
    code, said = await copied(old, cluster, TURNSTREAM_REDIS_URL="redis://server@127.0.0.1:1/0")
    assert (code, "127.0.0.1:1" in said, "What was copied stays; run it again." in said) == (2, True, True), (
        said
    )
    one_node = f"redis://server@127.0.0.1:{cluster.primaries[0].port}/0"
    code, said = await copied(old, cluster, TURNSTREAM_SESSION_REDIS_URL=one_node)
    assert (code, "redis+cluster://server@host:6379" in said) == (2, True), said


async def test_a_full_cluster_takes_no_more(
    old: Node, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is not exceeded, and what is wrong is told. With room, the rest is copied."""
    text = "x" * 500_000
    for session in range(60):
        await old.ask("HSET", f"ts:{{dev/s{session}}}:meta", "text", f"{session}{text}")
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "maxmemory", "7mb", "maxmemory-policy", "noeviction")
    monkeypatch.setattr(copy_sessions, "AWAY_SECONDS", 0.5)
    settings = load(
        redis_url=f"redis://server@127.0.0.1:{old.port}/0",
        session_redis_url=cluster.url.replace("//", "//server@"),
        redis_password=users.password("server"),
    )
    with pytest.raises(BrokerAway) as refused:
        await copy_sessions.copy(settings)
    assert isinstance(refused.value.__cause__, OutOfMemoryError)
    for node in cluster.primaries:
        told = dict(
            line.split(":", 1) for line in (await node.ask("INFO", "memory")).splitlines() if ":" in line
        )
        assert int(told["used_memory"]) < 10 * 2**20
    for node in cluster.nodes:
        await node.ask("CONFIG", "SET", "maxmemory", "100mb")
    code, said = await copied(old, cluster)
    assert (code, said.endswith("left alone: 0\n")) == (0, True), said
    assert await copied(old, cluster) == (0, counts(0, 60))


async def test_a_session_that_began_at_the_cluster_stays(old: Node, cluster: RedisCluster) -> None:
    """Another one of its name, at the old server, is not put in its place."""
    name = "ts:{dev/s1}:meta"
    owner = await cluster.owner(await cluster.slot(name))
    await owner.ask("HSET", name, "user", "new")
    await old.ask("HSET", name, "user", "old")
    told = "dev/s1: left alone, since it was written to at the target\n"
    assert await copied(old, cluster) == (1, told + counts(0, 0, 1))
    assert await owner.ask("HGET", name, "user") == "new"


async def test_none_is_forgotten_among_many(old: Node, cluster: RedisCluster) -> None:
    """All of them arrive, each at the node that has its slot."""
    script = "for n = 1, 2500 do redis.call('SET', 'ts:{dev/s' .. n .. '}:meta', 'x', 'PX', 600000) end"
    await old.ask("EVAL", script, 0)
    code, said = await copied(old, cluster)
    assert (code, said.splitlines()[-1] + "\n") == (0, counts(2500, 0))
    held = [await node.ask("DBSIZE") for node in cluster.primaries]
    # Each with its note.
    assert sum(map(int, held)) == 2 * 2500
