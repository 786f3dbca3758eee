"""A log that lacks what was written of a turn that is to be ended: it was lost, or dropped meanwhile; it is not waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ReadOnlyError

from tests.unit.shared.session.support import Desk, closed, delta, keys_of, opened, ref
from turnstream.shared.broker.client import command
from turnstream.shared.session import endings
from turnstream.shared.session.endings import end_all, end_from_outside
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import SessionMeta
from turnstream.shared.session.outcomes import Cleared, Finished, Live, Missing

if TYPE_CHECKING:
    from tests.conftest import Place

# For how long a request retries what passes by itself.
RETRY_SECONDS = 5.0


@pytest.mark.parametrize("whole", [True, False])
async def test_two_who_clear_a_session_are_both_done(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """The one that took the turn first reads what was said after the other has cleared the session, or deleted it."""
    desk = Desk(place)
    ender = desk.ender.retrying(RETRY_SECONDS)
    attempt = await desk.running()
    await desk.append(attempt, delta("m1", "abc", opened("m1")))
    epoch = None if whole else await desk.epoch()
    taken, cleared = asyncio.Event(), asyncio.Event()
    read = endings._tell_and_read

    async def late(*given: Any) -> Any:
        if not taken.is_set():
            taken.set()
            await cleared.wait()
        return await read(*given)

    async def clear() -> Cleared | Missing:
        while isinstance(outcome := await desk.tasks.clear(keys_of(), epoch), Live):
            await end_all(ender, [ref(task) for task in outcome.tasks], "canceled", "cleared", who="client")
        return outcome

    monkeypatch.setattr(endings, "_tell_and_read", late)
    first = asyncio.create_task(clear())
    await taken.wait()
    assert isinstance(await clear(), Cleared)
    cleared.set()
    # Not after all retries: nothing passes by itself here.
    async with asyncio.timeout(RETRY_SECONDS / 2):
        assert isinstance(await first, Missing if whole else Cleared)


async def test_a_turn_is_ended_though_the_log_lost_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment in which its attempt is taken and that in which it is read."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "abc", opened("m1")))
    state = await desk.state()
    await desk.append(attempt, closed("m2", "def", opened("m2")))
    take, lost = endings._take, False

    async def losing(*given: Any, **more: Any) -> Any:
        nonlocal lost
        taken = await take(*given, **more)
        if not lost:
            lost = True
            await desk.go_back(state)
        return taken

    monkeypatch.setattr(endings, "_take", losing)
    async with asyncio.timeout(RETRY_SECONDS / 2):
        ender = desk.ender.retrying(RETRY_SECONDS)
        outcome = await end_from_outside(ender, ref(), "canceled", "stop", who="client")
    assert isinstance(outcome, Finished)
    end = (await desk.log.history(keys_of()))[-1].event
    assert b'"id":"m1"' in end
    assert b'"id":"m2"' not in end


async def test_no_part_of_a_history_is_copied_for_all_of_it(place: Place) -> None:
    """A fork that reads at a server which lags is told so, and reads again."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "abc", opened("m1")))
    await desk.append(attempt, closed("m2", "def", opened("m2")))
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    last = Cursor(meta.epoch, meta.seq)
    rows = [seq async for seq, _ in desk.log.all_kept_rows(keys_of(), last)]
    assert rows[-1] == meta.seq
    await command(desk.redis, "HSET", keys_of().meta, "seq", meta.seq - 2)
    with pytest.raises(ReadOnlyError):
        [seq async for seq, _ in desk.log.all_kept_rows(keys_of(), last)]


def test_what_is_known_of_former_epochs_decides() -> None:
    """Of one that is remembered no more nobody can say what it had: that is no reason to wait."""
    meta = SessionMeta("demo", "", epoch=50, seq=9, head=1, active="", former={40: 7, 10: 3})
    assert not meta.lacks(Cursor(50, 9))
    assert meta.lacks(Cursor(50, 10))
    assert not meta.lacks(Cursor(40, 7))
    assert meta.lacks(Cursor(40, 8))
    assert not meta.lacks(Cursor(30, 99))
    assert meta.lacks(Cursor(9, 1))
    assert meta.lacks(Cursor(60, 1))
