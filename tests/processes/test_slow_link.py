"""A narrow link to the broker: what is large takes its time, and keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.support.client import Client, check_whole
from tests.support.link import Link
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker import pipeline
from turnstream.shared.broker.client import Broker, command
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.event_log import Log
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.conftest import Place

MIB = 1024 * 1024


async def longest_share(broker: Broker, during: Awaitable[object]) -> float:
    """What part of the time that something large was on its way a small command took at most.

    Behind it, that is most of the time. A machine that is slow makes both longer.
    """
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    started = loop.time()
    task = asyncio.ensure_future(during)

    async def through() -> bool:
        begun = loop.time()
        await command(broker.sessions, "PING")
        waits.append(loop.time() - begun)
        return task.done()

    await wait_until(through, "what is large to be on the other side", 60)
    await task
    return max(waits) / (loop.time() - started)


@pytest.fixture
def backend() -> str:
    """There is a link to a real broker only."""
    return "valkey"


@pytest.mark.parametrize("mebibytes_a_second", [10, 3])
async def test_what_is_large_takes_its_time_and_holds_up_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch, mebibytes_a_second: int
) -> None:
    """Replies and commands that take longer than a silent broker is waited for, in both directions."""
    monkeypatch.setattr(pipeline, "COMMAND_SECONDS", 1.5)
    size = 3 * mebibytes_a_second * MIB
    port = int(place.url.rpartition(":")[2].partition("/")[0])
    keys = SessionKeys("dev", "s1")
    near = place.connect()
    # The random part keeps the history's one entry from being small on its way.
    event = secrets.token_bytes(size)
    fields = ("t", "t1", "a", "", "y", "end", "c", "1", "e", event, "x", "")
    await command(near.sessions, "HSET", keys.meta, "epoch", 1, "seq", 1)
    await command(near.sessions, "EXPIRE", keys.meta, 100)
    await command(near.sessions, "XADD", keys.history, "1-1", *fields, large=True)
    await command(near.sessions, "EXPIRE", keys.history, 100)
    async with Link(port, mebibytes_a_second * MIB) as link:
        far = Broker(Settings(redis_url=f"redis://127.0.0.1:{link.port}/0"))
        try:
            reading = Log(far.sessions).kept(keys)
            assert await longest_share(far, reading) < 0.4
            assert await longest_share(far, command(far.sessions, "SETEX", "x", 100, event, large=True)) < 0.4
            assert await command(near.sessions, "STRLEN", "x") == size
        finally:
            await far.close()


async def test_turns_go_on_beside_a_fat_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session's large turns, through a narrow link of the worker's: a neighbour's events keep coming."""
    monkeypatch.setattr(pipeline, "COMMAND_SECONDS", 1.5)
    port = int(place.url.rpartition(":")[2].partition("/")[0])
    async with Link(port, 2 * MIB) as link:
        stack = Stack(place)
        try:
            url = place.credentials("worker")["redis_url"].replace(f":{port}/", f":{link.port}/")
            await stack.worker(redis_url=url)
            client = await stack.front_end()
            loop = asyncio.get_running_loop()
            started = loop.time()
            fat = asyncio.create_task(_fat(client))
            longest = 0.0
            while not fat.done():
                async with client.process("s2", "/tokens 20 20") as stream:
                    for count in range(1, 20):
                        begun = loop.time()
                        await stream.until(lambda frames, count=count: len(frames) >= count)
                        longest = max(longest, loop.time() - begun if count > 6 else 0)
                    check_whole(await stream.all())
            await fat
            # Behind one of the fat turns' transfers it would be a good part of them.
            assert longest < (loop.time() - started) / 4
        finally:
            await stack.close()


async def _fat(client: Client) -> None:
    for _ in range(2):
        image = {"type": "image", "image_url": "data:image/png;base64," + "QUJD" * (2 * MIB)}
        body = {"session_id": "s1", "stream": False, "input": [{"role": "user", "content": [image]}]}
        answer = await client.http.post("/process", json=body, timeout=60)
        assert answer.json()["status"] == "completed", answer.text[:500]
