"""What the rescuer does to one due task, whatever became of whoever should have seen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.shared.session.support import HOUR_MS, Desk, closed, keys_of, opened, ref
from turnstream.shared.session.outcomes import Attempt, Drop, Launch, MustEnd, Passed, Redate
from turnstream.shared.session.queue import BACKLOG_LOOK_MS, LAUNCH_GRACE_MS, TOGETHER_GRACE_MS
from turnstream.shared.session.tasks import MAX_CRASHES, Tasks, operation

if TYPE_CHECKING:
    from tests.conftest import Place


async def _sweep(desk: Desk, task: str = "t1") -> object:
    return await desk.tasks.sweep(ref(task), operation())


async def test_what_never_was_is_dropped(place: Place) -> None:
    """Nobody looks again at a task that is gone."""
    desk = Desk(place)
    await desk.finish(await desk.running())
    assert await desk.nothing_written(lambda: _sweep(desk, "x")) == Drop()


async def test_an_ended_turns_events_stay_for_a_while(place: Place) -> None:
    """Until the grace time is over, whoever comes back gets every event."""
    desk = Desk(place)
    await desk.finish(await desk.running())
    outcome = await desk.nothing_written(lambda: _sweep(desk))
    assert isinstance(outcome, Redate)
    assert 0 < outcome.ms <= HOUR_MS


async def test_an_ended_turns_events_go_after_the_grace_time(place: Place) -> None:
    """Then only what is live, or younger, is left in the log; the history keeps what was said."""
    desk = Desk(place)
    await desk.finish(await desk.running())
    young = await desk.running(ref("t2"))
    await desk.put(ref(), ended=await desk.past())
    kept = await desk.log.history(keys_of())
    assert await _sweep(desk) == Drop()
    assert {entry.task for entry in await desk.entries()} == {"t2"}
    assert await desk.log.history(keys_of()) == kept
    await desk.finish(young)
    assert (await desk.entries())[0].seq == young.first


async def test_a_live_turn_holds_what_is_older_than_its_end(place: Place) -> None:
    """The log is never cut past the first entry of a live task, whatever has ended since."""
    desk = Desk(place)
    live = await desk.running(busy="parallel")
    await desk.finish(await desk.running(ref("t2"), busy="parallel"))
    await desk.put(ref("t2"), ended=await desk.past())
    assert await _sweep(desk, "t2") == Drop()
    assert (await desk.entries())[0].seq == live.first


async def test_the_history_is_bounded_too(place: Place) -> None:
    """Beyond the bytes that a log may have, the oldest messages are dropped from the history."""
    desk = Desk(place, log_max_bytes=65_536)
    for number in range(40):
        attempt = await desk.running(ref(f"t{number}"))
        await desk.append(attempt, closed("m", "x" * 8_000, opened("m")))
        await desk.finish(attempt)
    history = await desk.log.history(keys_of())
    assert sum(len(entry.event) for entry in history) < 2 * 65_536
    assert history[-1].task == "t39"


async def test_a_running_task_is_left_alone_while_its_lease_lasts(place: Place) -> None:
    """The next look is when the lease would be over."""
    desk = Desk(place)
    await desk.running()
    outcome = await desk.nothing_written(lambda: _sweep(desk))
    assert isinstance(outcome, Redate)
    assert 0 < outcome.ms <= desk.settings.lease_ms


async def test_a_task_whose_lease_is_over_is_launched_again(place: Place) -> None:
    """A lost worker's task is queued under a new launch and the crash is counted, once per look."""
    desk = Desk(place)
    await desk.running()
    await desk.put(ref(), lease=await desk.past())
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref(), op)) == Launch(2)
    assert await desk.field(ref(), "status") == "queued"
    assert await desk.field(ref(), "crashes") == "1"
    assert await desk.field(ref(), "worker") == "w1"
    assert (await desk.begin(ref(), 2)).number == 2
    await desk.sound()


async def test_a_lease_is_judged_as_of_when_its_server_took_a_write(place: Place) -> None:
    """One that ended since then is looked at again soon, however long ago that was; one that had ended is over."""
    desk = Desk(place)
    await desk.running()
    now = await desk.now()
    hour = 3_600_000
    fresh = await desk.tasks.sweep(ref(), operation(), as_of=now - hour)
    assert isinstance(fresh, Redate)
    assert 0 < fresh.ms <= desk.settings.lease_ms
    await desk.put(ref(), lease=now - 500)
    for as_of in (now - hour, now - 600):
        again = await desk.tasks.sweep(ref(), operation(), as_of=as_of)
        assert isinstance(again, Redate)
        assert 0 < again.ms <= 1000
    assert await desk.field(ref(), "crashes") == "0"
    assert await desk.tasks.sweep(ref(), operation(), as_of=now - 400) == Launch(2)


async def test_a_task_that_took_too_many_workers_is_ended(place: Place) -> None:
    """The third crash does not launch the task again: it must end as lost."""
    desk = Desk(place)
    await desk.submit(ref())
    for launch in range(1, MAX_CRASHES + 1):
        await desk.begin(ref(), launch)
        await desk.put(ref(), lease=await desk.past())
        outcome = await _sweep(desk)
        if launch < MAX_CRASHES:
            assert outcome == Launch(launch + 1)
    lost = MustEnd(f"{MAX_CRASHES} {MAX_CRASHES}", "failed", "worker_lost")
    assert outcome == lost
    # Whoever saw it first may be gone; the next one sees the same.
    assert await _sweep(desk) == lost
    taken = await desk.tasks.take(ref(), "rescuer", "failed worker_lost", operation(), lost.seen)
    assert isinstance(taken, Attempt)


async def test_releases_are_no_crashes(place: Place) -> None:
    """However often a task was given back, it is launched again when its worker is lost."""
    desk = Desk(place)
    await desk.submit(ref())
    for launch in range(1, 6):
        await desk.begin(ref(), launch)
        await desk.tasks.release(ref(), launch, operation())
    await desk.begin(ref(), 6)
    await desk.put(ref(), lease=await desk.past())
    assert await _sweep(desk) == Launch(7)


@pytest.mark.parametrize("status", ["queued", "running", "parked", "waiting"])
async def test_a_task_past_its_deadline_is_ended(place: Place, status: str) -> None:
    """Wherever it is, a task that is too old must end; a repeat says the same."""
    desk = Desk(place)
    name = "t1"
    if status == "queued":
        await desk.submit(ref(), deadline_ms=HOUR_MS)
    elif status == "running":
        await desk.running(deadline_ms=HOUR_MS)
    elif status == "parked":
        await desk.parked("c1", deadline_ms=HOUR_MS)
    else:
        name = "t2"
        await desk.submit(ref())
        await desk.submit(ref(name), deadline_ms=HOUR_MS)
    assert isinstance(await _sweep(desk, name), Redate)
    await desk.put(ref(name), deadline=await desk.past())
    op = operation()
    outcome = await desk.twice(lambda: desk.tasks.sweep(ref(name), op))
    assert isinstance(outcome, MustEnd)
    assert (outcome.status, outcome.why) == ("failed", "deadline")
    taken = await desk.tasks.take(ref(name), "rescuer", "failed deadline", operation(), outcome.seen)
    assert isinstance(taken, Attempt)


async def test_a_worker_gets_one_lease_to_end_a_late_turn_itself(place: Place) -> None:
    """A running task just past its deadline is its worker's to end, as long as the worker lives."""
    desk = Desk(place)
    await desk.running(deadline_ms=HOUR_MS)
    await desk.put(ref(), deadline=await desk.now() - 1)
    assert isinstance(await desk.nothing_written(lambda: _sweep(desk)), Redate)


async def test_a_parked_task_is_left_alone_until_its_calls_expire(place: Place) -> None:
    """The next look at a parked task is at its deadline; past it the task must end."""
    desk = Desk(place)
    await desk.parked("c1", wait_ms=HOUR_MS)
    outcome = await desk.nothing_written(lambda: _sweep(desk))
    assert isinstance(outcome, Redate)
    assert HOUR_MS - 20_000 < outcome.ms <= HOUR_MS
    await desk.put(ref(), parked_until=await desk.past())
    op = operation()
    expired = await desk.twice(lambda: desk.tasks.sweep(ref(), op))
    assert expired == MustEnd("1 1", "failed", "call_expired")


async def test_a_parked_task_is_looked_at_by_its_earlier_deadline(place: Place) -> None:
    """When the turn's deadline comes before the calls', it is the one to look at."""
    desk = Desk(place)
    await desk.parked("c1", deadline_ms=HOUR_MS // 2)
    outcome = await _sweep(desk)
    assert isinstance(outcome, Redate)
    assert outcome.ms <= HOUR_MS // 2


async def test_a_launch_that_was_lost_is_launched_again_under_its_number(place: Place) -> None:
    """A queued task nobody began for long is launched again; where it still waits, nothing changes."""
    desk = Desk(place)
    await desk.submit(ref())
    fresh = await desk.nothing_written(lambda: _sweep(desk))
    assert isinstance(fresh, Redate)
    assert 0 < fresh.ms <= TOGETHER_GRACE_MS
    await desk.put(ref(), launched=await desk.past())
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref(), op)) == Launch(1)
    assert await desk.field(ref(), "crashes") == "0"
    assert isinstance(await _sweep(desk), Redate)
    assert (await desk.begin(ref())).number == 1


async def test_a_waiting_task_is_only_looked_at_while_another_has_the_turn(place: Place) -> None:
    """As long as the active turn is live, a waiting one waits."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    assert await desk.nothing_written(lambda: _sweep(desk, "t2")) == Redate(BACKLOG_LOOK_MS)


@pytest.mark.parametrize("left", ["ended", "gone", "nobody"])
async def test_a_forgotten_waiting_task_gets_the_turn(place: Place, left: str) -> None:
    """When the turn was never passed on, the rescuer gives it to the one that waits."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    if left == "ended":
        await desk.put(ref(), status="completed")
    elif left == "gone":
        await desk.redis.delete(keys_of().task("t1"))
    else:
        await desk.redis.hset(keys_of().meta, "active", "")
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref("t2"), op)) == Launch(1)
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert meta.active == "t2"
    assert await desk.redis.lrange(keys_of().waiting, 0, -1) == [b"t3"]
    assert await _sweep(desk, "t3") == Redate(BACKLOG_LOOK_MS)
    assert (await desk.finish(await desk.begin(ref("t2")))).next == "t3"


async def test_whoever_waits_for_a_turn_that_is_gone_is_looked_at(place: Place) -> None:
    """They are looked at rarely by themselves, so a look at the turn that they wait for leads to the first of them."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    await desk.redis.delete(keys_of().task("t1"), keys_of().task("t2"))
    assert await _sweep(desk) == Drop("t2")
    assert await _sweep(desk, "t2") == Drop("t3")
    assert await _sweep(desk, "t3") == Launch(1)


async def test_a_waiting_task_is_looked_at_for_its_deadline(place: Place) -> None:
    """And in time to keep its session."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"), deadline_ms=60_000)
    outcome = await _sweep(desk, "t2")
    assert isinstance(outcome, Redate)
    assert 0 < outcome.ms <= 60_000
    await desk.submit(ref("t3"))
    hasty = Desk(place, session_ttl=400)
    assert await _sweep(hasty, "t3") == Redate(100_000)


@pytest.mark.parametrize("task", ["t1", "t2"])
async def test_a_look_keeps_the_session_of_a_turn_that_waits(place: Place, task: str) -> None:
    """For a worker or for its turn: nothing else is done to a session in which nothing runs."""
    desk = Desk(place)
    await desk.submit(ref())
    await desk.submit(ref("t2"))
    keys = keys_of()
    soon = [keys.meta, keys.log, keys.task(task)]
    for key in soon:
        await desk.redis.pexpire(key, 5_000)
    await desk.put(ref(task), fresh=0)
    await _sweep(desk, task)
    assert min([await desk.redis.pttl(key) for key in soon]) > 5_000


async def test_forgotten_turns_keep_their_order(place: Place) -> None:
    """Whichever of them the rescuer looks at first, the turn goes to the one that has waited longest."""
    desk = Desk(place)
    await desk.running()
    for task in ("t2", "t3", "t4"):
        await desk.submit(ref(task))
    await desk.put(ref(), status="completed")
    # One in the line has ended meanwhile.
    await desk.put(ref("t2"), status="canceled")
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref("t4"), op)) == Passed("t3", 1)
    assert await desk.redis.lrange(keys_of().waiting, 0, -1) == [b"t4"]
    await desk.tasks.passed_on(ref("t4"))
    assert await _sweep(desk, "t4") == Redate(BACKLOG_LOOK_MS)
    assert (await desk.finish(await desk.begin(ref("t3")))).next == "t4"
    assert (await desk.begin(ref("t4"))).number == 1


async def test_a_turn_that_was_passed_but_not_launched_is_launched(place: Place) -> None:
    """Whoever ended a turn may die before it launches the next one; the rescuer does."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.submit(ref("t2"))
    assert (await desk.finish(attempt)).next == "t2"
    assert isinstance(await _sweep(desk, "t2"), Redate)
    await desk.put(ref("t2"), launched=await desk.past())
    assert await _sweep(desk, "t2") == Launch(1)


async def test_a_launch_that_goes_to_another_server_has_more_time(place: Place) -> None:
    """Where sessions have a broker of their own, or replicas are waited for, it is not sent with the submit."""
    for given in ({"session_redis_url": "redis://elsewhere"}, {"wait_replicas": 1}):
        desk = Desk(place)
        desk.tasks = Tasks(desk.redis, desk.settings.model_copy(update=given))
        await desk.submit(ref(session=next(iter(given))))
        fresh = await desk.tasks.sweep(ref(session=next(iter(given))), operation())
        assert isinstance(fresh, Redate)
        assert TOGETHER_GRACE_MS < fresh.ms <= LAUNCH_GRACE_MS


async def test_a_look_at_an_ended_turn_launches_the_next_one(place: Place) -> None:
    """It comes within a lease of the worker that ended the turn and died; once, however long the launch then waits."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.submit(ref("t2"))
    assert (await desk.finish(attempt)).next == "t2"
    soon = await desk.nothing_written(lambda: _sweep(desk))
    assert isinstance(soon, Redate)
    assert 0 < soon.ms <= TOGETHER_GRACE_MS
    await desk.put(ref("t2"), launched=await desk.past())
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref(), op)) == Passed("t2", 1)
    # Whoever was told that may be gone before they have launched it.
    await desk.put(ref("t2"), launched=await desk.past())
    assert await _sweep(desk) == Passed("t2", 1)
    await desk.tasks.passed_on(ref())
    for _ in range(2):
        later = await desk.nothing_written(lambda: _sweep(desk))
        assert isinstance(later, Redate)
        assert later.ms > LAUNCH_GRACE_MS
        await desk.put(ref("t2"), launched=await desk.past())
    assert (await desk.begin(ref("t2"))).number == 1


async def test_a_turn_that_was_passed_over_is_told_until_it_is_launched(place: Place) -> None:
    """A look at one that waits gives the turn to one that has waited longer. Whoever looked may be gone before it is launched."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    await desk.put(ref(), status="completed")
    assert await _sweep(desk, "t3") == Passed("t2", 1)
    soon = await desk.nothing_written(lambda: _sweep(desk, "t3"))
    assert isinstance(soon, Redate)
    assert 0 < soon.ms <= TOGETHER_GRACE_MS
    await desk.put(ref("t2"), launched=await desk.past())
    op = operation()
    assert await desk.twice(lambda: desk.tasks.sweep(ref("t3"), op)) == Passed("t2", 1)
    await desk.tasks.passed_on(ref("t3"))
    await desk.put(ref("t2"), launched=await desk.past())
    later = await desk.nothing_written(lambda: _sweep(desk, "t3"))
    assert isinstance(later, Redate)
    assert later.ms > LAUNCH_GRACE_MS


async def test_an_ending_whose_ender_died_is_left_to_the_next(place: Place) -> None:
    """An ender has one lease to write its end; after that somebody else must write the same one."""
    desk = Desk(place)
    await desk.running()
    await desk.tasks.take(ref(), "api", "canceled stopped", operation())
    assert isinstance(await desk.nothing_written(lambda: _sweep(desk)), Redate)
    await desk.put(ref(), lease=await desk.past())
    op = operation()
    outcome = await desk.twice(lambda: desk.tasks.sweep(ref(), op))
    assert outcome == MustEnd("2 1", "canceled", "stopped")
    assert await desk.field(ref(), "crashes") == "0"
