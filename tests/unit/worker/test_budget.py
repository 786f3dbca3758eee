"""A worker's budget of bytes: heavy turns wait for room, light ones pass, and one alone always runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.client import terminal, text_of
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.session.outcomes import Attempt, Heavy
from turnstream.shared.session.tasks import operation
from turnstream.worker.budget import LIGHT, Budget, NoRoom

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.stack import Stack

MIB = 2**20


async def test_heavy_turns_wait_in_turn_until_they_fit() -> None:
    """The first that waits is let in first, also when a later one would fit before."""
    budget = Budget(10 * MIB)
    done: list[str] = []
    gates = {name: asyncio.Event() for name in "abcd"}

    async def turn(name: str, size: int) -> None:
        with budget.share() as share:
            await share.take(size)
            done.append(name)
            await gates[name].wait()

    sizes = {"a": 6 * MIB, "b": 3 * MIB, "c": 8 * MIB, "d": MIB}
    turns = {name: asyncio.create_task(turn(name, size)) for name, size in sizes.items()}
    await wait_until(lambda: budget.waiting == 2, "two turns to wait")
    assert done == ["a", "b"]
    assert budget.taken == 9 * MIB
    gates["a"].set()
    await turns["a"]
    assert done == ["a", "b"]
    gates["b"].set()
    await wait_until(lambda: done == ["a", "b", "c", "d"], "the others to be let in")
    for gate in gates.values():
        gate.set()
    await asyncio.gather(*turns.values())
    assert (budget.taken, budget.waiting) == (0, 0)


async def test_a_turn_larger_than_the_budget_runs_alone() -> None:
    """It waits until nobody else is heavy, and nobody heavy begins beside it."""
    budget = Budget(MIB)
    with budget.share() as small, budget.share() as large:
        await small.take(MIB // 2)
        waits = asyncio.create_task(large.take(50 * MIB))
        await wait_until(lambda: budget.waiting == 1, "the large one to wait")
        small.__exit__(None, None, None)
        await waits
        assert budget.taken == 50 * MIB
    assert budget.taken == 0


async def test_who_gives_up_waiting_takes_nothing() -> None:
    """Cancelled while it waits, or just as it was let in, a turn leaves the room to others."""
    budget = Budget(MIB)
    with budget.share() as first:
        await first.take(MIB)
        with budget.share() as other:
            waits = asyncio.create_task(other.take(MIB))
            await wait_until(lambda: budget.waiting == 1, "the other to wait")
            waits.cancel()
            with suppress(asyncio.CancelledError):
                await waits
            assert budget.waiting == 0
            late = asyncio.create_task(other.take(MIB))
            await wait_until(lambda: budget.waiting == 1, "the other to wait")
            first.__exit__(None, None, None)
            late.cancel()
            with suppress(asyncio.CancelledError):
                await late
            assert budget.taken == 0


async def test_nobody_waits_in_a_worker_that_drains() -> None:
    """Those that wait are told, and so is whoever comes."""
    budget = Budget(MIB)
    with budget.share() as first, budget.share() as other:
        await first.take(MIB)
        waits = asyncio.create_task(other.take(MIB))
        await wait_until(lambda: budget.waiting == 1, "the other to wait")
        budget.close()
        with pytest.raises(NoRoom):
            await waits
        with pytest.raises(NoRoom):
            await other.take(1)


async def test_a_turn_that_is_too_heavy_is_not_begun(place: Place) -> None:
    """Its bytes are told instead: request, memory, calls and checkpoints; and nothing was taken."""
    desk = Desk(place)
    first = await desk.running()
    await desk.finish(first, memory=b"m" * 3_000)
    await desk.submit(ref("t2"), request=b'{"input":["' + b"x" * 5_000 + b'"]}')

    outcome = await desk.nothing_written(
        lambda: desk.tasks.begin(ref("t2"), 1, "w1", operation(), room=8_000)
    )
    assert outcome == Heavy(8_014)
    begun = await desk.tasks.begin(ref("t2"), 1, "w1", operation(), room=8_014)
    assert isinstance(begun, Attempt)
    assert begun.number == 1


async def test_a_light_turn_passes_heavy_ones(stack: Stack) -> None:
    """While heavy turns wait for each other, even in all slots, a neighbour's runs; in the end all have run."""
    await stack.worker(worker_max_bytes=MIB, max_jobs=3)
    client = await stack.front_end()
    await client.turn("h0", "x" * LIGHT)
    async with client.process("h0", "/slow 60", id="h0") as first:
        await first.until(lambda frames: len(frames) > 2)
        others = [asyncio.create_task(client.turn(f"h{number}", "y" * 900_000)) for number in range(1, 6)]
        budget = stack.workers[0][0].budget
        await wait_until(lambda: budget.waiting == 5, "the heavy turns to wait for room")
        assert text_of(await client.turn("light", "hello")) == "You said: hello"
        assert budget.waiting == 5
        await client.stop("h0")
        for each in others:
            ended = terminal(await each)
            assert ended is not None
            assert ended["status"] == "completed"
    await wait_until(lambda: budget.taken == 0, "the room to be free again")


async def test_a_worker_that_drains_gives_waiting_turns_back(stack: Stack) -> None:
    """What waited for room there runs elsewhere, at once."""
    worker = await stack.worker(worker_max_bytes=MIB)
    client = await stack.front_end()
    await client.turn("h0", "x" * LIGHT)
    async with client.process("h0", "/slow 60", id="h0") as first:
        await first.until(lambda frames: len(frames) > 2)
        waits = asyncio.create_task(client.turn("h1", "y" * 900_000))
        await wait_until(lambda: worker.budget.waiting == 1, "the heavy turn to wait for room")
        other = await stack.worker()
        await stack.stop_worker(worker)
        ended = terminal(await waits)
        assert ended is not None
        assert ended["status"] == "completed"
        await client.stop("h0")
    assert other.budget.waiting == 0
