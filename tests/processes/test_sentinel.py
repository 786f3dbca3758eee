"""The broker's primary is chosen by Sentinels: it is killed, frozen, or demoted while turns run, and they go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Place
from tests.processes.servers import RedisCluster, Sentinels
from tests.support import users
from tests.support.client import check_whole, terminal, text_of
from tests.support.commands import turnstream
from tests.support.follower import Follower
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.unit.turnstream.test_doctor import told
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

TOKENS = 200


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Sentinels]:
    """A primary, its replica, three Sentinels; front ends and workers are the users of deploy/redis.acl."""
    async with Sentinels(tmp_path, with_users=True) as watched:
        yield watched
        for node in (watched.primary, watched.replica):
            if await node.answers():
                log = [
                    dict(zip(entry[::2], entry[1::2], strict=True)) for entry in await node.ask("ACL", "LOG")
                ]
                # The doctor finds out what the operator may not do.
                refused = [
                    (each["username"], each["object"]) for each in log if each["username"] != "operator"
                ]
                assert not refused, f"deploy/redis.acl does not let them: {refused}"


@pytest.fixture
async def stack(watched: Sentinels) -> AsyncIterator[Stack]:
    """A deployment on it."""
    place = Place(watched.url, None)
    stack = Stack(place, flush_seconds=0, lease_seconds=2, heartbeat_seconds=1)
    yield stack
    await stack.close()
    await place.close()


async def _kill(watched: Sentinels) -> None:
    watched.primary.kill()


async def _freeze(watched: Sentinels) -> None:
    watched.primary.freeze()


async def _demote(watched: Sentinels) -> None:
    await watched.failover()


async def _kill_with_a_sentinel(watched: Sentinels) -> None:
    """The machine of the primary had the Sentinel that clients ask first."""
    watched.sentinels[0].freeze()
    watched.primary.kill()


@pytest.mark.parametrize("trouble", [_kill, _freeze, _demote, _kill_with_a_sentinel])
async def test_turns_go_on_at_the_promoted_replica(
    watched: Sentinels, stack: Stack, trouble: Callable[[Sentinels], Awaitable[None]]
) -> None:
    """All turns complete, and are told whole, to who stayed and to who asks again."""
    fronts = [await stack.front_end(), await stack.front_end()]
    await stack.worker()
    await stack.worker()
    sessions = [f"s{number}" for number in range(6)]
    followers = {session: Follower(*fronts) for session in sessions}
    for session in sessions:
        async with fronts[0].process(session, f"/tokens {TOKENS} 20", id="t1") as stream:
            await stream.until(lambda frames: len(frames) > 5)

    async def lose() -> None:
        await trouble(watched)
        await watched.promoted()

    async with asyncio.TaskGroup() as group:
        for session, follower in followers.items():
            group.create_task(follower.follow(session, "t1"))
        group.create_task(lose())
    whole = "".join(f"tok{number} " for number in range(TOKENS))
    for session, follower in followers.items():
        again = Follower(fronts[1])
        await again.follow(session, "t1")
        for each in (follower, again):
            assert not each.twice
            check_whole(each.frames)
            end = terminal(each.frames)
            assert end is not None
            assert end["status"] == "completed"
            assert end["output"][-1]["content"][0]["text"] == whole
    redis: Any = stack.broker.primary
    assert (await redis.info("replication"))["role"] == "master"
    assert redis.connection_pool.master_address[1] == watched.replica.port


async def test_sessions_are_on_a_cluster_beside_it(watched: Sentinels, tmp_path: Path) -> None:
    """The whole of a large deployment: the primary dies, and then a node of the sessions'. Turns go on, new ones are taken."""
    async with RedisCluster(tmp_path / "cluster", with_users=True) as cluster:
        place = Place(watched.url, None, f"redis+cluster://127.0.0.1:{cluster.primaries[1].port}")
        stack = Stack(place, flush_seconds=0, lease_seconds=2, heartbeat_seconds=1)
        try:
            front = await stack.front_end()
            await stack.worker()
            await stack.worker()
            followers = {f"s{number}": Follower(front) for number in range(6)}
            for session in followers:
                async with front.process(session, f"/tokens {2 * TOKENS} 20", id="t1") as stream:
                    await stream.until(lambda frames: len(frames) > 5)

            async def lose() -> None:
                watched.primary.kill()
                await watched.promoted()
                cluster.primaries[0].kill()
                await cluster.failed_over(cluster.replicas[0])

            async with asyncio.TaskGroup() as group:
                for session, follower in followers.items():
                    group.create_task(follower.follow(session, "t1"))
                group.create_task(lose())
            for session, follower in followers.items():
                assert not follower.twice
                check_whole(follower.frames)
                end = terminal(follower.frames)
                assert end is not None
                assert end["status"] == "completed"
                assert text_of(await front.turn(session, "hi", id="t2")) == "You said: hi"
        finally:
            await stack.close()
            await place.close()


async def test_what_is_read_is_read_where_it_was_written(watched: Sentinels, stack: Stack) -> None:
    """What is large goes over a connection of its own. None is left to a former primary that stood still, and believes it is one."""
    ours = stack.broker.retrying(60).sessions
    await command(ours, "SET", "x", "before")
    assert await command(ours, "GET", "x", large=True) == b"before"
    watched.primary.freeze()
    try:
        await watched.promoted()
        # What waits at the former one for its thaw changes nothing there.
        await command(ours, "PING")
        await command(ours, "SET", "x", "after")
        assert await watched.replica.ask("GET", "x") == "after"
    finally:
        watched.primary.thaw()
    assert await watched.primary.ask("GET", "x") == "before"
    assert await command(ours, "GET", "x", large=True) == b"after"


async def test_no_sentinel_is_forgotten(watched: Sentinels, stack: Stack) -> None:
    """Connections are made side by side while the first one is away. It is back, and the only one left."""
    ours = stack.broker.retrying(60).sessions
    first, *others = watched.sentinels
    first.kill()
    await asyncio.gather(command(ours, "PING"), command(ours, "PING", large=True))
    await first.start()
    for each in others:
        each.kill()
    await watched.primary.ask("CLIENT", "KILL", "TYPE", "NORMAL")
    assert all(await asyncio.gather(command(ours, "PING"), command(ours, "PING", large=True)))


async def test_who_was_primary_comes_back_as_a_replica(watched: Sentinels, stack: Stack) -> None:
    """Nobody writes to it, whatever it believes at first; new turns are where the Sentinels say."""
    client = await stack.front_end()
    await stack.worker()
    assert text_of(await client.turn("s1", "one", id="t1")) == "You said: one"
    watched.primary.freeze()
    await watched.promoted()

    async def taken() -> bool:
        return (await client.http.get("/readyz")).status_code == 200

    await wait_until(taken, "the front end to find the new primary")
    assert text_of(await client.turn("s1", "two", id="t2")) == "You said: two"
    watched.primary.thaw()

    async def demoted() -> bool:
        return await watched.primary.role() == "slave"

    await wait_until(demoted, "the former primary to follow the new one", 60)
    await wait_until(watched.primary.in_sync, "it to have its copy")
    assert text_of(await client.turn("s1", "three", id="t3")) == "You said: three"
    async with client.follow("s1", "t1") as stream:
        check_whole(await stream.all())


async def test_what_the_promoted_replica_lacks_is_told_anew(watched: Sentinels, stack: Stack) -> None:
    """It had got nothing for a while: who has seen more is told so (410), and no id ever means two events."""
    fronts = [await stack.front_end(), await stack.front_end()]
    await stack.worker()
    async with fronts[0].process("s1", f"/tokens {TOKENS} 20", id="t1") as stream:
        await stream.until(lambda frames: len(frames) > 20)
        await watched.replica.lag(watched.primary)
        await stream.until(lambda frames: len(frames) > 60)
        seen = stream.frames[-1].id
        roams = Follower(*fronts)

        async def lose() -> None:
            await wait_until(lambda: len(roams.frames) > 60, "the follower to have seen what is lost")
            watched.primary.kill()
            await watched.promoted()

        async with asyncio.TaskGroup() as group:
            group.create_task(roams.follow("s1", "t1"))
            group.create_task(lose())
    again = Follower(fronts[1])
    await again.follow("s1", "t1")
    assert 410 in roams.statuses
    told = {**roams.told, **again.told}
    for each in (roams, again):
        assert not each.twice
        assert all(told[cursor] == event for cursor, event in each.told.items())
        check_whole(each.frames)
        end = terminal(each.frames)
        assert end is not None
        assert end["output"][-1]["content"][0]["text"] == "".join(f"tok{number} " for number in range(TOKENS))
    async with fronts[0].follow("s1", "t1", cursor=seen) as late:
        assert late.response.status_code == 410


async def test_the_doctor_asks_the_sentinels(watched: Sentinels) -> None:
    """All is well; then, one by one, a wrong name, a Sentinel that is away, and nobody left to agree or to promote."""

    async def sentinels(url: str) -> tuple[str, str]:
        secret = users.password("operator")
        variables = {
            "TURNSTREAM_REDIS_URL": url.replace("//", "//operator@"),
            "TURNSTREAM_REDIS_PASSWORD": secret,
        }
        done = await turnstream("doctor", "--url", "http://127.0.0.1:9", **variables)
        assert "Traceback" not in done.err
        assert secret not in done.out + done.err
        found = told(done)
        if found["sentinels"][0] == "ok":
            assert found["broker"] == ("ok", "answers"), done.out
            assert found["persistence"] == ("ok", "append-only file, appendfsync everysec")
        return found["sentinels"]

    assert await sentinels(watched.url) == ("ok", "3, of which 2 must agree; replicas: 1")
    level, text = await sentinels(watched.url.replace(watched.NAME, "other"))
    assert (level, text.split(" → ")[0]) == ("wrong", "none watches 'other', only 'turnstream'")
    watched.sentinels[2].kill()
    level, text = await sentinels(watched.url)
    assert (level, f"127.0.0.1:{watched.sentinels[2].port} →" in text) == ("wrong", True), text
    watched.sentinels[1].kill()

    async def noticed() -> bool:
        return "NOQUORUM" in (await sentinels(watched.url))[1]

    await wait_until(noticed, "the Sentinel to miss the others")
    watched.sentinels[0].kill()
    level, text = await sentinels(watched.url)
    assert (level, text.startswith("none answers")) == ("wrong", True), text
