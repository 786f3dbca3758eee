"""Following logs: what a follower gets, whatever happens to the log, the reader and the others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from turnstream.api.streaming.feed import Feed, Gap, Over
from turnstream.api.streaming.hub import Hub
from turnstream.api.streaming.ring import MOST_ENTRIES, RenderedEntry
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.errors import ShuttingDown
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.endings import Ender, end_from_outside
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import PAGE_BYTES, Log
from turnstream.shared.session.outcomes import Attempt, Cleared, Launch, TurnSubmission
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import Tasks, operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.conftest import Place
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.session.event_log import Page

KEYS = SessionKeys("o", "s")
REF = TaskRef("o", "s", "t")
LONG = 10.0


class Session:
    """One session with a running task, written to as a worker would."""

    def __init__(self, place: Place, ref: TaskRef = REF) -> None:
        self.ref = ref
        settings = place.settings()
        self.broker: Broker = place.connect(settings)
        self.tasks = Tasks(self.broker.sessions, settings)
        self.log = Log(self.broker.sessions)
        self.epoch = 0
        self._attempt = 0

    async def begin(self) -> None:
        """Submit a turn and take its first attempt: one entry."""
        batch = Batch()
        batch.status(b'{"object":"response","status":"queued"}')
        turn = TurnSubmission(
            agent="demo",
            user="",
            create=True,
            busy="serial",
            parked="block",
            request=b"{}",
            response="response_t",
            deadline_ms=0,
            idempotency="",
            digest="",
            trace="",
            batch=batch,
        )
        accepted = await self.tasks.submit(self.ref, turn, operation())
        assert isinstance(accepted, Launch)
        self.epoch = accepted.epoch
        attempt = await self.tasks.begin(self.ref, accepted.number, "worker", operation())
        assert isinstance(attempt, Attempt)
        self._attempt = attempt.number

    async def say(self, count: int = 1, size: int = 1) -> None:
        """Append so many entries in one batch."""
        batch = Batch()
        for _ in range(count):
            batch.event("message", b'{"object":"content","text":"%b"}' % (b"x" * size))
        await self.tasks.append(self.ref, self._attempt, batch, operation())

    async def clear(self) -> None:
        """End the task, and clear the session."""
        ender = Ender(self.tasks, self.log, LaunchQueue(self.broker.primary), self.broker.primary)
        await end_from_outside(ender, self.ref, TaskStatus.CANCELED, "stop", who="test")
        assert isinstance(await self.tasks.clear(self.ref.keys, self.epoch), Cleared)

    def cursor(self, seq: int) -> Cursor:
        """A place in the log."""
        return Cursor(self.epoch, seq)


@pytest.fixture
async def session(place: Place) -> Session:
    """A session with one entry."""
    session = Session(place)
    await session.begin()
    return session


@asynccontextmanager
async def hub_of(session: Session) -> AsyncIterator[Hub]:
    """A front end's hub, stopped at the end."""
    hub = Hub(session.broker.sessions, session.log)
    try:
        yield hub
    finally:
        await hub.stop()


async def entries(feed: Feed, after: Cursor, wait: float) -> list[RenderedEntry] | Gap | Over:
    """What stands after the cursor."""
    feed.after = after
    return await feed.entries(wait)


async def gather(feed: Feed, after: Cursor, count: int) -> list[int]:
    """The next ``count`` entries' seqs."""
    got: list[int] = []
    while len(got) < count:
        news = await entries(feed, after, LONG)
        assert isinstance(news, list), news
        assert news, "nothing came"
        got += [shown.entry.seq for shown in news]
        after = Cursor(after.epoch, got[-1])
    return got


async def test_old_and_new_entries_come_once_in_order(session: Session) -> None:
    """A follower that comes late gets what is there, then what is appended, without a gap or a repeat."""
    await session.say(5)
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 6) == [1, 2, 3, 4, 5, 6]
            following = asyncio.create_task(gather(feed, session.cursor(6), 20))
            for _ in range(10):
                await session.say(2)
            assert await following == list(range(7, 27))


async def test_what_comes_behind_the_subscription_is_not_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new turn's first follower has all of it from the messages; the log is read for what came before."""
    reads: list[Cursor] = []
    page = Log.page

    async def counted(self: Log, keys: SessionKeys, after: Cursor, *more: Any) -> Page | None:
        reads.append(after)
        return await page(self, keys, after, *more)

    monkeypatch.setattr(Log, "page", counted)
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            (followed,) = hub._followed.values()
            await wait_until(lambda: followed.attached, "the subscription to be acknowledged")
            await session.say(5)
            await wait_until(lambda: followed.messages == 1, "the message to come")
            assert await gather(feed, session.cursor(1), 5) == [2, 3, 4, 5, 6]
            assert reads == []
            with hub.follow(KEYS) as late:
                assert await gather(late, session.cursor(0), 6) == [1, 2, 3, 4, 5, 6]
            assert reads == [session.cursor(0)]


async def test_who_comes_back_to_a_place_finds_what_another_has_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read from a place once, although a follower has all there is, and who comes back is gone with it at once."""
    reads: list[Cursor] = []
    page = Log.page

    async def counted(self: Log, keys: SessionKeys, after: Cursor, *more: Any) -> Page | None:
        reads.append(after)
        return await page(self, keys, after, *more)

    monkeypatch.setattr(Log, "page", counted)
    await session.say(5)
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 6) == [1, 2, 3, 4, 5, 6]
            feed.after = session.cursor(6)
            await session.say()
            assert await gather(feed, session.cursor(6), 1) == [7]
            for _ in range(3):
                with hub.follow(KEYS) as late:
                    assert await gather(late, session.cursor(2), 5) == [3, 4, 5, 6, 7]
                # Until now this very step of the event loop has held the page.
                await asyncio.sleep(0)
    assert reads == [session.cursor(0), session.cursor(2)]


async def test_nothing_new_is_an_empty_list_after_the_wait(session: Session) -> None:
    """A follower that has seen everything gets an empty list when its time is up."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            assert await entries(feed, session.cursor(1), 0.01) == []


async def test_a_follower_behind_the_ring_reads_the_log(session: Session) -> None:
    """Who falls off the ring misses nothing."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            for _ in range(20):
                await session.say(100)
            last = 2001
            assert last > MOST_ENTRIES
            assert await gather(feed, session.cursor(1), last - 1) == list(range(2, last + 1))


async def test_a_batch_too_large_for_the_tail_is_read_from_the_log(session: Session) -> None:
    """A batch of which only the end was published arrives whole."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            await session.say(3, size=100_000)
            assert await gather(feed, session.cursor(1), 3) == [2, 3, 4]


async def test_entries_written_while_the_reader_was_away_are_not_missed(session: Session) -> None:
    """After the reader was lost, followers go on from the last entry they saw."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            hub.connection_lost()
            await session.say(3)
            assert await entries(feed, session.cursor(4), 0.01) == []
            hub.subscribed(KEYS.tail.encode())
            assert await gather(feed, session.cursor(1), 3) == [2, 3, 4]


class SlowLog(Log):
    """A log of which a page comes late: read, but not told before the gate opens."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.read_it = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def page(
        self, keys: SessionKeys, after: Cursor, most: int = PAGE_BYTES, written: Cursor | None = None
    ) -> Page | None:
        """Read it, and wait."""
        page = await super().page(keys, after, most, written)
        self.read_it.set()
        await self.gate.wait()
        return page


async def test_what_was_read_before_a_new_subscription_proves_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is lost once more while a follower asks where the log ends: what came meanwhile is not missed."""
    slow = SlowLog(session.broker.sessions)
    hub = Hub(session.broker.sessions, slow)
    try:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            # From here on nothing is heard.
            monkeypatch.setattr(Hub, "message_received", lambda *_: None)
            slow.gate.clear()
            slow.read_it.clear()
            hub.connection_lost()
            hub.subscribed(KEYS.tail.encode())
            following = asyncio.create_task(gather(feed, session.cursor(1), 1))
            await slow.read_it.wait()
            hub.connection_lost()
            await session.say()
            hub.subscribed(KEYS.tail.encode())
            slow.gate.set()
            assert await following == [2]
    finally:
        await hub.stop()


async def test_a_clear_ends_followers_after_the_last_entry(session: Session) -> None:
    """A follower of a cleared session still gets the end of what it followed, then learns that it is gone."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            await session.clear()
            await wait_until(lambda: _is_gone(feed, session.cursor(99)), "the hub to hear of the clear")
            assert await gather(feed, session.cursor(1), 1) == [2]
            assert await entries(feed, session.cursor(2), LONG) is Over.GONE


async def test_a_cursor_of_a_cleared_log_is_gone(session: Session) -> None:
    """Who comes after the clear with an old cursor is told, and not left waiting."""
    await session.clear()
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await entries(feed, session.cursor(1), LONG) is Over.GONE


async def test_close_ends_feeds_and_refuses_new_ones(session: Session) -> None:
    """At shutdown every follower's wait ends at once, and nobody can begin to follow."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as feed:
            assert await gather(feed, session.cursor(0), 1) == [1]
            waiting = asyncio.create_task(entries(feed, session.cursor(1), LONG))
            await wait_until(lambda: feed._waiter is not None, "it to wait")
            hub.close()
            assert await waiting is Over.CLOSED
            with pytest.raises(ShuttingDown):
                hub.follow(KEYS)


async def test_followers_share_one_rendering(session: Session) -> None:
    """Followers of one session get the same entries, not copies."""
    async with hub_of(session) as hub:
        with hub.follow(KEYS) as one, hub.follow(KEYS) as other:
            await gather(one, session.cursor(0), 1)
            await session.say()
            first = await entries(one, session.cursor(1), LONG)
            second = await entries(other, session.cursor(1), LONG)
            assert isinstance(first, list)
            assert isinstance(second, list)
            assert first[0] is second[0]


async def _is_gone(feed: Feed, cursor: Cursor) -> bool:
    return await entries(feed, cursor, 0.01) is Over.GONE
