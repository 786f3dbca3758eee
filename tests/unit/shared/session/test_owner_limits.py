"""An owner's counts: what is let in is counted once, by the broker's clock, and leaves nothing when it is taken back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.api_keys import Limits
from turnstream.shared.broker import keys
from turnstream.shared.session.owner_limits import YOUNG_MS, Admitted, OwnerLimits, Room, TooFast
from turnstream.shared.session.storage import Storage
from turnstream.shared.session.tasks import operation
from turnstream.worker.live_list import LiveList

if TYPE_CHECKING:
    from tests.conftest import Place

ROOM = Room(most=1_000_000, bytes=5_000, ms=60_000)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(rate=5), Limits(concurrency=5), Limits(rate=5, concurrency=5)]
)
async def test_an_admission_whose_reply_was_lost_counts_once(place: Place, limits: Limits) -> None:
    """Whatever is limited beside the storage: asked again, it is let in and nothing more is counted."""
    desk = Desk(place)
    caps, storage = OwnerLimits(desk.primary, desk.redis), Storage(desk.primary, desk.redis)
    op = operation()
    for _ in range(2):
        assert await caps.admit(ref(), op, limits, ROOM) == Admitted()
        assert (await storage.of("o1", 1))[0] == ROOM.bytes
    assert await caps.admit(ref(), operation(), limits, ROOM) == Admitted()
    assert (await storage.of("o1", 1))[0] == 2 * ROOM.bytes


async def test_an_end_takes_an_admission_out_whatever_is_limited(place: Place) -> None:
    """What is remembered of a turn that only its storage bounds goes with its end, or by its age."""
    desk = Desk(place)
    caps, op = OwnerLimits(desk.primary, desk.redis), operation()
    turns = keys.owner_turns("o1")
    await caps.admit(ref(), op, Limits(), ROOM)
    await desk.launches.ended(ref(), op)
    assert not await desk.primary.exists(turns)
    await desk.primary.zadd(turns, {"o1/s1/t0 1": 1})
    await caps.admit(ref(), op, Limits(), ROOM)
    assert await desk.primary.zrange(turns, 0, -1) == [keys.admission(ref(), op).encode()]


async def test_what_is_long_over_is_forgotten_some_at_a_time(place: Place) -> None:
    """The first turn after a minute of very many is let in, and does not wait until all of them are forgotten."""
    desk = Desk(place)
    caps, last_minute = OwnerLimits(desk.primary, desk.redis), keys.owner_rate("o1")
    over = await desk.now() - 60_001
    await desk.primary.zadd(last_minute, {f"o1/s1/t{number} 1": over for number in range(5000)})
    await desk.primary.pexpire(last_minute, 60_000)
    assert await caps.admit(ref(), operation(), Limits(rate=2), ROOM) == Admitted()
    assert await desk.primary.zcard(last_minute) > 4000
    assert await caps.admit(ref(), operation(), Limits(rate=2), ROOM) == Admitted()
    refused = await caps.admit(ref(), operation(), Limits(rate=2), ROOM)
    assert isinstance(refused, TooFast)
    assert 0 < refused.ms <= 60_000


async def test_a_turn_that_is_refused_leaves_no_session_in_the_count(place: Place) -> None:
    """Its session was never made: nothing names it any more. One that is there is still counted."""
    desk = Desk(place)
    caps, op = OwnerLimits(desk.primary, desk.redis), operation()
    await caps.admit(ref(session="s1"), operation(), Limits(), ROOM)
    await caps.admit(ref(session="never"), op, Limits(), ROOM)
    await caps.dismiss(ref(session="never"), op, ROOM)
    held, count, sessions = await Storage(desk.primary, desk.redis).of("o1", 5)
    assert (held, count, [each.session for each in sessions]) == (ROOM.bytes, 1, ["s1"])
    op = operation()
    await caps.admit(ref(owner="o2"), op, Limits(), ROOM)
    await caps.dismiss(ref(owner="o2"), op, ROOM)
    assert await desk.primary.keys("ts:caps:o2:*") == []


async def test_a_front_ends_wrong_clock_takes_nothing_out_of_the_count(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was let in a moment ago by the broker's clock is young, though this host's clock is an hour ahead."""
    desk = Desk(real)
    caps = OwnerLimits(desk.primary, desk.redis)
    await caps.admit(ref(), operation(), Limits(concurrency=1), ROOM)
    _an_hour_ahead(monkeypatch)
    await caps.recount("o1")
    assert await desk.primary.zcard(keys.owner_turns("o1")) == 1
    ((name, since),) = await desk.primary.zrange(keys.owner_turns("o1"), 0, -1, withscores=True)
    await desk.primary.zadd(keys.owner_turns("o1"), {name: since - YOUNG_MS - 1})
    await caps.recount("o1")
    assert await desk.primary.zcard(keys.owner_turns("o1")) == 0


async def test_a_workers_wrong_clock_takes_no_young_task_off_the_list(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is listed a moment before it is made stays on the operators' list."""
    desk = Desk(real)
    await desk.launches.note(ref())
    _an_hour_ahead(monkeypatch)
    await LiveList(desk.broker).look()
    assert await desk.primary.zcard(keys.LIVE) == 1


def _an_hour_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    now: Any = time.time
    monkeypatch.setattr("time.time", lambda: now() + 3600)
