"""A front end is killed while it takes a turn: what it had done of that is found, and seen to its end or forgotten.

Its links to both brokers are so slow that one command takes a good part of a second, and the test can tell which it sent last.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.processes.broker import Broker
from tests.processes.deployment import Deployment
from tests.support.client import Client, asked, check_whole, terminal
from tests.support.link import Link
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, Limits
from turnstream.shared.broker import keys
from turnstream.shared.broker.keys import TaskRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.processes.deployment import Process

REF = TaskRef("dev", "s1", "t1")

# A command of a thousand bytes then takes half a second: less than a front end insists on an answer.
BYTES_A_SECOND = 2000

# A young admission may belong to a turn that is just being made; then rescuers look, on a machine with much else to do.
IN_TIME_SECONDS = 60


class Stage:
    """Two brokers, a front end behind slow links to them, another one beside it, and a worker; one turn at a time."""

    def __init__(self, folder: Path) -> None:
        self.brokers = Broker(folder / "primary"), Broker(folder / "sessions")
        for each in self.brokers:
            each.start()
        self.primary: Any = Redis(port=self.brokers[0].port)
        self.sessions: Any = Redis(port=self.brokers[1].port)
        self.links = [Link(each.port) for each in self.brokers]
        self.deployment = Deployment(
            self.brokers[0].port,
            folder,
            TURNSTREAM_SESSION_REDIS_URL=f"redis://127.0.0.1:{self.brokers[1].port}/0",
        )
        self.key = "sk-" + secrets.token_hex(16)
        self.dying: Process
        self.other: Client
        self.worker: Process

    async def start(self) -> None:
        """Start them, with a key that may do one turn."""
        for link in self.links:
            await link.start()
        near, far = (f"redis://127.0.0.1:{link.port}/0" for link in self.links)
        self.dying, client = await self.deployment.front_end(
            TURNSTREAM_REDIS_URL=near, TURNSTREAM_SESSION_REDIS_URL=far
        )
        front_end, _ = await self.deployment.front_end()
        self.other = Client(f"http://127.0.0.1:{front_end.port}", self.key)
        self.deployment.closing(self.other)
        api_keys = ApiKeys(self.primary)
        await api_keys.register(self.key, owner="dev", agent="demo", limits=Limits(concurrency=1))
        # Scripts are large, and the brokers are taught them once.
        self.worker = await self.deployment.worker()
        await client.turn("s0", "hi")
        self.worker.signal(signal.SIGSTOP)

    async def close(self) -> None:
        """End all."""
        await self.deployment.close()
        for link in self.links:
            await link.close()
        for redis in (self.primary, self.sessions):
            await redis.aclose()
        for broker in self.brokers:
            broker.stop()

    async def kill_at(self, stage: str) -> None:
        """Send the turn, and kill the front end when it is ``noted`` at the primary, or ``queued`` at the sessions' broker."""
        headers = {"Authorization": f"Bearer {self.key}"}
        address = f"http://127.0.0.1:{self.dying.port}"
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=30) as http:
            # The key is known, too.
            asks = {"sessionId": "none"}
            assert (await http.get(f"{address}/liteAgent/v1/history", params=asks)).status_code != 401
            for link in self.links:
                link.bytes_a_second = BYTES_A_SECOND
            if stage == "noted":
                self.links[1].part()
            sent = asyncio.create_task(http.post(f"{address}/process", json=asked("s1", "hi", id="t1")))
            reached = self.noted if stage == "noted" else self.task
            await wait_until(reached, f"the turn to be {stage}")
            self.dying.signal(signal.SIGKILL)
            # What the links still hold would arrive after it.
            for link in self.links:
                link.cut_all()
                link.join()
            await self.dying.ended()
            with pytest.raises(httpx.TransportError):
                await sent

    async def hold_up(self) -> None:
        """Send the turn, have nothing of it reach the sessions' broker until rescuers have looked for it in vain, and then all."""
        headers = {"Authorization": f"Bearer {self.key}"}
        self.links[1].part()
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=30) as http:
            address = f"http://127.0.0.1:{self.dying.port}/process"
            refused = await http.post(address, json=asked("s1", "hi", id="t1"))
        assert refused.status_code == 503
        self.worker.signal(signal.SIGCONT)

        async def forgotten() -> bool:
            return await self.noted() is None

        await wait_until(forgotten, "the hint to go", IN_TIME_SECONDS)
        self.links[1].join()

    async def noted(self) -> Any:
        """When the turn is to be looked at."""
        return await self.primary.zscore(keys.DUE, str(REF))

    async def task(self) -> Any:
        """What the sessions' broker has of it."""
        return await self.sessions.hgetall(REF.keys.task(REF.task))

    async def launched(self) -> int:
        """How many launches wait."""
        return int(await self.primary.zcard(keys.QUEUE))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """As it says."""
    stage = Stage(tmp_path)
    try:
        await stage.start()
        yield stage
    finally:
        await stage.close()


async def test_a_turn_that_was_queued_but_not_launched_is_run(stage: Stage) -> None:
    """Nobody asks for it again; who comes to follow it later is told all of it."""
    await stage.kill_at("queued")
    assert (await stage.task())[b"status"] == b"queued"
    assert await stage.launched() == 0
    stage.worker.signal(signal.SIGCONT)

    async def ended() -> bool:
        return bool((await stage.task()).get(b"status") == b"completed")

    await wait_until(ended, "the turn to be run", IN_TIME_SECONDS)
    async with stage.other.follow("s1", "t1") as stream:
        frames = await stream.all()
    check_whole(frames)
    assert terminal(frames)


async def test_a_turn_that_was_noted_but_not_queued_is_forgotten(stage: Stage) -> None:
    """It holds up nothing: its hint is gone, and its owner, who may do one turn, can begin another."""
    await stage.kill_at("noted")
    assert not await stage.task()
    stage.worker.signal(signal.SIGCONT)

    async def forgotten() -> bool:
        return await stage.noted() is None

    await wait_until(forgotten, "the hint to go", IN_TIME_SECONDS)

    async def taken() -> bool:
        async with stage.other.process("s2", "hi", id="t2") as stream:
            return bool(stream.response.status_code == 200)

    await wait_until(taken, "the owner to be let in", IN_TIME_SECONDS)
    assert b"status" not in await stage.task()
    async with stage.other.follow("s2", "t2") as stream:
        assert terminal(await stream.all())


async def test_a_turn_that_comes_in_when_it_was_looked_for_in_vain_is_not_overlooked(stage: Stage) -> None:
    """A network holds it back: its front end has given up, its hint is used up. Its client sends it again, and has it run."""
    await stage.hold_up()
    frames: list[Any] = []

    async def run() -> bool:
        async with stage.other.process("s1", "hi", id="t1") as stream:
            # Its first try counts until it is known what became of it.
            if stream.response.status_code == 200:
                frames.extend(await stream.all())
        return bool(frames)

    async with asyncio.timeout(IN_TIME_SECONDS):
        await wait_until(run, "the turn to be run", IN_TIME_SECONDS)
    check_whole(frames)
    assert terminal(frames)
