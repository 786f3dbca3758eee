"""How long a session lives, and how much of its log is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.shared.session.support import (
    HOUR_MS,
    Desk,
    answer,
    asking,
    closed,
    delta,
    ended,
    keys_of,
    opened,
    ref,
)
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import Cleared, Drop, Ended, Gone, Launch, Parked, Repeated, Stored
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place
    from turnstream.shared.session.outcomes import Attempt

# Less than what a test may take, more than what a key may have lost meanwhile.
SLACK_MS = 9_000


async def test_every_key_of_a_session_expires(place: Place) -> None:
    """After each step of a task's life no key of its session is there for ever."""
    desk = Desk(place)
    await desk.tasks.create(keys_of(), "demo", "")
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: desk.submit(ref(), idempotency="k", digest="d"),
        lambda: desk.submit(ref("t2")),
        lambda: desk.begin(ref()),
        lambda: desk.tasks.append(ref(), 1, _kept(asking("c1", "c2")), operation()),
        lambda: desk.tasks.renew(ref(), 1),
        lambda: desk.tasks.park(ref(), 1, opened("m1"), operation(), wait_ms=HOUR_MS, policy="block"),
        lambda: desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()),
        lambda: desk.tasks.callback(ref(), "c2", b"2", answer("c2"), operation()),
        lambda: desk.begin(ref(), 2),
        lambda: desk.tasks.release(ref(), 2, operation()),
        lambda: desk.tasks.take(ref(), "api", "canceled stop", operation()),
        lambda: _end(desk, 3),
        lambda: desk.tasks.sweep(ref("t2"), operation()),
        lambda: desk.tasks.take(ref("t2"), "api", "canceled stop", operation()),
        lambda: _end(desk, 1, "t2"),
        lambda: _clear(desk),
    ]
    for step in steps:
        await step()
        lives = await desk.lives()
        assert lives
        assert all(0 < life <= 86_400_000 + HOUR_MS for life in lives.values()), lives


async def test_a_session_that_is_used_does_not_age(place: Place) -> None:
    """A renewal alone, of a worker whose tool is silent, gives every key its whole time again."""
    desk = Desk(place)
    attempt = await desk.running(idempotency="k", digest="d")
    await desk.append(attempt, _kept(closed("m1", batch=opened("m1"))))
    await desk.submit(ref("t2"))
    for key in await desk.lives():
        await desk.redis.pexpire(key, 60_000)
    await desk.put(ref(), fresh=await desk.past())
    await desk.tasks.renew(ref(), 1)
    lives = await desk.lives()
    assert all(life > 86_400_000 - SLACK_MS for life in lives.values()), lives


async def test_a_parked_task_holds_its_session_until_its_deadline(place: Place) -> None:
    """A task may wait for its client for longer than a session lives: nothing of it expires before."""
    desk = Desk(place, session_ttl=10)
    attempt = await desk.running(idempotency="k", digest="d")
    await desk.append(attempt, _kept(asking("c1", "c2")))
    await desk.submit(ref("t2"))
    await desk.tasks.park(ref(), 1, opened("m1"), operation(), wait_ms=HOUR_MS, policy="block")
    lives = await desk.lives()
    assert len(lives) == 12, sorted(lives)
    assert all(life > HOUR_MS - SLACK_MS for life in lives.values()), lives


@pytest.mark.parametrize("then", ["ends", "is cleared"])
async def test_a_session_is_held_no_longer_than_its_parked_task_lives(place: Place, then: str) -> None:
    """Once it has ended the session lives as long as any other; only that its calls were answered is known longer."""
    desk = Desk(place, session_ttl=60)
    await desk.parked("c1")
    assert min((await desk.lives()).values()) > HOUR_MS - SLACK_MS
    if then == "is cleared":
        # A session that an earlier release left with its hold.
        hold = await desk.redis.hget(keys_of().meta, "hold")
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Launch(2)
    await desk.finish(await desk.begin(ref(), 2))
    if then == "is cleared":
        await desk.redis.hset(keys_of().meta, "hold", hold)
        await _clear(desk)
    lives = {key: life for key, life in (await desk.lives()).items() if b":call:" not in key}
    assert lives
    assert all(life <= 60_000 for life in lives.values()), lives


async def test_a_parked_task_still_knows_its_answers_at_its_end(place: Place) -> None:
    """What one of two calls was answered, and that it was, is known for as long as the other is awaited."""
    desk = Desk(place, session_ttl=10)
    await desk.parked("c1", "c2")
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    await desk.submit(ref("t2"))
    lives = await desk.lives()
    assert all(life > HOUR_MS - SLACK_MS for life in lives.values()), lives
    again = await desk.tasks.callback(ref(), "c1", b"9", answer("c1"), operation())
    assert isinstance(again, Repeated)
    last = await desk.tasks.callback(ref(), "c2", b"2", answer("c2"), operation())
    assert last == Launch(2)


async def test_a_call_answered_before_the_task_parked_is_remembered_as_long(place: Place) -> None:
    """Parking renews the memory of answered calls too, and does not forget that they were answered."""
    desk = Desk(place, session_ttl=10)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1", "c2"))
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Stored(1)
    assert await desk.tasks.park(ref(), 1, Batch(), operation(), wait_ms=HOUR_MS, policy="block") == Parked()
    lives = await desk.lives()
    assert all(life > HOUR_MS - SLACK_MS for life in lives.values()), lives
    again = await desk.tasks.callback(ref(), "c1", b"9", answer("c1"), operation())
    assert again == Repeated("parked", 1)


async def test_the_log_is_cut_to_its_most_entries(place: Place) -> None:
    """Of ended turns about the newest ``log_max_events`` entries are kept; the head is known."""
    desk = Desk(place, log_max_events=100)
    attempt = await desk.running()
    await _say(desk, attempt, 200)
    await desk.finish(attempt)
    await _say(desk, await desk.running(ref("t2")), 50)
    entries = await desk.sound()
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    # It is cut once in a tenth of the limit.
    assert 100 <= len(entries) <= 110
    assert entries[0].seq == meta.head == meta.seq - len(entries) + 1
    assert await desk.log.at(keys_of(), Cursor(meta.epoch, meta.head)) == entries[0]


async def test_the_log_is_cut_to_its_most_bytes(place: Place) -> None:
    """Of ended turns about ``log_max_bytes`` are kept."""
    desk = Desk(place, log_max_bytes=65_536)
    attempt = await desk.running()
    await _say(desk, attempt, 40, "x" * 5_000)
    assert len(await desk.sound()) == 42
    await desk.finish(attempt)
    await desk.running(ref("t2"))
    entries = await desk.sound()
    size = sum(len(entry.event) for entry in entries)
    assert 30_000 < size <= 65_536
    assert int(await desk.redis.hget(keys_of().meta, "bytes") or 0) <= 65_536


@pytest.mark.parametrize("limits", [{"log_max_events": 100}, {"log_max_bytes": 65_536}])
async def test_the_log_is_never_cut_past_a_live_task(place: Place, limits: dict[str, int]) -> None:
    """Whatever the limits, the first entry of each task that has not ended is there."""
    desk = Desk(place, **limits)
    await desk.finish(await desk.running(busy="parallel"))
    oldest = await desk.running(ref("t2"), busy="parallel")
    newest = await desk.running(ref("t3"), busy="parallel")
    await _say(desk, newest, 150, "x" * 1_000)
    entries = await desk.sound()
    assert entries[0].seq == oldest.first == 4
    await desk.finish(newest)
    await desk.running(ref("t4"), busy="parallel")
    assert (await desk.sound())[0].seq == oldest.first


async def test_what_was_cut_is_still_whole_in_the_history(place: Place) -> None:
    """A completed message outlives its details, and comes first after a cursor that is gone."""
    desk = Desk(place, log_max_events=100)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "Hi", delta("m1", "Hi", opened("m1"))))
    await desk.finish(attempt)
    await desk.finish(await desk.running(ref("t2")))
    other = await desk.running(ref("t3"))
    await _say(desk, other, 120)
    await desk.finish(other)
    await _say(desk, await desk.running(ref("t4")), 30)
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert meta.head > 6
    gone = Cursor(meta.epoch, 3)
    assert await desk.log.at(keys_of(), gone) is None
    found = (await desk.log.history(keys_of(), gone))[0]
    assert (found.seq, found.task) == (5, "t1")


def _kept(batch: Batch) -> Batch:
    batch.keep("messages", b"[]")
    return batch


async def _end(desk: Desk, attempt: int, task: str = "t1") -> None:
    batch = Batch()
    batch.end(b'{"object":"response"}')
    await desk.tasks.finish(
        ref(task), attempt, batch, operation(), status="canceled", why="stop", memory=b"{}"
    )


async def _clear(desk: Desk) -> None:
    assert isinstance(await desk.tasks.clear(keys_of(), await desk.epoch()), Cleared)


async def _say(desk: Desk, attempt: Attempt, count: int, text: str = "x") -> None:
    for _ in range(count // 10):
        batch = Batch()
        for _ in range(10):
            delta("m", text, batch)
        await desk.append(attempt, batch)


async def test_who_writes_for_a_deleted_session_is_told(place: Place) -> None:
    """Its meta is gone, and a task's hash is not: the task is gone, nothing is written, and no rescuer has it for ever."""
    desk = Desk(place)
    parked = await desk.parked("c1", busy="parallel")
    running = await desk.running(ref("t2"), busy="parallel")
    queued = ref("t3")
    assert isinstance(await desk.submit(queued, busy="parallel"), Launch)
    await desk.redis.delete(keys_of().meta)
    tasks, claim = desk.tasks, running.claim
    batch = closed("m", "x" * 40_000, opened("m"))
    for ask in (
        lambda: tasks.append(running.ref, claim, batch, operation()),
        lambda: tasks.renew(running.ref, claim),
        lambda: tasks.release(running.ref, claim, operation()),
        lambda: tasks.park(running.ref, claim, batch, operation(), wait_ms=1, policy=""),
        lambda: tasks.finish(
            running.ref, claim, ended(batch=batch), operation(), status="failed", why="", memory=b"{}"
        ),
        lambda: tasks.take(running.ref, "api", "canceled stop", operation()),
        lambda: tasks.take(parked.ref, "api", "canceled stop", operation()),
        lambda: tasks.begin(queued, 1, "w1", operation()),
    ):
        assert await desk.nothing_written(ask) == Gone()
    outcome = await desk.nothing_written(
        lambda: tasks.callback(parked.ref, "c1", b"1", answer("c1"), operation())
    )
    assert outcome == Ended()
    for each in (parked.ref, running.ref, queued):
        assert isinstance(await tasks.sweep(each, operation()), Drop)
