"""Who comes too late is refused, and every task ends once: the orders of events that hurt, scripted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
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
from turnstream.shared.broker import keys
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.entry import END
from turnstream.shared.session.outcomes import (
    Appended,
    Attempt,
    Ended,
    Fenced,
    Finished,
    Launch,
    Moved,
    MustEnd,
    Parked,
    Redate,
    Stored,
    Superseded,
)
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place


def _writes(desk: Desk, attempt: Attempt) -> list[Callable[[], Awaitable[object]]]:
    """All that an attempt's holder may try."""
    tasks, number = desk.tasks, attempt.number
    return [
        lambda: tasks.append(ref(), number, opened("late"), operation()),
        lambda: tasks.renew(ref(), number),
        lambda: tasks.park(ref(), number, asking("late"), operation(), wait_ms=HOUR_MS, policy="block"),
        lambda: tasks.release(ref(), number, operation()),
        lambda: tasks.finish(ref(), number, ended(), operation(), status="completed", why="", memory=b"{}"),
    ]


async def _refused(desk: Desk, attempt: Attempt, outcome: object) -> None:
    for write in _writes(desk, attempt):
        assert await desk.nothing_written(write) == outcome


async def _lose(desk: Desk) -> Attempt:
    """A worker is frozen in the middle of a message, and its lease is over."""
    attempt = await desk.running()
    await desk.append(attempt, delta("m1", "Hel", opened("m1")))
    await desk.put(ref(), lease=await desk.past())
    return attempt


async def test_a_worker_that_thaws_after_the_sweep_is_refused(place: Place) -> None:
    """Its task is queued again, so nothing the former attempt says is written."""
    desk = Desk(place)
    frozen = await _lose(desk)
    assert await desk.tasks.sweep(ref(), operation()) == Launch(2)
    await _refused(desk, frozen, Fenced())
    await desk.finish(await desk.begin(ref(), 2))
    await desk.sound()


async def test_a_worker_that_thaws_after_the_take_over_is_refused(place: Place) -> None:
    """Another worker runs the task, so nothing the former attempt says is written."""
    desk = Desk(place)
    frozen = await _lose(desk)
    await desk.tasks.sweep(ref(), operation())
    second = await desk.begin(ref(), 2)
    await desk.append(second, closed("m1"))
    await _refused(desk, frozen, Fenced())
    await desk.finish(second)
    await _refused(desk, frozen, Ended())
    assert [entry.kind for entry in await desk.sound()].count(END) == 1


async def test_a_worker_that_thaws_while_the_task_is_parked_is_refused(place: Place) -> None:
    """The task waits for its client under a newer attempt, so nothing the former one says is written."""
    desk = Desk(place)
    frozen = await _lose(desk)
    await desk.tasks.sweep(ref(), operation())
    await desk.begin(ref(), 2)
    assert (
        await desk.tasks.park(ref(), 2, asking("c1"), operation(), wait_ms=HOUR_MS, policy="block")
        == Parked()
    )
    await _refused(desk, frozen, Fenced())
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Launch(3)
    await _refused(desk, frozen, Fenced())


async def test_a_worker_that_thaws_before_anybody_noticed_goes_on(place: Place) -> None:
    """A lease that was over but taken by nobody is simply extended."""
    desk = Desk(place)
    frozen = await _lose(desk)
    await desk.append(frozen, closed("m1", "Hello"))
    await desk.finish(frozen)
    assert isinstance(await desk.tasks.sweep(ref(), operation()), Redate)
    await desk.sound()


async def test_a_stopped_worker_is_refused(place: Place) -> None:
    """From the moment an ender takes the task, and after its end, the worker writes nothing more."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    taken = await desk.tasks.take(ref(), "api", "canceled stop", operation())
    assert isinstance(taken, Attempt)
    await _refused(desk, attempt, Fenced())
    await desk.finish(taken, "canceled")
    await _refused(desk, attempt, Ended())


async def test_a_superseded_launch_does_not_begin(place: Place) -> None:
    """A launch that waited in the queue while a newer one was made comes to nothing."""
    desk = Desk(place)
    await _lose(desk)
    await desk.tasks.sweep(ref(), operation())
    begin = desk.tasks.begin
    assert await desk.nothing_written(lambda: begin(ref(), 1, "w9", operation())) == Superseded("queued")
    await desk.begin(ref(), 2)
    assert await desk.nothing_written(lambda: begin(ref(), 2, "w9", operation())) == Superseded("running")


async def test_one_launch_begins_once(place: Place) -> None:
    """Of several workers that claimed the same launch, one gets the attempt."""
    desks = [Desk(place) for _ in range(5)]
    await desks[0].submit(ref())
    outcomes = await asyncio.gather(
        *(desk.tasks.begin(ref(), 1, f"w{number}", operation()) for number, desk in enumerate(desks))
    )
    assert len([outcome for outcome in outcomes if isinstance(outcome, Attempt)]) == 1
    assert outcomes.count(Superseded("running")) == 4


@pytest.mark.parametrize("first", ["park", "callback", "both"])
async def test_a_callback_that_races_the_park_launches_once(place: Place, first: str) -> None:
    """Whether the answer comes before, after or while the task parks: exactly one launch comes of it."""
    desk, other = Desk(place), Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1"))

    async def park() -> object:
        return await desk.tasks.park(ref(), 1, opened("m1"), operation(), wait_ms=HOUR_MS, policy="block")

    async def callback() -> object:
        return await other.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())

    if first == "both":
        outcomes = list(await asyncio.gather(park(), callback()))
    elif first == "park":
        outcomes = [await park(), await callback()]
    else:
        outcomes = [await callback(), await park()]
    assert outcomes.count(Launch(2)) == 1
    assert Parked() in outcomes or Stored(0) in outcomes
    await desk.launches.launch(ref(), 2)
    await other.launches.launch(ref(), 2)
    assert list(await desk.launches.claim(10)) == ["o1/s1/t1:2"]
    assert (await desk.begin(ref(), 2)).results == {"c1": b"1"}
    await desk.sound()


async def test_several_answers_at_once_launch_once(place: Place) -> None:
    """However many callbacks come at the same moment, one of them is the last one in."""
    desk = Desk(place)
    calls = [f"c{number}" for number in range(8)]
    await desk.parked(*calls)
    outcomes = await asyncio.gather(
        *(desk.tasks.callback(ref(), call, b"1", answer(call), operation()) for call in calls * 2)
    )
    assert outcomes.count(Launch(2)) == 1
    assert len([outcome for outcome in outcomes if isinstance(outcome, Stored)]) == 7


async def test_the_text_so_far_is_kept_when_a_turn_is_stopped(place: Place) -> None:
    """A stop closes what was open as incomplete, with what was said, in the log, the end and the memory."""
    desk = Desk(place)
    attempt = await desk.running(request=b'{"input":["hi"]}')
    await desk.append(attempt, delta("m1", "lo", delta("m1", "Hel", opened("m1"))))
    outcome = await end_from_outside(desk.ender, ref(), "canceled", "stop", who="api")
    assert isinstance(outcome, Finished)
    entries = await desk.sound()
    message, end = (orjson.loads(entry.event) for entry in entries[-2:])
    assert (message["id"], message["status"]) == ("m1", "incomplete")
    assert message["content"][0]["text"] == "Hello"
    assert (end["status"], [each["id"] for each in end["output"]]) == ("canceled", ["m1"])
    [memory] = await desk.redis.lrange(keys_of().memory, 0, -1)
    assert orjson.loads(memory) == {
        "task": "t1",
        "input": ["hi"],
        "status": "canceled",
        "said": "Hello",
    }


@pytest.mark.parametrize("status", ["queued", "running", "parked"])
async def test_enders_at_once_write_one_end(place: Place, status: str) -> None:
    """Of several stops at the same moment each returns when the end is written, and it is written once."""
    desks = [Desk(place) for _ in range(4)]
    desk = desks[0]
    if status == "queued":
        await desk.submit(ref())
    elif status == "running":
        await desk.append(await desk.running(), delta("m1", "Hi", opened("m1")))
    else:
        await desk.parked("c1")
    outcomes = await asyncio.gather(
        *(end_from_outside(each.ender, ref(), "canceled", "stop", who="api") for each in desks)
    )
    assert len([outcome for outcome in outcomes if isinstance(outcome, Finished)]) == 1
    assert outcomes.count(Ended("canceled")) + outcomes.count(Ended()) == 3
    entries = await desk.sound()
    assert [entry.kind for entry in entries].count(END) == 1
    assert len(await desk.redis.lrange(keys_of().memory, 0, -1)) == 1


async def test_a_finish_that_races_a_stop_ends_once(place: Place) -> None:
    """Either the worker's end stands or the ender's; never both, never none."""
    desk, other = Desk(place), Desk(place)
    await desk.running()
    finished, stopped = await asyncio.gather(
        desk.tasks.finish(ref(), 1, ended(), operation(), status="completed", why="", memory=b"{}"),
        end_from_outside(other.ender, ref(), "canceled", "stop", who="api"),
    )
    if isinstance(finished, Finished):
        assert stopped == Ended("completed")
    else:
        assert finished in {Fenced(), Ended()}
        assert isinstance(stopped, Finished)
    assert [entry.kind for entry in await desk.sound()].count(END) == 1


async def test_a_waiting_task_is_stopped_without_touching_the_turn(place: Place) -> None:
    """A stop of a queued task that waits ends that one alone; the turn goes past it."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    outcome = await end_from_outside(desk.ender, ref("t2"), "canceled", "stop", who="api")
    assert isinstance(outcome, Finished)
    assert outcome.next == ""
    assert await desk.launches.depth() == 0
    await desk.append(attempt, opened("m1"))
    assert (await desk.finish(attempt)).next == "t3"
    entries = await desk.sound()
    assert [entry.task for entry in entries if entry.kind == END] == ["t2", "t1"]


async def test_a_stop_passes_the_turn_and_launches_the_next(place: Place) -> None:
    """Whoever ends the active turn queues the next one."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await end_from_outside(desk.ender, ref(), "canceled", "stop", who="api")
    assert list(await desk.launches.claim(10)) == ["o1/s1/t2:1"]
    assert (await desk.begin(ref("t2"))).number == 1


async def test_the_former_holder_is_told(place: Place) -> None:
    """The control channel names the task, the attempt that has it now, and why."""
    desk = Desk(place)
    await desk.running()
    pubsub = desk.primary.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe(keys.CONTROL)
    await end_from_outside(desk.ender, ref(), "canceled", "stop", who="api")
    while (message := await pubsub.get_message(timeout=5)) is None:
        pass
    assert message["data"] == b"o1/s1/t1 2 stop"
    await pubsub.aclose()


async def test_an_ender_that_dies_is_finished_by_the_rescuer(place: Place) -> None:
    """A stop whose front end died after taking the task is written by the rescuer, as the stop it was."""
    desk = Desk(place)
    worker = await desk.running()
    await desk.append(worker, delta("m1", "Hi", opened("m1")))
    dead = await desk.tasks.take(ref(), "api", "canceled stop", operation())
    assert isinstance(dead, Attempt)
    await desk.put(ref(), lease=await desk.past())
    swept = await desk.tasks.sweep(ref(), operation())
    assert swept == MustEnd("2 1", "canceled", "stop")
    outcome = await end_from_outside(
        desk.ender, ref(), swept.status, swept.why, who="rescuer", seen=swept.seen
    )
    assert isinstance(outcome, Finished)
    assert (await desk.log.task(keys_of(), "t1"))["status"] == "canceled"
    await _refused(desk, dead, Ended())
    await _refused(desk, worker, Ended())
    await desk.sound()


async def test_a_rescuer_that_saw_too_little_does_nothing(place: Place) -> None:
    """A task that went on between the rescuer's look and its take is left alone."""
    desk = Desk(place)
    await desk.parked("c1")
    await desk.put(ref(), parked_until=await desk.past())
    swept = await desk.tasks.sweep(ref(), operation())
    assert isinstance(swept, MustEnd)
    await desk.put(ref(), parked_until=await desk.now() + HOUR_MS)
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    outcome = await end_from_outside(
        desk.ender, ref(), swept.status, swept.why, who="rescuer", seen=swept.seen
    )
    assert outcome == Moved()
    assert (await desk.begin(ref(), 2)).results == {"c1": b"1"}


async def test_a_write_that_the_network_delayed_is_known(place: Place) -> None:
    """An append that comes in once more behind later ones writes nothing, nor does one that outlives its attempt."""
    desk = Desk(place)
    attempt = await desk.running()
    op, batch = operation(), opened("m1")
    first = await desk.tasks.append(ref(), 1, batch, op)
    assert isinstance(first, Appended)

    async def late() -> object:
        return await desk.tasks.append(ref(), 1, batch, op)

    assert await desk.nothing_written(late) == first
    await desk.append(attempt, delta("m1", "Hi"))
    assert await desk.nothing_written(late) == Fenced()
    await desk.append(attempt, closed("m1", "Hi"))
    await desk.tasks.park(ref(), 1, asking("c1"), operation(), wait_ms=HOUR_MS, policy="block")
    assert await desk.nothing_written(late) == Fenced()
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    second = await desk.begin(ref(), 2)
    assert await desk.nothing_written(late) == Fenced()
    await desk.finish(second)
    assert await desk.nothing_written(late) == Ended()
    await desk.sound()
