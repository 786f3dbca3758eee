"""Sessions on a broker of their own: hints and launches stay on the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Place
from tests.processes.broker import Broker
from tests.support.client import calls_of, check_whole, text_of
from tests.support.stack import Stack
from turnstream.shared.broker import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class TwoPlaces(Place):
    """Both brokers let everybody in."""

    def credentials(self, user: str) -> dict[str, Any]:
        """None."""
        return {}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A deployment on two brokers."""
    homes = Broker(tmp_path / "primary"), Broker(tmp_path / "sessions")
    urls = [f"redis://127.0.0.1:{home.start().port}/0" for home in homes]
    place = TwoPlaces(urls[0], None)
    stack = Stack(place, session_redis_url=urls[1])
    yield stack
    await stack.close()
    await place.close()
    for home in homes:
        home.stop()


async def test_turns_and_answers_over_two_brokers(stack: Stack) -> None:
    """A turn, one that asks its client, and a clear: each finds what it needs on its side."""
    client = await stack.front_end()
    await stack.worker()
    assert text_of(await client.turn("s1", "hi", id="t1")) == "You said: hi"
    async with client.process("s1", "/call f {}", id="t2") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert (await client.callback("s1", call["call_id"], "done")).status_code == 200
        check_whole(await stream.all())
    primary: Any = stack.broker.primary
    sessions: Any = stack.broker.sessions
    assert {name async for name in primary.scan_iter("ts:{*")} == set()
    assert await primary.zscore(keys.DUE, "dev/s1/t1") is not None
    assert await sessions.exists(keys.DUE) == 0
    assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})).status_code == 200
