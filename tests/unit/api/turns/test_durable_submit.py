"""What a client relies on once it is acknowledged is launched, whatever became of the front end that took it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.shared.session.support import HOUR_MS, Desk, answer, ref, turn
from turnstream.api.services import Services
from turnstream.api.turns.durable_submit import accept
from turnstream.shared.agents import config
from turnstream.shared.broker import keys
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.outcomes import Launch
from turnstream.shared.session.queue import TOGETHER_GRACE_MS, LaunchQueue
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.session.tasks import Tasks


def _services(desk: Desk) -> Services:
    return Services.make(desk.settings, config.load(None), desk.broker, retry_seconds=0.05)


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front end that dies before it has launched anything."""

    async def lost(*_: Any, **__: Any) -> bool:
        raise BrokerAway

    monkeypatch.setattr(LaunchQueue, "launch", lost)


async def _looked_at_soon(desk: Desk) -> bool:
    hint = await desk.primary.zscore(keys.DUE, str(ref()))
    return hint is not None and hint <= await desk.now() + TOGETHER_GRACE_MS


async def test_a_turn_that_is_taken_late_is_looked_at(place: Place, no_launch: None) -> None:
    """Its front end stood still until a rescuer had looked for the turn in vain, and dies before it launches it."""
    desk = Desk(place)
    # So that the broker knows the script.
    await desk.launches.remind(ref("other"), HOUR_MS)
    op = operation()

    async def late(tasks: Tasks, look: str) -> Any:
        # What a look does that finds nothing.
        await desk.primary.zrem(keys.DUE, str(ref()))
        return await tasks.submit(ref(), turn(), op, look)

    outcome, _ = await accept(_services(desk), ref(), late, what="submit", number=1)
    assert isinstance(outcome, Launch)
    assert await _looked_at_soon(desk)


async def test_an_answer_that_is_taken_late_is_looked_at(place: Place, no_launch: None) -> None:
    """So with a client's answer: the look found a turn that waits for it for an hour."""
    desk = Desk(place)
    await desk.parked("c1", wait_ms=HOUR_MS)

    async def late(tasks: Tasks, look: str) -> Any:
        await desk.primary.zadd(keys.DUE, {str(ref()): await desk.now() + HOUR_MS})
        return await tasks.callback(ref(), "c1", b"{}", answer("c1"), "", look)

    outcome, _ = await accept(_services(desk), ref(), late, what="callback")
    assert isinstance(outcome, Launch)
    assert await _looked_at_soon(desk)


async def test_a_refused_turn_leaves_no_hint(place: Place) -> None:
    """Nobody looks for a turn that was not taken."""
    desk = Desk(place)
    op = operation()
    await accept(
        _services(desk),
        ref(),
        lambda tasks, look: tasks.submit(ref(), turn(create=False), op, look),
        what="submit",
        number=1,
    )
    assert await desk.primary.zcard(keys.DUE) == 0


async def test_a_launch_that_overtakes_its_turn_is_repeated(place: Place) -> None:
    """A broker that has to be taught the submit, but knows the launch, runs the launch first: nobody waits for it yet."""
    desk = Desk(place)
    await desk.redis.script_flush()
    await desk.launches.launch(ref("other"), 1)
    assert len(await desk.launches.claim(8)) == 1
    op = operation()
    await accept(
        _services(desk),
        ref(),
        lambda tasks, look: tasks.submit(ref(), turn(), op, look),
        what="submit",
        number=1,
    )
    assert list(await desk.launches.claim(8)) == ["o1/s1/t1:1"]
