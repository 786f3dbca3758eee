"""Hints on another server than sessions: what comes there after its hint was used up is not overlooked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.unit.shared.session.support import HOUR_MS, Desk, answer, keys_of, ref, turn
from turnstream.shared.broker import keys
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.outcomes import Attempt, Launch
from turnstream.shared.session.queue import LAUNCH_GRACE_MS
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.worker.rescuer import Rescuer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place


def _apart(place: Place) -> Desk:
    desk = Desk(place)
    desk.tasks = Tasks(desk.redis, desk.settings)
    desk.ender = replace(desk.ender, tasks=desk.tasks)
    return desk


async def _hint(desk: Desk) -> float | None:
    found: float | None = await desk.primary.zscore(keys.DUE, str(ref()))
    return found


async def _look(desk: Desk) -> None:
    """A rescuer looks at the task, and puts the next look off."""
    hint = await _hint(desk)
    assert hint is not None
    await Rescuer(desk.ender, desk.settings).sweep(ref(), int(hint))
    assert not await _looked_at_soon(desk)


async def _looked_at_soon(desk: Desk) -> bool:
    hint = await _hint(desk)
    return hint is not None and hint <= await desk.now() + LAUNCH_GRACE_MS


async def _held_up(desk: Desk, ask: Callable[[str], Awaitable[Any]]) -> Any:
    """What is said to ``ask`` when a rescuer has looked since its hint was left, and it comes twice: the first time in vain."""
    tries: list[str] = []

    async def late(look: str) -> Any:
        tries.append(look)
        if len(tries) == 1:
            await _look(desk)
            return await desk.nothing_written(lambda: ask(look))
        return await ask(look)

    outcome = await desk.launches.hinted(ref(), late, here=False)
    assert len(tries) == 2
    assert tries[1]
    return outcome


async def test_a_turn_that_is_submitted_late(place: Place) -> None:
    """The look found no such turn, and nobody was to look again."""
    desk = _apart(place)
    await desk.tasks.create(keys_of(), "demo", "")
    op = operation()
    outcome = await _held_up(desk, lambda look: desk.tasks.submit(ref(), turn(), op, look))
    assert isinstance(outcome, Launch)
    assert await _looked_at_soon(desk)
    # A repeat has the same outcome, whatever it knows of.
    assert await desk.nothing_written(lambda: desk.tasks.submit(ref(), turn(), op)) == outcome
    await desk.finish(await desk.begin(ref()))


async def test_an_answer_that_comes_late(place: Place) -> None:
    """The look found a turn that waits for it for an hour."""
    desk = _apart(place)
    await desk.parked("c1", wait_ms=HOUR_MS)
    outcome = await _held_up(
        desk, lambda look: desk.tasks.callback(ref(), "c1", b"{}", answer("c1"), "", look)
    )
    assert isinstance(outcome, Launch)
    assert await _looked_at_soon(desk)


async def test_a_stop_that_comes_late(place: Place) -> None:
    """The look found a turn that waits for its client; who stops it may die before it has written the end."""
    desk = _apart(place)
    await desk.parked("c1", wait_ms=HOUR_MS)
    op = operation()
    outcome = await _held_up(
        desk,
        lambda look: desk.tasks.take(ref(), "client", "canceled stop", op, look=True, known_look=look),
    )
    assert isinstance(outcome, Attempt)
    assert await _looked_at_soon(desk)


async def test_what_was_looked_at_can_be_stopped(place: Place) -> None:
    """Whoever stops it finds out that it was, and leaves a hint anew."""
    desk = _apart(place)
    await desk.parked("c1", wait_ms=HOUR_MS)
    await desk.launches.remind(ref(), LAUNCH_GRACE_MS)
    await _look(desk)
    await end_from_outside(desk.ender, ref(), TaskStatus.CANCELED, "stop", who="client")
    assert await desk.redis.hget(ref().keys.task(ref().task), "status") == b"canceled"
