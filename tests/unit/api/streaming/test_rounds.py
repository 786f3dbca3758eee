"""Followers in turn: what an owner's many followers are shown is cut in pieces, and others come in between."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.api.streaming.test_hub import LONG, Session, hub_of
from turnstream.api.http.connection import extension
from turnstream.api.http.middleware import PastLayers
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.streaming.feed import Over
from turnstream.api.streaming.followed import FIRST_FOLLOWERS
from turnstream.api.streaming.pages import AT_ONCE as PAGES_AT_ONCE
from turnstream.api.streaming.pages import Pages
from turnstream.api.streaming.rounds import AT_ONCE
from turnstream.api.streaming.sse import TURN_BYTES, EventStream
from turnstream.api.streaming.start_position import Start
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import PAGE_BYTES, Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis
    from starlette.types import Message, Send

    from tests.conftest import Place
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.hub import Hub
    from turnstream.api.streaming.pages import Read
    from turnstream.api.streaming.ring import RenderedEntry
    from turnstream.shared.session.event_log import Page

MANY = 60


class Crowd:
    """Followers of one session. ``shown`` gets its owner's name whenever one of them is shown something."""

    def __init__(self, hub: Hub, session: Session, count: int, shown: list[str]) -> None:
        self._hub = hub
        self._session = session
        self._shown = shown
        self._seq = 1
        self._feeds = [hub.follow(session.ref.keys) for _ in range(count)]
        self._reading = [asyncio.create_task(self._read(feed)) for feed in self._feeds]

    async def _read(self, feed: Feed) -> None:
        feed.after = self._session.cursor(0)
        feed.at_once = lambda news: self._show(feed, news)
        while isinstance(news := await feed.entries(LONG), list):
            self._show(feed, news)
        assert news is Over.CLOSED

    def _show(self, feed: Feed, news: list[RenderedEntry]) -> bool:
        if news:
            self._shown.append(self._session.ref.owner)
            feed.after = Cursor(feed.after.epoch, news[-1].entry.seq)
        return True

    def hear(self) -> None:
        """Have the hub hear of one more entry, as its reader would tell."""
        self._seq += 1
        place = b"%d-%d-%d-1000" % (self._session.epoch, self._seq, self._seq)
        entry = b't\t\tmessage\t1000\t{"sequence_number":1,"text":"x"}\t'
        self._hub.message_received(self._session.ref.keys.tail.encode(), place + b"\n" + entry)

    def has_all(self) -> bool:
        """Whether every follower was shown everything."""
        return all(feed.after.seq == self._seq for feed in self._feeds)

    async def leave(self) -> None:
        """Follow no more."""
        for feed in self._feeds:
            feed.end()
            feed.leave()
        await asyncio.gather(*self._reading)


@asynccontextmanager
async def crowds(place: Place, shown: list[str], **counts: int) -> AsyncIterator[list[Crowd]]:
    """Followers of a session of each owner, as many as is said, who have all there is."""
    sessions = [Session(place, TaskRef(owner, "s", "t")) for owner in counts]
    for session in sessions:
        await session.begin()
    async with hub_of(sessions[0]) as hub:
        made = [
            Crowd(hub, session, count, shown)
            for session, count in zip(sessions, counts.values(), strict=True)
        ]
        await wait_until(lambda: all(crowd.has_all() for crowd in made), "the followers to have all there is")
        shown.clear()
        yield made
        for crowd in made:
            await crowd.leave()


@asynccontextmanager
async def each_round(see: Callable[[], None]) -> AsyncIterator[None]:
    """Call it in each round of the event loop."""

    async def look() -> None:
        while True:
            see()
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def longest_step(counts: list[int]) -> int:
    """By how much a count that was taken again and again grew at most from one look to the next."""
    return max((after - before for before, after in pairwise(counts)), default=0)


async def test_a_few_followers_do_not_wait_for_the_many_of_another_owner(place: Place) -> None:
    """What is heard for them right after is shown them right then, when few of the others have been shown theirs."""
    shown: list[str] = []
    async with crowds(place, shown, many=MANY, few=2) as (many, few):
        many.hear()
        few.hear()
        assert shown.count("few") == 2
        assert shown.count("many") == FIRST_FOLLOWERS
        await wait_until(many.has_all, "the many to be shown it")


async def test_many_followers_are_shown_what_is_heard_a_few_in_each_round(place: Place) -> None:
    """Each is shown it, of two owners in turn, and the event loop sees to others in between."""
    shown: list[str] = []
    seen: list[int] = []
    async with crowds(place, shown, one=MANY, other=MANY) as (one, other):
        one.hear()
        other.hear()
        first = len(shown)
        async with each_round(lambda: seen.append(len(shown))):
            await wait_until(lambda: one.has_all() and other.has_all(), "all to be shown it")
        assert longest_step(seen) <= AT_ONCE
        rest = shown[first:]
        assert sorted(rest[0::2] + rest[1::2]) == sorted(rest)
        assert set(rest[0::2]) == {"one"}
        assert set(rest[1::2]) == {"other"}


async def test_what_is_heard_meanwhile_is_shown_with_it(place: Place) -> None:
    """Who has not had a turn yet is shown all of it in one."""
    shown: list[str] = []
    async with crowds(place, shown, many=MANY) as (many,):
        for _ in range(10):
            many.hear()
        await wait_until(many.has_all, "all to be shown it")
        assert len(shown) == 10 * FIRST_FOLLOWERS + MANY - FIRST_FOLLOWERS


class Plain:
    """A session for whose followers pages are read."""

    def __init__(self, keys: SessionKeys) -> None:
        self.keys = keys
        self.invalidations = self.messages = 0

    def page_read(self, read: Read | None, invalidations: int, messages: int) -> None:
        """Its followers are not here."""


class Taking:
    """The connection of a client that takes everything."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.rest: Callable[[Send], Awaitable[None]] | None = None
        self.bytes = 0

    def is_lost(self) -> bool:
        """It never is."""
        return False

    def awaits_body(self, scope: Any) -> bool:
        """All of its request is there."""
        return False

    def part(self) -> None:
        """It may be used again."""

    def abort(self) -> None:
        """It takes everything, and is not cut."""
        raise AssertionError

    def write_chunk(self, body: bytes) -> bool:
        """Take it."""
        self.bytes += len(body)
        return True


@pytest.mark.parametrize(("count", "size"), [(1, 900_000), (40, 30_000)], ids=["one event", "many events"])
async def test_followers_who_take_everything_get_little_in_each_round(
    place: Place, count: int, size: int
) -> None:
    """However large events are and however many follow, a round writes no more than its turns allow."""
    session = Session(place)
    await session.begin()
    for _ in range(count):
        await session.say(size=size)
    clients = [Taking() for _ in range(MANY)]
    seen: list[int] = []

    async def send(message: Message) -> None:
        """Take the head of the response, and its end."""

    async def receive() -> Message:
        raise AssertionError

    async with hub_of(session) as hub:
        streams = [
            EventStream(
                hub.follow(session.ref.keys),
                Start(session.cursor(0)),
                AGENTSCOPE,
                session.log,
                place.settings(),
            )
            for _ in clients
        ]
        serving = [
            asyncio.create_task(
                PastLayers(stream)(
                    {
                        "type": "http",
                        "method": "GET",
                        "path": "/",
                        "headers": [],
                        "extensions": extension(client),
                    },
                    receive,
                    send,
                )
            )
            for stream, client in zip(streams, clients, strict=True)
        ]
        async with each_round(lambda: seen.append(sum(client.bytes for client in clients))):
            whole = count * size
            await wait_until(lambda: all(client.bytes > whole for client in clients), "all to have all")
        hub.close()
        await asyncio.gather(*serving)
    assert longest_step(seen) <= AT_ONCE * 2 * TURN_BYTES


class Gated(Log):
    """A log that is read one page at a time, when the gate lets one through; ``read`` says whose."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.asked = 0
        self.read: list[str] = []
        self.gate = asyncio.Semaphore(0)

    async def page(
        self, keys: SessionKeys, after: Cursor, most: int = PAGE_BYTES, written: Cursor | None = None
    ) -> Page | None:
        """Wait for the gate, then read."""
        self.asked += 1
        await self.gate.acquire()
        self.read.append(keys.owner)
        return await super().page(keys, after, most, written)


async def test_reads_of_many_followers_do_not_stand_before_another_owners(place: Place) -> None:
    """While an owner's followers wait for a hundred pages, another's first page is among the next."""
    session = Session(place, TaskRef("many", "s", "t"))
    await session.begin()
    await session.say(99)
    log = Gated(session.broker.sessions)
    pages = Pages(log)
    many = Plain(session.ref.keys)
    reads = [asyncio.create_task(pages.read(many, session.cursor(seq))) for seq in range(100)]
    await wait_until(lambda: log.asked == PAGES_AT_ONCE, "as many reads as may be")
    few = Plain(SessionKeys("few", "s"))
    reads.append(asyncio.create_task(pages.read(few, Cursor(0, 0))))
    await wait_until(lambda: "few" in pages._places._waiting, "it to stand in line")
    for count in range(1, 102):
        log.gate.release()
        await wait_until(lambda count=count: len(log.read) == count, "the next page")  # type: ignore[misc]
    await asyncio.gather(*reads)
    assert log.read.index("few") <= PAGES_AT_ONCE + 2
