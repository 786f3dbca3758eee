"""An answer of one JSON object: what it costs to wait for it while a call to the client is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from fakeredis import FakeServer

from tests.conftest import Place
from tests.support.instant import InstantLoop
from tests.unit.shared.session.support import HOUR_MS, Desk, answer, closed, keys_of, ref
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
    from turnstream.shared.session.outcomes import Attempt

# For so long the turn has an open call and goes on beside it, by the event loop's clock.
OPEN_SECONDS = 600


class CountingLog(Log):
    """Counts the looks at tasks."""

    looks = 0

    async def task(self, keys: SessionKeys, task: str, *, sure: bool = False) -> dict[str, str]:
        """Look at one."""
        self.looks += 1
        return await super().task(keys, task, sure=sure)


def _call() -> Batch:
    """A call that the client must answer, as it is announced."""
    batch = Batch()
    batch.call("c1", b'{"name":"weather"}')
    content = [{"type": "data", "data": {"call_id": "c1", "name": "weather", "arguments": "{}"}}]
    said = {"object": "message", "status": "completed", "id": "m1", "type": "function_call"}
    batch.closing("m1", "function_call", orjson.dumps({**said, "content": content}))
    return batch


async def _park(desk: Desk, attempt: Attempt) -> None:
    """As workers do."""
    outcome = await desk.tasks.park(
        ref(), attempt.claim, closed("m2", "one moment"), operation(), wait_ms=HOUR_MS, policy="block"
    )
    assert outcome == Parked()


async def _park_as_earlier(desk: Desk, attempt: Attempt) -> None:
    """As workers of an earlier release do: the status tells it, and a message of the tail that nothing was written."""
    seq = await desk.append(attempt, closed("m2", "one moment"))
    await desk.put(ref(), status="parked", parked_until=await desk.now() + HOUR_MS)
    await desk.redis.publish(keys_of().tail, f"{attempt.epoch}-{seq + 1}-{seq}")


async def _waiting_beside_a_call(park: Callable[[Desk, Attempt], Awaitable[None]]) -> None:
    place = Place("memory://", FakeServer())
    desk = Desk(place)
    log = CountingLog(desk.redis)
    hub = Hub(desk.redis, log)
    try:
        attempt = await desk.running()
        start = Start(Cursor(attempt.epoch, 0), "t1", fresh=True)
        response = WholeResponse(hub.follow(keys_of()), start, AGENTSCOPE, log)
        waiting = asyncio.create_task(response.wait())
        await desk.append(attempt, _call())
        await asyncio.sleep(OPEN_SECONDS)
        # As often as an idle one: a turn that parks says so.
        assert log.looks < OPEN_SECONDS / 30
        assert not waiting.done()
        await park(desk, attempt)
        async with asyncio.timeout(1):
            answer = await waiting
        assert answer is not None
        told = orjson.loads(answer[1])
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


@pytest.mark.parametrize("park", [_park, _park_as_earlier])
def test_an_open_call_is_not_polled_for(
    instantly: Callable[[Awaitable[Any]], Any], park: Callable[[Desk, Attempt], Awaitable[None]]
) -> None:
    """Beside it the turn may go on for long: its client costs the broker nothing meanwhile, and has the answer when it parks."""
    instantly(_waiting_beside_a_call(park))


async def _answered_park() -> None:
    place = Place("memory://", FakeServer())
    desk = Desk(place)
    log = CountingLog(desk.redis)
    hub = Hub(desk.redis, log)
    try:
        attempt = await desk.running()
        await desk.append(attempt, _call())
        await _park(desk, attempt)
        await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
        second = await desk.begin(ref(), 2)
        response = WholeResponse(
            hub.follow(keys_of()), Start(Cursor(attempt.epoch, 0), "t1", fresh=True), AGENTSCOPE, log
        )
        waiting = asyncio.create_task(response.wait())
        await asyncio.sleep(OPEN_SECONDS)
        assert not waiting.done()
        await desk.finish(second)
        async with asyncio.timeout(1):
            answered = await waiting
        assert answered is not None
        assert orjson.loads(answered[1])["status"] == "completed"
    finally:
        await hub.stop()
        await place.close()


def test_a_park_that_was_answered_is_over(instantly: Callable[[Awaitable[Any]], Any]) -> None:
    """Its entry is passed over: the turn runs again."""
    instantly(_answered_park())
