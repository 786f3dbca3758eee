"""Accepting a turn: sessions, idempotency, and what happens when another turn is live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.shared.session.support import HOUR_MS, Desk, keys_of, numbers, ref, turn
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import Busy, Foreign, Full, Interrupt, Launch, Missing, Same, Waits
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_a_session_is_created_once(place: Place) -> None:
    """The first create makes the session, a later one leaves it as it is."""
    desk = Desk(place)
    assert await desk.tasks.create(keys_of(), "demo", "ann")
    assert not await desk.nothing_written(lambda: desk.tasks.create(keys_of(), "other", "bob"))
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert (meta.agent, meta.user, meta.seq, meta.head, meta.active) == ("demo", "ann", 0, 1, "")
    assert abs(meta.epoch - await desk.now() * 1000) < 60_000_000


async def test_a_turn_is_accepted_with_its_first_entries(place: Place) -> None:
    """The user's message stands first and unnumbered, ``response`` queued is event number 0."""
    desk = Desk(place)
    outcome = await desk.submit(ref())
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    assert outcome == Launch(1, meta.epoch, 1)
    assert (meta.active, meta.seq) == ("t1", 2)
    assert await desk.log.live(keys_of()) == ["t1"]
    entries = await desk.sound()
    assert [entry.kind for entry in entries] == ["message", "response"]
    assert numbers(entries) == [None, 0]
    assert [entry.seq for entry in await desk.log.history(keys_of())] == [1]
    assert await desk.log.at(keys_of(), Cursor(meta.epoch, 2)) == entries[1]


async def test_a_repeated_submit_gives_its_first_outcome(place: Place) -> None:
    """A submit whose reply was lost is not accepted a second time, whether it was launched or waits."""
    desk = Desk(place)
    op, other = operation(), operation()
    launched = await desk.twice(lambda: desk.tasks.submit(ref(), turn(), op))
    assert isinstance(launched, Launch)
    waiting = await desk.twice(lambda: desk.tasks.submit(ref("t2"), turn(), other))
    assert isinstance(waiting, Waits)
    assert waiting.first == 3


async def test_a_repeat_finds_its_first_outcome_after_the_task_went_on(place: Place) -> None:
    """What was answered first is answered again, though the task runs by now."""
    desk = Desk(place)
    op = operation()
    first = await desk.tasks.submit(ref(), turn(), op)
    await desk.begin(ref())
    assert await desk.nothing_written(lambda: desk.tasks.submit(ref(), turn(), op)) == first


async def test_another_turn_with_the_same_id_leads_to_the_first(place: Place) -> None:
    """A task's id is taken for good; the digest of what was asked tells a repeat from another turn."""
    desk = Desk(place)
    await desk.running(digest="d1")
    assert await desk.nothing_written(lambda: desk.submit(ref(), digest="d2")) == Same("t1", "d1")


async def test_an_idempotency_key_leads_to_the_task_it_made(place: Place) -> None:
    """The same key under a new task id finds the first task, and the digest to compare the body with."""
    desk = Desk(place)
    await desk.submit(ref(), idempotency="k", digest="d1")
    again = await desk.nothing_written(lambda: desk.submit(ref("t2"), idempotency="k", digest="d2"))
    assert again == Same("t1", "d1")
    assert isinstance(await desk.submit(ref("t3"), idempotency="other", digest="d1"), Waits)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ({"agent": "other"}, Foreign()),
        ({"user": "bob"}, Foreign()),
        ({"busy": "reject"}, Busy("t1", "running")),
        ({"busy": "interrupt"}, Interrupt("t1")),
    ],
)
async def test_a_refused_turn_leaves_no_trace(place: Place, given: dict[str, Any], outcome: object) -> None:
    """A turn of somebody else, or one that must not run beside another, writes nothing."""
    desk = Desk(place)
    await desk.running(user="ann")
    assert await desk.nothing_written(lambda: desk.submit(ref("t2"), **given)) == outcome


async def test_a_missing_session_is_not_made_unless_asked(place: Place) -> None:
    """A turn that may not create its session finds nothing and leaves nothing."""
    desk = Desk(place)
    assert await desk.submit(ref(), create=False) == Missing()
    assert await desk.everything() == {}


@pytest.mark.parametrize(("owner_user", "sender"), [("ann", ""), ("ann", "ann"), ("", "bob")])
async def test_an_unnamed_user_matches_any(place: Place, owner_user: str, sender: str) -> None:
    """Users are compared only when both the session and the turn name one."""
    desk = Desk(place)
    await desk.tasks.create(keys_of(), "demo", owner_user)
    assert isinstance(await desk.submit(ref(), user=sender, create=False), Launch)


async def test_serial_turns_wait_in_order(place: Place) -> None:
    """While one turn is live the next ones queue behind it, and their messages are in the log already."""
    desk = Desk(place)
    await desk.submit(ref())
    for name in ("t2", "t3"):
        assert isinstance(await desk.submit(ref(name)), Waits)
    assert await desk.redis.lrange(keys_of().waiting, 0, -1) == [b"t2", b"t3"]
    assert [entry.task for entry in await desk.sound()] == ["t1", "t1", "t2", "t2", "t3", "t3"]


async def test_parallel_turns_do_not_wait(place: Place) -> None:
    """In a parallel session every turn is launched at once."""
    desk = Desk(place)
    await desk.running(busy="parallel")
    assert isinstance(await desk.submit(ref("t2"), busy="parallel"), Launch)


async def test_a_parked_turn_blocks_unless_it_gives_way(place: Place) -> None:
    """A parked turn keeps the session's turn; only the policy ``supersede`` asks to end it first."""
    desk = Desk(place)
    await desk.parked("c1")
    assert await desk.nothing_written(lambda: desk.submit(ref("t2"), parked="supersede")) == Interrupt("t1")
    assert await desk.submit(ref("t2"), busy="reject") == Busy("t1", "parked")
    assert isinstance(await desk.submit(ref("t2")), Waits)


async def test_a_running_turn_is_not_superseded(place: Place) -> None:
    """``supersede`` speaks of parked turns alone."""
    desk = Desk(place)
    await desk.running()
    assert isinstance(await desk.submit(ref("t2"), parked="supersede"), Waits)


async def test_only_so_many_turns_wait(place: Place) -> None:
    """A session whose waiting room is full refuses the next turn without a trace."""
    desk = Desk(place, max_waiting=1)
    await desk.submit(ref())
    assert isinstance(await desk.submit(ref("t2")), Waits)
    assert await desk.nothing_written(lambda: desk.submit(ref("t3"))) == Full()


@pytest.mark.parametrize("busy", ["serial", "reject", "interrupt"])
async def test_an_ended_turn_does_not_block(place: Place, busy: str) -> None:
    """After the end of a turn the next one is launched, whatever the busy mode."""
    desk = Desk(place)
    await desk.finish(await desk.running())
    assert isinstance(await desk.submit(ref("t2"), busy=busy), Launch)


async def test_a_deadline_counts_from_the_submit_by_the_brokers_clock(place: Place) -> None:
    """The deadline is stored as the broker's time; 0 means that there is none."""
    desk = Desk(place)
    before = await desk.now()
    attempt = await desk.running(deadline_ms=HOUR_MS)
    assert before + HOUR_MS <= attempt.deadline <= await desk.now() + HOUR_MS
    assert (await desk.running(ref("t2", "s2"))).deadline == 0
