"""Waiting for the client without a worker, its answers, and giving a task back: park, callback, release."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.unit.shared.session.support import HOUR_MS, Desk, answer, asking, keys_of, opened, ref
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import PARKED
from turnstream.shared.session.outcomes import (
    Ended,
    Expired,
    Fenced,
    GivesWay,
    Gone,
    Launch,
    MustEnd,
    NotBefore,
    Parked,
    Redate,
    Repeated,
    Spent,
    Stored,
    Unknown,
    Unread,
)
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_a_task_parks_with_its_calls(place: Place) -> None:
    """Parked, a task has no lease, knows until when it waits, and which worker ran it."""
    desk = Desk(place)
    before = await desk.now()
    await desk.parked("c1", "c2")
    assert await desk.field(ref(), "status") == "parked"
    assert await desk.field(ref(), "lease") is None
    assert await desk.field(ref(), "worker") == "w1"
    assert before + HOUR_MS <= int(await desk.field(ref(), "parked_until") or 0) <= await desk.now() + HOUR_MS
    assert [entry.kind for entry in await desk.sound()][2:] == ["message", "message", PARKED]


async def test_a_park_leaves_an_entry(place: Place) -> None:
    """In log and history, without a number: how often the task has parked, which calls are open, until when.

    The task remembers its place, and the number of the event that comes next.
    """
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c0"))
    await desk.tasks.callback(ref(), "c0", b"1", answer("c0"), operation())
    op = operation()
    park = partial(desk.tasks.park, ref(), 1, asking("c2", "c1"), op, wait_ms=HOUR_MS, policy="block")
    async with desk.tails() as tail:
        assert await desk.twice(park) == Parked()
        await tail()
        told = (await tail()).entries
    log = await desk.sound()
    assert [entry for entry in log if entry.kind == PARKED] == told == log[-1:]
    page = await desk.log.kept(keys_of())
    assert page is not None
    assert page.entries[-1:] == told
    assert orjson.loads(told[0].event) == {
        "object": "turnstream.parked",
        "park": 1,
        "calls": ["c1", "c2"],
        "until": int(await desk.field(ref(), "parked_until") or 0),
    }
    assert await desk.field(ref(), "parks") == f"{told[0].seq}-1"


async def test_each_park_has_its_entry(place: Place) -> None:
    """They are counted, over attempts; each is the last entry of its time."""
    desk = Desk(place)
    places = []
    for number in (1, 2, 3):
        attempt = await (desk.running() if number == 1 else desk.begin(ref(), number))
        assert (
            await desk.tasks.park(
                ref(), attempt.claim, asking(f"c{number}"), operation(), wait_ms=HOUR_MS, policy="block"
            )
            == Parked()
        )
        last = (await desk.sound())[-1]
        assert (last.kind, orjson.loads(last.event)["park"]) == (PARKED, number)
        places.append(f"{last.seq}-{number}")
        await desk.tasks.callback(ref(), f"c{number}", b"1", answer(f"c{number}"), operation())
    assert (await desk.field(ref(), "parks") or "").split() == places
    await desk.finish(await desk.begin(ref(), 4))
    assert [entry.kind for entry in await desk.sound()].count(PARKED) == 3


async def test_the_newest_parks_are_remembered(place: Place) -> None:
    """With their numbers: a turn may ask its client any number of times, and what is known of it does not grow for ever."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.redis.hset(keys_of().task("t1"), "parks", " ".join(f"{at}-{at}" for at in range(3, 131)))
    park = desk.tasks.park(ref(), attempt.claim, asking("c1"), operation(), wait_ms=HOUR_MS, policy="block")
    assert await park == Parked()
    last = (await desk.entries())[-1]
    assert orjson.loads(last.event)["park"] == 131
    parks = (await desk.field(ref(), "parks") or "").split()
    assert (len(parks), parks[0], parks[-1]) == (128, "4-4", f"{last.seq}-131")


async def test_a_park_tells_what_the_turn_has_cost(place: Place) -> None:
    """As its attempt has counted by then, also in what comes with the park."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = asking("c1")
    batch.keep("usage", b'{"input_tokens":3,"output_tokens":2,"total_tokens":5}')
    park = desk.tasks.park(ref(), attempt.claim, batch, operation(), wait_ms=HOUR_MS, policy="block")
    assert await park == Parked()
    told = orjson.loads((await desk.entries())[-1].event)
    assert told["usage"] == {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


async def test_who_does_not_wait_leaves_no_entry(place: Place) -> None:
    """Neither a task that gives way to one that waits, nor one whose answers are in."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.submit(ref("t2"))
    assert (
        await desk.tasks.park(
            ref(), attempt.claim, asking("c1"), operation(), wait_ms=HOUR_MS, policy="supersede"
        )
        == GivesWay()
    )
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    assert await desk.tasks.park(
        ref(), attempt.claim, Batch(), operation(), wait_ms=HOUR_MS, policy="block"
    ) == Launch(2)
    assert PARKED not in [entry.kind for entry in await desk.sound()]
    assert await desk.field(ref(), "parks") is None


async def test_a_repeated_park_gives_its_first_outcome(place: Place) -> None:
    """A park whose reply was lost registers its calls and writes its entries once."""
    desk = Desk(place)
    await desk.running()
    op = operation()
    assert (
        await desk.twice(lambda: desk.tasks.park(ref(), 1, asking("c1"), op, wait_ms=HOUR_MS, policy="block"))
        == Parked()
    )
    assert await desk.field(ref(), "pending") == "1"


async def test_a_park_whose_answers_are_in_is_launched_again(place: Place) -> None:
    """Answers that came while the worker still ran leave nothing to wait for; a repeat says so too."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1"))
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Stored(0)
    op = operation()
    assert await desk.twice(
        lambda: desk.tasks.park(ref(), 1, opened("m"), op, wait_ms=HOUR_MS, policy="block")
    ) == Launch(2)
    assert await desk.field(ref(), "status") == "queued"
    assert (await desk.begin(ref(), 2)).results == {"c1": b"1"}


async def test_a_park_without_calls_is_launched_at_once(place: Place) -> None:
    """A task that asked nothing never waits."""
    desk = Desk(place)
    await desk.running()
    assert await desk.tasks.park(ref(), 1, Batch(), operation(), wait_ms=HOUR_MS, policy="block") == Launch(2)


async def test_only_the_newest_attempt_parks(place: Place) -> None:
    """A former attempt is fenced, and a task that has ended or is gone does not park."""
    desk = Desk(place)
    park = desk.tasks.park
    await desk.running()
    await desk.tasks.release(ref(), 1, operation())
    second = await desk.begin(ref(), 2)
    assert (
        await desk.nothing_written(
            lambda: park(ref(), 1, asking("c"), operation(), wait_ms=HOUR_MS, policy="block")
        )
        == Fenced()
    )
    await desk.finish(second)
    assert (
        await desk.nothing_written(
            lambda: park(ref(), 2, asking("c"), operation(), wait_ms=HOUR_MS, policy="block")
        )
        == Ended()
    )
    assert (
        await desk.nothing_written(
            lambda: park(ref("x"), 1, asking("c"), operation(), wait_ms=HOUR_MS, policy="block")
        )
        == Gone()
    )


async def test_a_release_puts_the_task_back_without_blame(place: Place) -> None:
    """A released task is queued under a new launch, and no crash is counted; a repeat changes nothing."""
    desk = Desk(place)
    await desk.running()
    op = operation()
    assert await desk.twice(lambda: desk.tasks.release(ref(), 1, op)) == Launch(2)
    assert await desk.field(ref(), "status") == "queued"
    assert await desk.field(ref(), "crashes") == "0"
    assert await desk.field(ref(), "lease") is None
    assert (await desk.begin(ref(), 2)).number == 2


async def test_only_the_newest_attempt_releases(place: Place) -> None:
    """A former attempt is fenced, and a task that has ended or is gone is not released."""
    desk = Desk(place)
    release = desk.tasks.release
    await desk.running()
    await release(ref(), 1, operation())
    assert await desk.nothing_written(lambda: release(ref(), 1, operation())) == Fenced()
    second = await desk.begin(ref(), 2)
    assert await desk.nothing_written(lambda: release(ref(), 1, operation())) == Fenced()
    await desk.finish(second)
    assert await desk.nothing_written(lambda: release(ref(), 2, operation())) == Ended()
    assert await desk.nothing_written(lambda: release(ref("x"), 2, operation())) == Gone()


async def test_the_last_answer_launches_the_task(place: Place) -> None:
    """Answers are stored until none is awaited; the last one in says which launch to queue."""
    desk = Desk(place)
    await desk.parked("c1", "c2")
    callback = desk.tasks.callback
    assert await callback(ref(), "c2", b'"b"', answer("c2"), operation()) == Stored(1)
    assert await desk.field(ref(), "status") == "parked"
    assert await callback(ref(), "c1", b'"a"', answer("c1"), operation()) == Launch(2)
    assert await desk.field(ref(), "status") == "queued"
    assert await desk.field(ref(), "parked_until") is None
    attempt = await desk.begin(ref(), 2)
    assert attempt.results == {"c1": b'"a"', "c2": b'"b"'}
    assert set(attempt.calls) == {"c1", "c2"}
    await desk.sound()


async def test_a_repeated_answer_changes_nothing(place: Place) -> None:
    """The first answer stands, whatever the second one says, and the launch to queue is told again."""
    desk = Desk(place)
    await desk.parked("c1", "c2")

    async def send(call: str) -> object:
        return await desk.tasks.callback(ref(), call, b"1", answer(call), operation())

    await send("c1")
    assert await desk.nothing_written(lambda: send("c1")) == Repeated("parked", 1)
    await send("c2")
    assert await desk.nothing_written(lambda: send("c2")) == Repeated("queued", 2)
    await desk.finish(await desk.begin(ref(), 2))
    assert await desk.nothing_written(lambda: send("c2")) == Repeated("completed", 2)


async def test_an_answer_is_not_taken_without_its_message(place: Place) -> None:
    """Where its front end read the call it was answered, or its turn had ended: at a primary that has been replaced since."""
    desk = Desk(place)
    await desk.parked("c1")
    outcome = await desk.nothing_written(lambda: desk.tasks.callback(ref(), "c1", b"{}", Batch(), ""))
    assert isinstance(outcome, Unread)
    assert isinstance(await desk.tasks.callback(ref(), "c1", b"{}", answer("c1"), ""), Launch)


async def test_a_repeated_answer_does_not_launch_what_waits(place: Place) -> None:
    """A turn that its worker gave back until a time is launched when that has come, whoever repeats an answer before."""
    desk = Desk(place)
    await desk.parked("c1")

    async def send() -> object:
        return await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())

    await send()
    await desk.begin(ref(), 2)
    await desk.tasks.release(ref(), 2, operation(), wait_ms=HOUR_MS, reason="model_unavailable")
    assert await desk.nothing_written(send) == Repeated("queued", 0)
    await desk.put(ref(), not_before=await desk.past())
    await desk.tasks.sweep(ref(), operation())
    assert await desk.nothing_written(send) == Repeated("queued", 3)


@pytest.mark.parametrize(("task", "call"), [("t1", "c9"), ("t9", "c9"), ("t9", "c1"), ("t2", "c1")])
async def test_a_call_nobody_made_is_unknown(place: Place, task: str, call: str) -> None:
    """A call that this session never made, or another task of it, takes no answer."""
    desk = Desk(place)
    await desk.parked("c1")
    await desk.submit(ref("t2"))
    outcome = await desk.nothing_written(
        lambda: desk.tasks.callback(ref(task), call, b"1", answer(call), operation())
    )
    assert outcome in {Unknown(), Ended()}
    assert outcome == Unknown() or task == "t9"


async def test_a_call_of_another_session_is_unknown(place: Place) -> None:
    """A call's id is worth nothing in another session."""
    desk = Desk(place)
    await desk.parked("c1")
    other = ref("t1", "s2")
    await desk.running(other)
    outcome = await desk.nothing_written(
        lambda: desk.tasks.callback(other, "c1", b"1", answer("c1"), operation())
    )
    assert outcome == Unknown()


async def test_an_answer_after_the_deadline_is_too_late(place: Place) -> None:
    """Past the deadline the answer is refused, before the rescuer came by and after it ended the task."""
    desk = Desk(place)
    await desk.parked("c1")
    await desk.put(ref(), parked_until=await desk.past())

    async def send() -> object:
        return await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())

    assert await desk.nothing_written(send) == Expired()
    taken = await desk.tasks.take(ref(), "rescuer", "failed call_expired", operation())
    assert not isinstance(taken, Ended)
    end = Batch()
    end.end(b'{"object":"response"}')
    await desk.tasks.finish(ref(), 2, end, operation(), status="failed", why="call_expired", memory=b"{}")
    assert await desk.nothing_written(send) == Expired()


async def test_an_answer_to_a_task_that_was_stopped_is_told_so(place: Place) -> None:
    """A call of a task that ended otherwise is not expired: its task has ended."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1"))
    await desk.finish(attempt, "canceled")
    outcome = await desk.nothing_written(
        lambda: desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    )
    assert outcome == Ended()


async def test_an_answer_to_a_released_task_waits_for_its_next_attempt(place: Place) -> None:
    """An answer that comes while the task is queued is stored, and launches nothing by itself."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1"))
    await desk.tasks.release(ref(), 1, operation())
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Stored(0)
    assert (await desk.begin(ref(), 2)).results == {"c1": b"1"}


async def _released(
    desk: Desk, attempt: int, wait_ms: int = HOUR_MS, retry_ms: int = 0, retrying: str = "model"
) -> object:
    return await desk.tasks.release(
        ref(),
        attempt,
        operation(),
        wait_ms=wait_ms,
        reason="model_unavailable",
        retry_ms=retry_ms,
        retrying=retrying,
    )


async def test_a_released_task_may_wait_for_a_time(place: Place) -> None:
    """It is queued, with what it waits for, and nothing launches it before that; a repeat changes nothing."""
    desk = Desk(place)
    await desk.running()
    op = operation()
    release = partial(desk.tasks.release, ref(), 1, op, wait_ms=HOUR_MS, reason="model_unavailable")
    assert await desk.twice(release) == NotBefore(2, HOUR_MS)
    assert await desk.field(ref(), "status") == "queued"
    assert await desk.field(ref(), "waits_for") == "model_unavailable"
    swept = await desk.tasks.sweep(ref(), operation())
    assert isinstance(swept, Redate)
    assert swept.ms <= HOUR_MS
    await desk.put(ref(), not_before=await desk.past())
    assert isinstance(await desk.tasks.sweep(ref(), operation()), Launch)
    assert await desk.field(ref(), "not_before") is await desk.field(ref(), "waits_for") is None
    # What was launched is looked at as any other launch.
    assert isinstance(await desk.tasks.sweep(ref(), operation()), Redate)
    assert (await desk.begin(ref(), 2)).number == 2


async def test_another_releases_begin_takes_what_waits(place: Place) -> None:
    """A worker that knows nothing of waiting launches early: the attempt is held, and nothing is left of the wait."""
    desk = Desk(place)
    await desk.running()
    await _released(desk, 1)
    assert (await desk.begin(ref(), 2)).number == 2
    assert await desk.field(ref(), "not_before") is await desk.field(ref(), "waits_for") is None


async def test_a_wait_is_cut_by_the_deadline(place: Place) -> None:
    """The next look is when the deadline has passed, if that is sooner; then the task ends."""
    desk = Desk(place)
    await desk.running()
    await desk.put(ref(), deadline=await desk.now() + 60_000)
    outcome = await _released(desk, 1)
    assert isinstance(outcome, NotBefore)
    assert 0 < outcome.look_ms <= 60_001
    swept = await desk.tasks.sweep(ref(), operation())
    assert isinstance(swept, Redate)
    assert swept.ms <= 60_001
    await desk.put(ref(), deadline=await desk.past())
    assert await desk.tasks.sweep(ref(), operation()) == MustEnd("1 2", "failed", "deadline")


async def test_retries_are_counted_since_the_last_checkpoint(place: Place) -> None:
    """When they may last no longer the attempt stays held; a checkpoint that is kept begins the count anew."""
    desk = Desk(place)
    await desk.running()
    for launch in (2, 3):
        assert isinstance(await _released(desk, launch - 1, 10, HOUR_MS), NotBefore)
        await desk.begin(ref(), launch)
    assert await desk.field(ref(), "retries") == "2"
    await desk.put(ref(), retrying_since=await desk.now() - HOUR_MS)
    assert await desk.nothing_written(lambda: _released(desk, 3, 10, HOUR_MS)) == Spent()
    assert await desk.field(ref(), "status") == "running"
    batch = Batch()
    batch.keep("messages", b"[]")
    await desk.tasks.append(ref(), 3, batch, operation())
    assert await desk.field(ref(), "retries") is await desk.field(ref(), "retrying_since") is None
    assert isinstance(await _released(desk, 3, 10, HOUR_MS), NotBefore)
    assert await desk.field(ref(), "retries") == "1"


async def test_retries_of_one_thing_are_not_those_of_another(place: Place) -> None:
    """A turn that waited for its agent's version for long may still wait for its model. What is no retry changes nothing."""
    desk = Desk(place)
    await desk.running()
    await _released(desk, 1, 10, HOUR_MS, "agent_version")
    await desk.put(ref(), retrying_since=await desk.now() - HOUR_MS)
    await desk.begin(ref(), 2)
    await _released(desk, 2, 10)
    await desk.begin(ref(), 3)
    assert await _released(desk, 3, 10, HOUR_MS, "agent_version") == Spent()
    assert isinstance(await _released(desk, 3, 10, HOUR_MS), NotBefore)
    assert await desk.field(ref(), "retries") == "1"
    await desk.begin(ref(), 4)
    assert isinstance(await _released(desk, 4, 10, HOUR_MS), NotBefore)
    assert await desk.field(ref(), "retries") == "2"
