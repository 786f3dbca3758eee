"""Taking and keeping the right to write a task: begin, append, renew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.shared.session.support import HOUR_MS, Desk, asking, closed, delta, opened, ref
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.outcomes import (
    Appended,
    Attempt,
    Ended,
    Fenced,
    Gone,
    Launch,
    Renewed,
    Superseded,
)
from turnstream.shared.session.task_list import TaskList
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_begin_gives_what_the_turn_needs(place: Place) -> None:
    """The first attempt gets the request, its place in the log and a lease, and finds nothing of others."""
    desk = Desk(place)
    attempt = await desk.running(request=b'{"input":[1]}', response="resp_9", agent="demo")
    assert (attempt.number, attempt.fresh, attempt.first) == (1, True, 1)
    assert (attempt.agent, attempt.response) == ("demo", "resp_9")
    assert attempt.task["request"] == b'{"input":[1]}'
    assert (attempt.open, attempt.calls, attempt.results, attempt.state, attempt.memory) == (
        {},
        {},
        {},
        {},
        [],
    )
    assert int(attempt.task["lease"]) > await desk.now()
    assert await desk.field(ref(), "worker") == "w1"


async def test_begin_gives_the_memory_of_the_turns_that_ended_before(place: Place) -> None:
    """Each turn sees what the model saw in the turns before it, oldest first."""
    desk = Desk(place)
    await desk.finish(await desk.running(), memory=b'{"n":1}')
    await desk.finish(await desk.running(ref("t2")), memory=b'{"n":2}')
    assert (await desk.running(ref("t3"))).memory == [b'{"n":1}', b'{"n":2}']


async def test_a_repeated_begin_gives_the_same_attempt(place: Place) -> None:
    """A begin whose reply was lost does not take a second attempt."""
    desk = Desk(place)
    await desk.submit(ref())
    op = operation()
    attempt = await desk.twice(lambda: desk.tasks.begin(ref(), 1, "w1", op))
    assert isinstance(attempt, Attempt)
    assert attempt.number == 1


async def test_only_the_newest_launch_of_a_queued_task_begins(place: Place) -> None:
    """Another launch, and any launch of a task that is not queued, is superseded."""
    desk = Desk(place)
    await desk.submit(ref())
    begin = desk.tasks.begin
    assert await desk.nothing_written(lambda: begin(ref(), 2, "w2", operation())) == Superseded("queued")
    await desk.begin(ref())
    assert await desk.nothing_written(lambda: begin(ref(), 1, "w2", operation())) == Superseded("running")


async def test_a_parked_task_does_not_begin(place: Place) -> None:
    """The launch that ran until the task parked cannot begin again."""
    desk = Desk(place)
    await desk.parked("c1")
    outcome = await desk.nothing_written(lambda: desk.tasks.begin(ref(), 1, "w2", operation()))
    assert outcome == Superseded("parked")


async def test_a_waiting_task_does_not_begin(place: Place) -> None:
    """A task that waits for its session's turn has no launch yet."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    outcome = await desk.nothing_written(lambda: desk.tasks.begin(ref("t2"), 1, "w2", operation()))
    assert outcome == Superseded("queued")


async def test_what_has_ended_or_never_was_does_not_begin(place: Place) -> None:
    """A launch that comes late finds its task ended, or gone."""
    desk = Desk(place)
    await desk.finish(await desk.running())
    assert await desk.nothing_written(lambda: desk.tasks.begin(ref(), 1, "w2", operation())) == Ended()
    assert await desk.nothing_written(lambda: desk.tasks.begin(ref("tx"), 1, "w2", operation())) == Gone()


async def test_a_later_attempt_finds_what_the_earlier_one_left(place: Place) -> None:
    """Open messages with their first seq, checkpoints, calls and the start time outlive an attempt."""
    desk = Desk(place)
    first = await desk.running()
    await desk.append(first, delta("m1", "Hi", opened("m1")))
    batch = asking("c1")
    batch.keep("messages", b"[1]")
    batch.keep("usage", b"{}")
    await desk.append(first, batch)
    more = opened("m2")
    more.drop("usage")
    await desk.append(first, more)
    await desk.tasks.callback(ref(), "c1", b'"sunny"', closed("out"), operation())
    await desk.tasks.release(ref(), 1, operation())
    second = await desk.begin(ref(), 2)
    assert (second.number, second.fresh) == (2, False)
    assert second.open == {"m1": 3, "m2": 6}
    assert second.state == {"messages": b"[1]"}
    assert second.calls == {"c1": b'{"name":"weather"}'}
    assert second.results == {"c1": b'"sunny"'}
    assert second.task["started"] == first.task["started"]


async def test_append_gives_the_last_seq_and_extends_the_lease(place: Place) -> None:
    """Each append is a sign of life."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.put(ref(), lease=await desk.past())
    assert await desk.append(attempt, closed("m1", batch=opened("m1"))) == 4
    assert int(await desk.field(ref(), "lease") or 0) > await desk.now()
    await desk.sound()


async def test_a_repeated_append_writes_once(place: Place) -> None:
    """An append whose reply was lost gives the first seq; entries, calls and checkpoints stay as they are."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = opened("m1", asking("c1"))
    batch.keep("messages", b"[]")
    batch.group("g", 2)
    op = operation()
    outcome = await desk.twice(lambda: desk.tasks.append(ref(), attempt.number, batch, op))
    assert outcome == Appended(4)
    assert await desk.field(ref(), "pending") == "1"
    assert len(await desk.sound()) == 4


async def test_an_append_without_entries_only_keeps(place: Place) -> None:
    """Checkpoints alone take no place in the log."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = Batch()
    batch.keep("messages", b"[]")
    assert await desk.append(attempt, batch) == 2
    assert len(await desk.entries()) == 2


async def test_append_is_refused_to_all_but_the_newest_attempt(place: Place) -> None:
    """An older attempt is fenced, and a task that is queued, ended or gone takes nothing."""
    desk = Desk(place)
    tasks = desk.tasks
    await desk.running()
    await tasks.release(ref(), 1, operation())
    assert await desk.nothing_written(lambda: tasks.append(ref(), 1, opened("m"), operation())) == Fenced()
    second = await desk.begin(ref(), 2)
    assert await desk.nothing_written(lambda: tasks.append(ref(), 1, opened("m"), operation())) == Fenced()
    await desk.finish(second)
    assert await desk.nothing_written(lambda: tasks.append(ref(), 2, opened("m"), operation())) == Ended()
    assert await desk.nothing_written(lambda: tasks.append(ref("tx"), 1, opened("m"), operation())) == Gone()


async def test_renew_extends_the_lease_of_the_newest_attempt_alone(place: Place) -> None:
    """A worker that lost its task learns it when it renews."""
    desk = Desk(place)
    await desk.running()
    await desk.put(ref(), lease=await desk.past())
    assert await desk.tasks.renew(ref(), 1) == Renewed()
    assert int(await desk.field(ref(), "lease") or 0) > await desk.now()
    await desk.tasks.release(ref(), 1, operation())
    assert await desk.nothing_written(lambda: desk.tasks.renew(ref(), 1)) == Fenced()
    second = await desk.begin(ref(), 2)
    assert await desk.nothing_written(lambda: desk.tasks.renew(ref(), 1)) == Fenced()
    await desk.finish(second)
    assert await desk.nothing_written(lambda: desk.tasks.renew(ref(), 2)) == Ended()
    assert await desk.nothing_written(lambda: desk.tasks.renew(ref("tx"), 1)) == Gone()


async def test_each_attempt_is_told_with_its_reason(place: Place) -> None:
    """A lost worker, a release with a reason, one without; of very many the newest, and a repeat adds none."""
    desk = Desk(place)
    tasks = TaskList(desk.broker)
    attempt = await desk.running()
    assert [each.get("because") for each in await tasks.attempts(ref())] == [None]
    await desk.put(ref(), lease=await desk.past())
    assert await desk.tasks.sweep(ref(), operation()) == Launch(2)
    attempt = await desk.begin(ref(), 2)
    await desk.tasks.release(ref(), attempt.claim, operation(), wait_ms=HOUR_MS, reason="model_held")
    await desk.put(ref(), not_before=await desk.past())
    attempt = await desk.begin(ref(), 3)
    for launch in range(4, 80):
        await desk.tasks.release(ref(), attempt.claim, operation())
        op = operation()
        for _ in range(2):
            began = await desk.tasks.begin(ref(), launch, "w2", op)
            assert isinstance(began, Attempt)
            attempt = began
        if launch == 4:
            told = [
                (each["attempt"], each["worker"], each.get("because")) for each in await tasks.attempts(ref())
            ]
            assert told == [
                (1, "w1", None),
                (2, "w1", "worker_lost"),
                (3, "w1", "model_held"),
                (4, "w2", "released"),
            ]
    told_last = await tasks.attempts(ref())
    assert [each["attempt"] for each in told_last] == list(range(told_last[0]["attempt"], 80))
    assert 20 < len(told_last) < 79
    assert {each["because"] for each in told_last[1:]} == {"released"}
    assert len(await desk.field(ref(), "tries") or "") < 2200
