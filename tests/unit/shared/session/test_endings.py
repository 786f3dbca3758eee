"""Ending tasks and clearing sessions: take, finish, clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.shared.session.support import Desk, asking, closed, delta, ended, keys_of, opened, ref
from turnstream.shared.broker import client, scripts
from turnstream.shared.session import batch as batches
from turnstream.shared.session.endings import End, write_end
from turnstream.shared.session.entry import END
from turnstream.shared.session.event_log import PAGE_BYTES
from turnstream.shared.session.outcomes import (
    Attempt,
    Cleared,
    Ended,
    Fenced,
    Finished,
    Gone,
    Live,
    Missing,
    Moved,
    Waits,
)
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place


@pytest.mark.parametrize("status", ["queued", "running", "parked"])
async def test_an_ender_takes_a_task_wherever_it_is(place: Place, status: str) -> None:
    """The next attempt is the ender's, with a lease of its own and the ending it is about to write."""
    desk = Desk(place)
    if status == "queued":
        await desk.submit(ref())
    elif status == "running":
        await desk.running()
    else:
        await desk.parked("c1")
    number = int(await desk.field(ref(), "attempt") or 0) + 1
    op = operation()
    taken = await desk.twice(lambda: desk.tasks.take(ref(), "api", "canceled stop", op))
    assert isinstance(taken, Attempt)
    assert taken.number == number
    assert taken.task["status"] == b"running"
    assert taken.task["ending"] == b"canceled stop"
    assert taken.task["ended_by"] == b"api"
    assert taken.task.get("worker") == (None if status == "queued" else b"w1")
    assert int(taken.task["lease"]) > await desk.now()
    assert await desk.finish(taken, "canceled")


async def test_an_ender_finds_what_the_worker_left(place: Place) -> None:
    """Open messages, calls and checkpoints are handed to the ender as to the next worker."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = delta("m1", "Hi", opened("m1", asking("c1")))
    batch.keep("messages", b"[1]")
    await desk.append(attempt, batch)
    taken = await desk.tasks.take(ref(), "api", "canceled stop", operation())
    assert isinstance(taken, Attempt)
    assert (taken.open, taken.state) == ({"m1": 4}, {"messages": b"[1]"})
    assert (set(taken.calls), taken.first, taken.epoch) == ({"c1"}, 1, attempt.epoch)


async def test_a_task_that_moved_is_not_taken(place: Place) -> None:
    """An ender that acts on what it saw does nothing when attempt or launch changed since."""
    desk = Desk(place)
    await desk.running()
    take = desk.tasks.take
    for seen in ("0 1", "1 2", "2 1"):
        outcome = await desk.nothing_written(
            lambda seen=seen: take(ref(), "rescuer", "failed worker_lost", operation(), seen)  # type: ignore[misc]
        )
        assert outcome == Moved()
    assert isinstance(await take(ref(), "rescuer", "failed worker_lost", operation(), "1 1"), Attempt)


async def test_what_has_ended_or_never_was_is_not_taken(place: Place) -> None:
    """An ender learns how a task ended, or that there is none."""
    desk = Desk(place)
    await desk.finish(await desk.running(), "failed")
    take = desk.tasks.take
    outcome = await desk.nothing_written(lambda: take(ref(), "api", "canceled stop", operation()))
    assert outcome == Ended("failed")
    assert await desk.nothing_written(lambda: take(ref("x"), "api", "canceled stop", operation())) == Gone()


async def test_a_waiting_task_that_is_taken_waits_no_more(place: Place) -> None:
    """A taken task leaves the session's waiting room; the others keep their order."""
    desk = Desk(place)
    await desk.running()
    for name in ("t2", "t3", "t4"):
        await desk.submit(ref(name))
    await desk.tasks.take(ref("t3"), "api", "canceled stop", operation())
    assert await desk.redis.lrange(keys_of().waiting, 0, -1) == [b"t2", b"t4"]


async def test_finish_writes_the_end_and_drops_what_the_turn_needed(place: Place) -> None:
    """After the end: the terminal event, a memory, no call, no checkpoint, nothing open, nobody active."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = opened("m1", asking("c1"))
    batch.keep("messages", b"[]")
    batch.group("g", 1)
    await desk.append(attempt, batch)
    outcome = await desk.tasks.finish(
        ref(), 1, ended(batch=closed("m1")), operation(), status="failed", why="boom", memory=b'{"n":1}'
    )
    assert outcome == Finished(6, "", 1)
    entries = await desk.sound()
    assert [entry.kind for entry in entries[-2:]] == ["message", END]
    task = await desk.log.task(keys_of(), "t1")
    assert (task["status"], task["why"], task["out"], task["first"]) == ("failed", "boom", "6", "1")
    left = await desk.redis.hkeys(keys_of().task("t1"))
    assert not [name for name in left if name.startswith((b"open:", b"group:", b"lease", b"request"))]
    assert await desk.redis.exists(keys_of().calls("t1"), keys_of().state("t1")) == 0
    assert await desk.redis.lrange(keys_of().memory, 0, -1) == [b'{"n":1}']
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert meta.active == ""
    assert await desk.log.live(keys_of()) == []


async def test_a_finish_without_memory_leaves_none(place: Place) -> None:
    """An empty memory is no element."""
    desk = Desk(place)
    await desk.finish(await desk.running(), memory=b"")
    assert await desk.redis.exists(keys_of().memory) == 0


async def test_a_repeated_finish_ends_once(place: Place) -> None:
    """An end whose reply was lost is written once, and names the next turn again."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    op = operation()
    outcome = await desk.twice(
        lambda: desk.tasks.finish(ref(), 1, ended(), op, status="completed", why="", memory=b"{}")
    )
    assert outcome == Finished(5, "t2", 1)
    assert len(await desk.redis.lrange(keys_of().memory, 0, -1)) == 1
    await desk.sound()


async def test_only_the_newest_attempt_finishes(place: Place) -> None:
    """A former attempt is fenced, and a task that has ended or is gone is not ended again."""
    desk = Desk(place)

    async def finish(task: str, attempt: int) -> object:
        return await desk.tasks.finish(
            ref(task), attempt, ended(), operation(), status="completed", why="", memory=b"{}"
        )

    await desk.running()
    await desk.tasks.release(ref(), 1, operation())
    assert await desk.nothing_written(lambda: finish("t1", 1)) == Fenced()
    second = await desk.begin(ref(), 2)
    assert await desk.nothing_written(lambda: finish("t1", 1)) == Fenced()
    await desk.finish(second)
    assert await desk.nothing_written(lambda: finish("t1", 2)) == Ended()
    assert await desk.nothing_written(lambda: finish("x", 1)) == Gone()


async def test_the_turn_passes_in_order(place: Place) -> None:
    """Each end hands the session's turn to the one that waits longest, which may then begin."""
    desk = Desk(place)
    attempt = await desk.running()
    for name in ("t2", "t3"):
        assert isinstance(await desk.submit(ref(name)), Waits)
    for name in ("t2", "t3"):
        outcome = await desk.finish(attempt)
        assert (outcome.next, outcome.launch) == (name, 1)
        meta = await desk.log.meta(keys_of())
        assert meta is not None
        assert meta.active == name
        attempt = await desk.begin(ref(name))
    assert (await desk.finish(attempt)).next == ""
    await desk.sound()


async def test_the_turn_skips_what_is_no_longer_there(place: Place) -> None:
    """A waiting task that vanished does not stop the session."""
    desk = Desk(place)
    attempt = await desk.running()
    for name in ("t2", "t3"):
        await desk.submit(ref(name))
    await desk.redis.delete(keys_of().task("t2"))
    assert (await desk.finish(attempt)).next == "t3"


async def test_the_end_of_a_task_that_had_not_the_turn_passes_nothing(place: Place) -> None:
    """The end of a waiting task leaves the session's turn where it is."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    await desk.submit(ref("t3"))
    taken = await desk.tasks.take(ref("t2"), "api", "canceled stop", operation())
    assert isinstance(taken, Attempt)
    assert (await desk.finish(taken, "canceled")).next == ""
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert meta.active == "t1"
    assert await desk.log.live(keys_of()) == ["t3", "t1"]


async def test_clear_needs_all_tasks_ended(place: Place) -> None:
    """A session with live tasks is not cleared; they are named."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    epoch = await desk.epoch()
    outcome = await desk.nothing_written(lambda: desk.tasks.clear(keys_of(), epoch))
    assert isinstance(outcome, Live)
    assert set(outcome.tasks) == {"t1", "t2"}
    assert await desk.nothing_written(lambda: desk.tasks.clear(keys_of("s9"), epoch)) == Missing()


async def test_clear_begins_a_new_epoch(place: Place) -> None:
    """Log, memory and history are dropped, followers are told, and seqs count from 1 again."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.finish(attempt)
    async with desk.tails() as tail:
        outcome = await desk.twice(lambda: desk.tasks.clear(keys_of(), attempt.epoch))
        assert isinstance(outcome, Cleared)
        message = await tail()
        assert (message.epoch, message.first, message.last, message.entries) == (outcome.epoch, 1, 0, [])
    assert outcome.epoch > attempt.epoch
    assert await desk.entries() == []
    assert await desk.log.history(keys_of()) == []
    fresh = await desk.running(ref("t2"))
    assert (fresh.epoch, fresh.first, fresh.memory) == (outcome.epoch, 1, [])
    assert await desk.nothing_written(lambda: desk.tasks.clear(keys_of(), attempt.epoch)) == outcome
    await desk.sound()


async def test_a_clear_that_comes_late_clears_nothing(place: Place) -> None:
    """Past another clear, it would drop what was said since to somebody who asked for nothing."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.finish(attempt)
    first = await desk.tasks.clear(keys_of(), attempt.epoch)
    assert isinstance(first, Cleared)
    second = await desk.tasks.clear(keys_of(), first.epoch)
    await desk.finish(await desk.running(ref("t2")))
    for late in (attempt.epoch, first.epoch):
        assert await desk.nothing_written(lambda late=late: desk.tasks.clear(keys_of(), late)) == second  # type: ignore[misc]
    assert [entry.task for entry in await desk.log.history(keys_of())] == ["t2", "t2"]


async def test_an_epoch_only_grows(place: Place) -> None:
    """Two clears in one microsecond, or a clock set back, still give a larger epoch each."""
    desk = Desk(place)
    await desk.tasks.create(keys_of(), "demo", "")
    ahead = await desk.now() * 1000 + 10_000_000
    await desk.redis.hset(keys_of().meta, "epoch", ahead)
    cleared = await desk.tasks.clear(keys_of(), ahead)
    assert isinstance(cleared, Cleared)
    assert ahead < cleared.epoch < ahead + 3_000_000
    again = await desk.tasks.clear(keys_of(), cleared.epoch)
    assert isinstance(again, Cleared)
    assert cleared.epoch < again.epoch < cleared.epoch + 3_000_000


async def test_a_long_message_is_closed_in_small_reads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker and event loop serve others between two pages of a turn that is ended in the middle of its words."""
    monkeypatch.setattr(batches, "JOINED_BYTES", 0)
    desk = Desk(place)
    attempt = await desk.running()
    batch = opened("m")
    for _ in range(2000):
        delta("m", "word ", batch)
    attempt.open["m"] = await desk.append(attempt, batch) - batch.count + 1
    rows: list[int] = []

    async def reading(*words: Any, **given: Any) -> Any:
        reply = await client.command(*words, **given)
        if isinstance(reply, list) and len(reply) == 6 and isinstance(reply[2], list):
            rows.append(len(reply[2]))
        return reply

    monkeypatch.setattr(scripts, "command", reading)
    outcome = await write_end(desk.ender, attempt, End(TaskStatus.FAILED, "deadline", "Too long."))
    assert isinstance(outcome, Finished)
    assert sum(rows) > 2000
    # What an entry costs its reader beside its texts.
    assert max(rows) <= PAGE_BYTES / 512
