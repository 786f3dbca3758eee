"""An answer of one JSON object: what it costs to wait for it while a call to the client is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from fakeredis import FakeServer

from tests.conftest import Place
from tests.support.instant import InstantLoop
from tests.unit.shared.session.support import HOUR_MS, Desk, closed, keys_of, ref
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.protocols.agent_api.response import WholeResponse
from turnstream.api.streaming.hub import Hub
from turnstream.api.streaming.start_position import Start
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.outcomes import Parked
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turnstream.shared.broker.keys import SessionKeys

# For so long the turn has an open call and goes on beside it, by the event loop's clock.
OPEN_SECONDS = 600


class CountingLog(Log):
    """Counts the looks at tasks."""

    looks = 0

    async def task(self, keys: SessionKeys, task: str) -> dict[str, str]:
        """Look at one."""
        self.looks += 1
        return await super().task(keys, task)


def _call() -> Batch:
    """A call that the client must answer, as it is announced."""
    batch = Batch()
    batch.call("c1", b'{"name":"weather"}')
    content = [{"type": "data", "data": {"call_id": "c1", "name": "weather", "arguments": "{}"}}]
    said = {"object": "message", "status": "completed", "id": "m1", "type": "function_call"}
    batch.closing("m1", "function_call", orjson.dumps({**said, "content": content}))
    return batch


async def _waiting_beside_a_call() -> None:
    place = Place("memory://", FakeServer())
    desk = Desk(place)
    log = CountingLog(desk.redis)
    hub = Hub(desk.redis, log)
    try:
        attempt = await desk.running()
        start = Start(Cursor(attempt.epoch, 0), "t1", fresh=True)
        response = WholeResponse(hub.follow(keys_of()), start, AGENTSCOPE, log)
        waiting = asyncio.create_task(response._wait())
        await desk.append(attempt, _call())
        await asyncio.sleep(OPEN_SECONDS)
        # As often as an idle one: a turn that parks says so.
        assert log.looks < OPEN_SECONDS / 30
        assert not waiting.done()
        outcome = await desk.tasks.park(
            ref(), attempt.claim, closed("m2", "one moment"), operation(), wait_ms=HOUR_MS, policy="block"
        )
        assert outcome == Parked()
        async with asyncio.timeout(1):
            body = await waiting
        assert body is not None
        told = orjson.loads(body)
        assert (told["status"], [each["id"] for each in told["output"]]) == ("in_progress", ["m1", "m2"])
    finally:
        await hub.stop()
        await place.close()


@pytest.fixture
def instantly() -> Callable[[Awaitable[Any]], Any]:
    """Runs it on a loop in which no time passes."""

    def run(work: Awaitable[Any]) -> Any:
        loop = InstantLoop()
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()

    return run


def test_an_open_call_is_not_polled_for(instantly: Callable[[Awaitable[Any]], Any]) -> None:
    """Beside it the turn may go on for long: its client costs the broker nothing meanwhile, and has the answer when it parks."""
    instantly(_waiting_beside_a_call())
