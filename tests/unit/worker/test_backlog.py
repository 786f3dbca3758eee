"""A backlog costs nothing while it waits: what rescuers do depends on what happens, not on how much there is."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.broker import keys
from turnstream.worker.rescuer import Rescuer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.conftest import Place

# Turns that wait, and what 40,000 of them may cost in a second.
WAITING = 2_000
MOST_COMMANDS = 100 * WAITING / 40_000

# Seconds for which is counted: longer than the times between two looks used to be.
COUNTED_SECONDS = 16

# Commands of a rescuer that finds nothing due, in a second.
IDLE_COMMANDS = 5


@asynccontextmanager
async def rescuing(desk: Desk) -> AsyncIterator[Rescuer]:
    """A rescuer at work, whose broker was never away."""
    rescuer = Rescuer(desk.ender, desk.settings)
    rescuer.outages.whole_since = time.monotonic() - 60
    watching = asyncio.create_task(rescuer.watch())
    try:
        yield rescuer
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _submit(desk: Desk, count: int, session: str = "") -> None:
    for number in range(count):
        task = ref("t1", session or f"s{number}")
        await desk.submit(task)
        await desk.launches.launch(task, 1)
        await desk.launches.remind(task, 0)
        await desk.put(task, launched=await desk.past())


async def _wait_in_turn(desk: Desk, count: int) -> None:
    """A tenth of them wait for a worker, and the others for these."""
    for session in range(count // 10):
        await _submit(desk, 1, f"s{session}")
        for number in range(1, 10):
            task = ref(f"t{number}", f"s{session}")
            await desk.submit(task)
            await desk.launches.note(task)
            await desk.launches.remind(task, 0)


async def _commands(desk: Desk) -> int:
    told: dict[str, Any] = await desk.primary.info("commandstats")
    return sum(int(each["calls"]) for each in told.values())


@pytest.mark.parametrize(("submit", "launched"), [(_submit, WAITING), (_wait_in_turn, WAITING // 10)])
async def test_a_backlog_that_waits_costs_next_to_nothing(
    real: Place, submit: Callable[[Desk, int], Awaitable[None]], launched: int
) -> None:
    """With thousands of turns in the queue, or behind these, the broker does little more than for none."""
    desk = Desk(real)
    await submit(desk, WAITING)
    async with rescuing(desk):

        async def looked_at() -> bool:
            # Also by who recalls them all, as a rescuer does that is the first one.
            return not await desk.primary.zcount(keys.DUE, "-inf", await desk.now() + 100_000)

        await wait_until(looked_at, "every turn to be looked at", 60)
        await desk.primary.config_resetstat()
        loop = asyncio.get_running_loop()
        until = loop.time() + COUNTED_SECONDS
        await wait_until(lambda: loop.time() > until, "the time to count", COUNTED_SECONDS + 10)
        commands = await _commands(desk)
    assert commands < COUNTED_SECONDS * (MOST_COMMANDS + IDLE_COMMANDS), commands
    assert await desk.launches.depth() == launched


@pytest.mark.parametrize("lost", [(keys.QUEUE,), (keys.QUEUE, keys.QUEUE_TAGS)])
async def test_launches_that_the_queue_lost_are_missed(
    place: Place, monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...]
) -> None:
    """Somebody deleted the queue: it has fewer launches than were put there, and each turn is launched again."""
    monkeypatch.setattr("turnstream.worker.rescuer.COUNT_SECONDS", 0.1)
    desk = Desk(place)
    await _submit(desk, 5)
    async with rescuing(desk):

        async def looked_at() -> bool:
            return not await desk.primary.zcount(keys.DUE, "-inf", await desk.now() + 100_000)

        await wait_until(looked_at, "every turn to be looked at")
        for number in range(5):
            await desk.put(ref("t1", f"s{number}"), launched=await desk.past())
        await desk.primary.delete(*lost)

        async def launched() -> bool:
            return await desk.launches.depth() == 5

        await wait_until(launched, "the turns to be launched again")
    assert len(await desk.launches.claim(8)) == 5
