"""A log whose broker lost its end: no place in it is given twice, and the turn goes on from what is left.

The broker goes back to an earlier state, as after a failover to a replica that lagged or a restart with an older file.
"""

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
from turnstream.api.streaming.start_position import start
from turnstream.shared.broker import client as brokers
from turnstream.shared.broker import scripts
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.endings import End, close_open, completed_messages, open_messages, write_end
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import (
    Attempt,
    Behind,
    Claim,
    Cleared,
    Ended,
    Fenced,
    Finished,
    Gone,
    Launch,
)
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place
    from turnstream.shared.session.event_log import SessionMeta


@pytest.fixture
def desk(place: Place) -> Desk:
    """A process's place at the broker."""
    return Desk(place)


@pytest.fixture
def incarnation(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What the broker calls its data from now on: another name after a restart or a promotion."""

    def name(text: str) -> None:
        async def told(_: object, **__: object) -> str:
            return text

        monkeypatch.setattr(scripts, "incarnation", told)

    name("first")
    return name


async def _meta(desk: Desk) -> SessionMeta:
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    return meta


async def _said(desk: Desk, attempt: Attempt, *texts: str) -> int:
    batch = Batch()
    for text in texts:
        delta("m1", text, batch)
    return await desk.append(attempt, batch)


def _writes(desk: Desk) -> dict[str, Callable[[Attempt], Awaitable[object]]]:
    tasks = desk.tasks
    return {
        "append": lambda it: tasks.append(it.ref, it.claim, delta("m1", "x"), operation()),
        "renew": lambda it: tasks.renew(it.ref, it.claim),
        "park": lambda it: tasks.park(
            it.ref, it.claim, asking("c9"), operation(), wait_ms=HOUR_MS, policy="block"
        ),
        "release": lambda it: tasks.release(it.ref, it.claim, operation()),
        "finish": lambda it: tasks.finish(
            it.ref, it.claim, ended(), operation(), status="completed", why="", memory=b"{}"
        ),
    }


@pytest.mark.parametrize("what", ["append", "renew", "park", "release", "finish"])
async def test_who_has_seen_more_than_the_log_holds_writes_nothing(desk: Desk, what: str) -> None:
    """A new epoch begins, with what is left at its places; the turn is queued again, and that is no crash."""
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    kept = await _said(desk, attempt, "a", "b")
    state = await desk.state()
    left = await desk.entries()
    lost = await _said(desk, attempt, "c", "d", "e")
    former = await desk.epoch()
    await desk.go_back(state)

    async with desk.tails() as tail:
        assert await _writes(desk)[what](attempt) == Behind(2)
        # As after a clear: followers of the former epoch learn that it is over.
        epoch, first, last, _, entries = await tail()
        meta = await _meta(desk)
        assert (epoch, first, last, entries) == (meta.epoch, kept + 1, kept, [])
    assert (meta.epoch > former, meta.seq) == (True, kept)
    assert await desk.entries() == left
    # A follower's cursor holds up to where the log was left, and no further.
    assert meta.place(Cursor(former, kept)) == Cursor(meta.epoch, kept)
    assert meta.place(Cursor(former, lost)) is None
    assert (await desk.field(ref(), "status"), await desk.field(ref(), "crashes")) == ("queued", "0")

    again = await desk.begin(ref(), 2)
    assert (again.number, again.epoch, set(again.open)) == (2, meta.epoch, {"m1"})
    # Whatever the former attempt still has to say: nothing of it comes in.
    for write in _writes(desk).values():
        assert await desk.nothing_written(lambda write=write: write(attempt)) == Fenced()  # type: ignore[misc]
    closing = Batch()
    messages, said = close_open(await open_messages(desk.ender, again), closing)
    assert (len(messages), said) == (1, "ab")
    await desk.append(again, closed("m2", "whole"))
    await desk.finish(again)
    await desk.sound()


@pytest.mark.parametrize("what", ["append", "renew", "park", "release", "finish"])
async def test_who_has_kept_more_than_is_there_writes_nothing(desk: Desk, what: str) -> None:
    """A batch that only keeps something has no place in the log; that it was lost is noticed all the same."""
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    state = await desk.state()
    kept = Batch()
    kept.keep("messages", b"the model's answer")
    await desk.append(attempt, kept)
    epoch, entries = await desk.epoch(), await desk.entries()
    await desk.go_back(state)

    assert await _writes(desk)[what](attempt) == Behind(2)
    # Nothing of the log was lost: followers go on.
    assert (await desk.epoch(), await desk.entries()) == (epoch, entries)
    assert (await desk.field(ref(), "status"), await desk.field(ref(), "crashes")) == ("queued", "0")
    again = await desk.begin(ref(), 2)
    assert (again.number, again.state, set(again.open)) == (2, {}, {"m1"})
    for write in _writes(desk).values():
        assert await desk.nothing_written(lambda write=write: write(attempt)) == Fenced()  # type: ignore[misc]


async def test_an_epoch_by_a_clock_that_was_ahead_is_not_given_again(desk: Desk) -> None:
    """The server that was lost was an hour ahead, and so were its epochs: the next one is later still."""
    attempt = await desk.running()
    lost = Claim(attempt.number, attempt.claim.holder, attempt.epoch + HOUR_MS, attempt.claim.seq)
    assert await desk.tasks.renew(ref(), lost) == Behind(2)
    assert await desk.epoch() > lost.epoch
    await desk.sound()


async def test_a_message_that_was_lost_is_said_again_under_another_id(desk: Desk) -> None:
    """No cursor is ever told for two events."""
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    state = await desk.state()
    told = {}
    for number in range(5):
        seq = await _said(desk, attempt, f"first {number}")
        told[Cursor(attempt.epoch, seq)] = f"first {number}"
    await desk.go_back(state)
    assert await desk.tasks.renew(ref(), attempt.claim) == Behind(2)
    again = await desk.begin(ref(), 2)
    for number in range(9):
        seq = await _said(desk, again, f"second {number}")
        assert Cursor(again.epoch, seq) not in told
    meta = await _meta(desk)
    assert not [cursor for cursor in told if meta.place(cursor)]


async def test_a_lost_attempt_and_one_that_got_its_number_again_are_two(desk: Desk) -> None:
    """The broker forgot the first begin, and another worker took the launch: only that one writes."""
    await desk.submit(ref())
    state = await desk.state()
    first = await desk.begin(ref())
    await desk.go_back(state)
    second = await desk.begin(ref())
    assert first.number == second.number == 1
    for write in _writes(desk).values():
        assert await desk.nothing_written(lambda write=write: write(first)) == Fenced()  # type: ignore[misc]
    # Neither has seen more than the log holds: nothing was lost of it, and no cursor is refused.
    assert await desk.epoch() == first.epoch
    await desk.append(second, closed("m1", "hello"))
    await desk.finish(second)


async def test_what_the_lost_attempt_of_a_lost_number_saw_is_not_given_again(desk: Desk) -> None:
    """Its holder may not write any more, but it knows better than the log where that ended."""
    await desk.submit(ref())
    state = await desk.state()
    first = await desk.begin(ref())
    last = await desk.append(first, closed("m1", "lost"))
    await desk.go_back(state)
    assert await desk.tasks.renew(ref(), first.claim) == Fenced()
    assert (await _meta(desk)).place(Cursor(first.epoch, last)) is None
    second = await desk.begin(ref())
    await desk.append(second, closed("m2", "kept"))
    assert second.epoch > first.epoch


async def test_a_turn_that_the_broker_forgot_leaves_no_place_to_the_next(desk: Desk) -> None:
    """Its submit was lost: who runs it is told so, and what was told of it is not told of another turn."""
    await desk.finish(await desk.running(ref("t1")))
    state = await desk.state()
    lost = await desk.running(ref("t2"))
    await desk.append(lost, opened("m1"))
    await desk.go_back(state)
    assert await desk.tasks.append(lost.ref, lost.claim, delta("m1", "x"), operation()) == Gone()
    later = await desk.running(ref("t3"))
    assert later.epoch > lost.epoch


async def test_renewing_behind_a_parked_turn_leaves_it_parked(desk: Desk) -> None:
    """The answer that had set it going again was lost: the client gives it again, and is told why by its cursor."""
    await desk.parked("c1")
    state = await desk.state()
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    second = await desk.begin(ref(), 2)
    await desk.append(second, opened("m1"))
    former, seen = await desk.epoch(), second.claim.seq
    await desk.go_back(state)
    assert await desk.tasks.renew(ref(), second.claim) == Fenced()
    assert await desk.field(ref(), "status") == "parked"
    meta = await _meta(desk)
    assert meta.epoch > former
    assert meta.place(Cursor(former, seen)) is None
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Launch(2)


async def test_an_ender_is_not_made_a_runner(desk: Desk) -> None:
    """Whoever ends a turn tries again from what is left; the turn is not launched in its place."""
    await desk.running()
    ender = await desk.tasks.take(ref(), "stop", "canceled stopped", operation())
    assert isinstance(ender, Attempt)
    state = await desk.state()
    await desk.append(ender, closed("m1", "x"))
    await desk.go_back(state)
    end = desk.tasks.finish(
        ref(), ender.claim, ended("canceled"), operation(), status="canceled", why="stopped", memory=b""
    )
    assert await end == Fenced()
    assert await desk.field(ref(), "status") == "running"


async def test_a_late_writer_of_a_cleared_session_begins_no_epoch(desk: Desk) -> None:
    """It knows an older log, and that is no loss."""
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "x"))
    await desk.finish(attempt)
    assert isinstance(await desk.tasks.clear(keys_of(), attempt.epoch), Cleared)
    cleared = await desk.epoch()
    assert await desk.tasks.renew(ref(), attempt.claim) == Ended()
    assert await desk.epoch() == cleared
    assert (await _meta(desk)).place(Cursor(attempt.epoch, 1)) is None


async def test_a_clear_that_was_lost_is_done_when_it_is_asked_for_again(desk: Desk) -> None:
    """Also by who read the epoch before the loss was noticed."""
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "x"))
    state = await desk.state()
    await desk.append(attempt, closed("m2", "x"))
    await desk.go_back(state)
    former = await desk.epoch()
    assert await desk.tasks.renew(ref(), attempt.claim) == Behind(2)
    await desk.finish(await desk.begin(ref(), 2))
    cleared = await desk.tasks.clear(keys_of(), former)
    assert isinstance(cleared, Cleared)
    assert await desk.entries() == []
    meta = await _meta(desk)
    assert (meta.epoch, meta.seq, meta.former) == (cleared.epoch, 0, {})


async def test_history_and_end_are_whole_after_a_loss(desk: Desk) -> None:
    """What was said before it is part of the output; ended turns stay addressable."""
    await desk.finish(await desk.running(ref("t0")))
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "one"))
    state = await desk.state()
    await desk.append(attempt, closed("m2", "lost"))
    history = await desk.log.history(keys_of())
    await desk.go_back(state)
    assert await desk.tasks.renew(ref(), attempt.claim) == Behind(2)
    again = await desk.begin(ref(), 2)
    await desk.append(again, closed("m3", "two"))
    outcome = await write_end(desk.ender, again, End(TaskStatus.COMPLETED))
    assert isinstance(outcome, Finished)
    meta = await _meta(desk)
    told = await desk.log.history(keys_of(), after=Cursor(meta.epoch, 0))
    assert [b'"m1"' in entry.event for entry in told].count(True) == 2
    assert not [entry for entry in told if b'"m2"' in entry.event]
    assert [entry.seq for entry in told][: len(history) - 1] == [entry.seq for entry in history[:-1]]
    for task in ("t0", "t1"):
        assert meta.has_epoch(int((await desk.log.task(keys_of(), task))["epoch"]))
    await desk.sound()


async def test_a_new_epoch_between_two_pages_of_a_history(
    desk: Desk, incarnation: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads all of it gets each message once."""
    attempt = await desk.running()
    for number in range(4):
        await desk.append(attempt, closed(f"m{number}", "x"))
    before = await desk.log.history(keys_of())
    monkeypatch.setattr("turnstream.shared.session.event_log.PAGE_BYTES", 1)
    pages = desk.log.all_kept(keys_of())
    told = [await anext(pages), await anext(pages)]
    incarnation("second")
    await desk.append(attempt, closed("m4", "x"))
    told += [entry async for entry in pages]
    assert [entry.seq for entry in told] == [entry.seq for entry in before] + [before[-1].seq + 1]
    # One that was cleared is over.
    pages = desk.log.all_kept(keys_of())
    await anext(pages)
    await desk.finish(attempt)
    await desk.tasks.clear(keys_of(), await desk.epoch())
    await desk.finish(await desk.running(ref("t2")))
    assert [entry async for entry in pages] == []
    await desk.sound()


async def test_another_incarnation_begins_a_new_epoch_at_the_next_write(
    desk: Desk, incarnation: Callable[[str], None]
) -> None:
    """A session that nobody was writing has no witness of what it lost. What is left keeps its cursors."""
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "x"))
    await desk.finish(attempt)
    meta = await _meta(desk)
    state = await desk.state()
    lost = await desk.running(ref("t2"))
    await desk.append(lost, closed("m2", "lost"))
    await desk.go_back(state)
    incarnation("second")
    following = await desk.running(ref("t3"))
    after = await _meta(desk)
    assert after.epoch > meta.epoch
    assert following.epoch == after.epoch
    assert after.place(Cursor(meta.epoch, meta.seq)) == Cursor(after.epoch, meta.seq)
    assert after.place(Cursor(meta.epoch, meta.seq + 1)) is None
    # Once for each incarnation.
    await desk.append(following, closed("m3", "y"))
    await desk.finish(following)
    assert await desk.epoch() == after.epoch
    await desk.sound()


async def test_an_attempt_lives_through_a_change_that_lost_nothing_of_it(
    desk: Desk, incarnation: Callable[[str], None]
) -> None:
    """It goes on where it was, in the new epoch, and so does the end that somebody else writes."""
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    await _said(desk, attempt, "a")
    former = attempt.epoch
    incarnation("second")
    await _said(desk, attempt, "b")
    assert attempt.epoch == await desk.epoch() > former
    ender = await desk.tasks.take(ref(), "stop", "canceled stopped", operation())
    assert isinstance(ender, Attempt)
    incarnation("third")
    # Somebody else writes in between.
    await desk.submit(ref("t2"), busy="parallel")
    messages, said = close_open(await open_messages(desk.ender, ender), Batch())
    assert (len(messages), said) == (1, "ab")
    assert await completed_messages(desk.ender, ender) == []
    await desk.sound()


async def test_a_connection_that_learnt_a_former_name_begins_no_epoch(
    desk: Desk, incarnation: Callable[[str], None]
) -> None:
    """A server may take another name while it serves. Connections from before it lead to the same data."""
    attempt = await desk.running()
    incarnation("second")
    await desk.append(attempt, closed("m", "x"))
    epoch = await desk.epoch()
    for number in range(6):
        incarnation("second" if number % 2 else "first")
        await desk.append(attempt, closed(f"m{number}", "x"))
    assert await desk.epoch() == epoch
    await desk.finish(attempt)
    incarnation("first")
    cleared = await desk.tasks.clear(keys_of(), epoch)
    assert cleared.epoch > epoch  # type: ignore[union-attr]
    incarnation("second")
    await desk.running(ref("t2"))
    assert len((await _meta(desk)).former) == 0
    # A name that was never heard is another server's.
    incarnation("third")
    await desk.submit(ref("t3"), busy="parallel")
    assert len((await _meta(desk)).former) == 1
    await desk.sound()


async def test_only_so_many_former_epochs_are_remembered(
    desk: Desk, incarnation: Callable[[str], None]
) -> None:
    """The first one, and the newest ones; a cursor of those between is told that it is gone."""
    attempt = await desk.running()
    epochs = [attempt.epoch]
    for number in range(80):
        incarnation(f"no {number}")
        await desk.append(attempt, closed(f"m{number}", "x"))
        epochs.append(attempt.epoch)
    meta = await _meta(desk)
    assert [epochs.index(epoch) for epoch in meta.former] == [*range(79, 16, -1), 0]
    assert meta.place(Cursor(epochs[2], 1)) is None
    assert meta.place(Cursor(epochs[17], 1)) == Cursor(meta.epoch, 1)
    assert meta.place(Cursor(epochs[0], 1)) == Cursor(meta.epoch, 1)
    await desk.sound()


async def test_a_turn_outlives_any_number_of_epochs(desk: Desk, incarnation: Callable[[str], None]) -> None:
    """One that waits for days may see many brokers: it is there to be followed, and is put away when its time is over."""
    attempt = await desk.running()
    for number in range(80):
        incarnation(f"no {number}")
        await desk.append(attempt, closed(f"m{number}", "x"))
    meta = await _meta(desk)
    known = await desk.log.task(keys_of(), "t1")
    assert (await start(desk.log, keys_of(), meta, task="t1")).after.seq == int(known["first"]) - 1
    await desk.finish(attempt)
    assert isinstance(await desk.tasks.clear(keys_of(), int(known["epoch"])), Cleared)
    after = await _meta(desk)
    assert not any(after.has_epoch(epoch) for epoch in (int(known["epoch"]), meta.epoch))
    await desk.sound()


async def test_a_new_epoch_copies_nothing(
    desk: Desk, incarnation: Callable[[str], None], place: Place
) -> None:
    """However long the log is, it costs what a batch costs: after a failover, every session begins one at about the same time."""
    attempt = await desk.running()
    await desk.append(attempt, opened("m"))
    for _ in range(8):
        batch = Batch()
        for _ in range(250):
            delta("m", "word ", batch)
        await desk.append(attempt, batch)
    before = await desk.redis.xrange(keys_of().log)
    former, meta = attempt.epoch, await _meta(desk)
    incarnation("second")
    written = await _added(desk) if place.real else 0
    await _said(desk, attempt, "more")
    if place.real:
        assert await _added(desk) - written == 1
    assert (await desk.redis.xrange(keys_of().log))[:-1] == before
    entries = await desk.entries()
    assert {entry.epoch for entry in entries[:-1]} == {former}
    assert entries[-1].epoch == attempt.epoch > former
    page = await desk.log.page(keys_of(), Cursor(attempt.epoch, meta.seq))
    assert page is not None
    assert page.entries == entries[-1:]
    assert page.written == entries[-2].created
    for cursor in (Cursor(former, 7), Cursor(attempt.epoch, 7)):
        assert await desk.log.at(keys_of(), cursor) == entries[6]
    assert await desk.log.at(keys_of(), Cursor(former, meta.seq + 1)) is None
    await desk.sound()


async def _added(desk: Desk) -> int:
    known = (await desk.redis.info("commandstats")).get("cmdstat_xadd")
    return int(known["calls"]) if known else 0


async def test_two_servers_give_no_epoch_twice_behind_a_clock_that_was_ahead(
    desk: Desk, incarnation: Callable[[str], None]
) -> None:
    """One goes on behind the epoch and is lost, another one goes on behind it, too: neither's clock has come to it yet."""
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "x"))
    await desk.finish(attempt)
    meta = await _meta(desk)
    ahead = meta.epoch + 60_000_000
    former = f"{meta.epoch}-{meta.seq}"
    await desk.redis.hset(keys_of().meta, mapping={"epoch": ahead, "base": meta.epoch, "former": former})
    state = await desk.state()
    epochs = {ahead}
    for name in ("a5b2c", "a5b2d", "0c0ffee"):
        incarnation(name)
        turn = await desk.running(ref(f"t{name}"))
        await desk.append(turn, closed("m2", name))
        assert turn.epoch > ahead
        epochs.add(turn.epoch)
        await desk.go_back(state)
    assert len(epochs) == 4


async def test_an_unnamed_broker_is_never_another_one(desk: Desk, incarnation: Callable[[str], None]) -> None:
    """Where no one may ask for the name, only a writer that has seen more tells of a loss."""
    incarnation("")
    attempt = await desk.running()
    incarnation("named")
    await desk.append(attempt, closed("m1", "x"))
    assert await desk.epoch() == attempt.epoch
    incarnation("")
    await desk.append(attempt, closed("m2", "x"))
    assert len((await _meta(desk)).former) == 0


async def test_the_name_is_the_servers(desk: Desk, place: Place) -> None:
    """A real broker tells it; the embedded one has none."""
    assert bool(await brokers.incarnation(desk.redis)) == place.real
