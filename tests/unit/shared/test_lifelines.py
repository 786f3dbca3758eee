"""Who is told to be lost: nobody who hears its own channel, or may just have been cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from turnstream.shared.broker import keys
from turnstream.shared.lifelines import ABSENT_MS, BETWEEN_MS, LOOKS, Lifelines, Lost, Seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place

DEAD, LIVING = "host-1-dead", "host-2-living"
CALM_MS = 10_000


class Watched:
    """A broker that knows of two processes, one of which hears its channel."""

    def __init__(self, place: Place) -> None:
        self.desk = Desk(place)
        self.redis: Any = self.desk.primary
        self.lifelines = Lifelines(self.redis)

    async def look(self, server: str = "a") -> Seen:
        """Look, long enough after the last time."""
        await self.later(BETWEEN_MS + 50)
        return await self.lifelines.look(server, CALM_MS)

    async def looks(self, count: int = LOOKS + 2) -> Seen:
        """Look often enough, and for long enough."""
        for _ in range(count):
            seen = await self.look()
        return seen

    async def later(self, ms: int) -> None:
        """Let it be later than when what is noted was noted."""
        for field, value in (await self.redis.hgetall(keys.WATCH)).items():
            if field != b"server":
                since, *more = value.split(b" ")
                await self.redis.hset(keys.WATCH, field, b" ".join([b"%d" % (int(since) - ms), *more]))


@pytest.fixture
async def watched(place: Place) -> AsyncIterator[Watched]:
    """Both processes hold two launches, one was claimed."""
    watched = Watched(place)
    for process in (DEAD, LIVING):
        await watched.desk.launches.launch(ref(process), 1)
        assert len(await watched.desk.launches.claim(1, holder=process)) == 1
        await watched.lifelines.hold(process, f"o1/s1/{process}-more:7")
        await watched.lifelines.note(process, f"c {process}", (), disturbed=False)
    subscription = watched.redis.pubsub()
    await subscription.subscribe(keys.ALIVE + LIVING)
    await wait_until(subscription.get_message, "the subscription")
    yield watched
    await subscription.aclose()


LOST = Lost(DEAD, f"c {DEAD}", (f"o1/s1/{DEAD}-more:7", f"o1/s1/{DEAD}:1"))


async def test_one_that_nobody_hears_is_lost_after_some_looks(watched: Watched) -> None:
    """Not in the first ones, and not before about a second has passed; what it held is told, until it was settled."""
    for _ in range(LOOKS):
        assert await watched.look() == Seen()
    await watched.later(ABSENT_MS - LOOKS * BETWEEN_MS)
    assert await watched.look() == Seen(lost=(LOST,))
    await watched.lifelines.let_go(DEAD, LOST.jobs[:1])
    assert await watched.look() == Seen(lost=(Lost(DEAD, LOST.connection, LOST.jobs[1:]),))
    await watched.lifelines.let_go(DEAD, LOST.jobs[1:])
    assert await watched.look() == Seen()
    assert await watched.redis.hkeys(keys.SUBSCRIBED) == [LIVING.encode()]


async def test_a_pause_between_looks_proves_nothing(watched: Watched) -> None:
    """Nobody knows what was in between."""
    assert await watched.look() == Seen()
    for _ in range(LOOKS):
        await watched.later(60_000)
        assert await watched.look() == Seen()
    assert (await watched.looks()).lost == (LOST,)


async def test_one_that_does_not_say_that_it_listens_is_not_looked_for(watched: Watched) -> None:
    """A worker of another release, and one that has found its connection closed, are left to their leases."""
    await watched.lifelines.note(DEAD, "", (), disturbed=False)
    assert await watched.looks() == Seen()
    # By and by its entries go: nobody knows of it.
    await wait_until(lambda: _holds_nothing(watched, DEAD), "its entries to go")
    assert await watched.redis.zcard(keys.HELD) == 2


async def _holds_nothing(watched: Watched, process: str) -> bool:
    await watched.look()
    return not await watched.redis.zrangebylex(keys.HELD, f"[{process} ", f"({process}!")


async def test_nobody_is_judged_while_connections_are_lost(watched: Watched) -> None:
    """Whatever cut one process off may have cut others off; after a lease all is as before."""
    await watched.lifelines.note(LIVING, "c", (), disturbed=True)
    assert await watched.looks() == Seen()
    await watched.later(CALM_MS)
    assert (await watched.looks()).lost == (LOST,)


async def test_nobody_is_judged_after_a_failover(watched: Watched) -> None:
    """On another server all subscriptions are gone for a moment."""
    assert (await watched.looks()).lost == (LOST,)
    for _ in range(LOOKS + 2):
        assert await watched.look("b") == Seen()
    await watched.later(CALM_MS)
    for _ in range(LOOKS + 2):
        seen = await watched.look("b")
    assert seen.lost == (LOST,)


async def test_a_clock_that_went_back_keeps_nobody_from_looking(watched: Watched) -> None:
    """The failover was to a server whose clock is behind."""
    await watched.look()
    await watched.later(-3_600_000)
    for _ in range(LOOKS + 1):
        await watched.look("b")
    await watched.later(CALM_MS)
    for _ in range(LOOKS + 2):
        seen = await watched.look("b")
    assert seen.lost == (LOST,)


async def test_many_rescuers_look_as_often_as_one(watched: Watched) -> None:
    """Who comes right after another one is told nothing, and nothing is counted."""
    await watched.look()
    before = await watched.redis.hgetall(keys.WATCH)
    for _ in range(10):
        assert await watched.lifelines.look("a", CALM_MS) == Seen()
    assert await watched.redis.hgetall(keys.WATCH) == before


async def test_nobody_holds_anything(watched: Watched) -> None:
    """Then a look says so, and notes nothing."""
    await watched.redis.delete(keys.HELD, keys.WATCH)
    assert await watched.look() == Seen(idle=True)
    assert not await watched.redis.exists(keys.WATCH)


async def test_what_is_noted_beyond_what_is_held_is_told(watched: Watched) -> None:
    """The broker lost an end, or came back with an older file: the process notes both, what it holds and what not."""
    more = await watched.lifelines.note(LIVING, "c", (f"o1/s1/{LIVING}:1", "o1/s1/new:1"), disturbed=False)
    assert more == [f"o1/s1/{LIVING}-more:7"]
    assert await watched.redis.zscore(keys.HELD, f"{LIVING} o1/s1/new:1") == 0


async def test_thousands_of_processes_are_looked_at(watched: Watched) -> None:
    """More than a script may give one command at once."""
    for number in range(1_200):
        await watched.redis.hset(keys.SUBSCRIBED, f"idle-{number}", "c")
    assert (await watched.looks()).lost == (LOST,)
    assert await watched.redis.hlen(keys.SUBSCRIBED) == 2, "who holds nothing is forgotten"
