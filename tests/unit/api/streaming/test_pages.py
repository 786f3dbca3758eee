"""Pages of a log: what several followers want at once is read once, and forgotten with the last that holds it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import pytest

from tests.support.waiting import wait_until
from turnstream.api.streaming.pages import LARGE_BYTES, Pages, Read
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.entry import Cursor, Entry
from turnstream.shared.session.event_log import Log, Page, SessionMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

START = Cursor(7, 0)


class HeldLog:
    """A log of one entry whose reads wait until the test lets them."""

    def __init__(self) -> None:
        self.reads = 0
        self.open = asyncio.Event()
        self.error: Exception | None = None
        # As `Log.once`, which is not retried.
        self.once = self

    async def page(self, _keys: SessionKeys, _after: Cursor, _size: int) -> Page:
        """One page."""
        self.reads += 1
        await self.open.wait()
        if self.error:
            raise self.error
        meta = SessionMeta("demo", "", epoch=7, seq=1, head=1, active="")
        return Page(meta, 0, [Entry(1, "t", "", "message", 1, b"{}")], whole=True, cut=False)


class Session:
    """A session that is followed."""

    def __init__(self) -> None:
        self.keys = SessionKeys("o", "s")
        self.invalidations = 0
        self.messages = 0
        self.pages_read: list[tuple[Read | None, int, int]] = []

    def page_read(self, read: Read | None, invalidations: int, messages: int) -> None:
        """Take what was read."""
        self.pages_read.append((read, invalidations, messages))


@pytest.fixture
def log() -> HeldLog:
    """The log."""
    return HeldLog()


@pytest.fixture
async def pages(log: HeldLog) -> AsyncIterator[Pages]:
    """The pages of that log."""
    pages = Pages(cast("Log", log))
    yield pages
    await pages.close()


async def shared(pages: Pages, log: HeldLog, session: Session) -> ref[Read]:
    """Three followers read one place at once, and one more while they hold what came: what they held."""
    readers = [asyncio.create_task(pages.read(session, START)) for _ in range(3)]
    await wait_until(lambda: log.reads == 1, "the read to begin")
    log.open.set()
    held = [*await asyncio.gather(*readers), await pages.read(session, START)]
    assert [[each.entry.seq for each in read or ()] for read in held] == [[1]] * 4
    assert len({id(read) for read in held}) == 1
    assert [(id(read), *rest) for read, *rest in session.pages_read] == [(id(held[0]), 0, 0)]
    session.pages_read.clear()
    assert held[0] is not None
    return ref(held[0])


async def test_followers_of_one_place_share_a_read(pages: Pages, log: HeldLog) -> None:
    """While it is on its way, and while one of them holds it; then it is read anew."""
    session = Session()
    page = await shared(pages, log, session)
    assert log.reads == 1
    await wait_until(lambda: page() is None, "the page to be given up with its last holder")
    await pages.read(session, START)
    assert log.reads == 2


async def test_a_doubt_separates_reads(pages: Pages, log: HeldLog) -> None:
    """What was read before an invalidation serves nobody who asks after it; the session is given when it was read."""
    session = Session()
    before = asyncio.create_task(pages.read(session, START))
    await wait_until(lambda: log.reads == 1, "the read to begin")
    session.invalidations, session.messages = 1, 5
    after = asyncio.create_task(pages.read(session, START))
    await wait_until(lambda: log.reads == 2, "a second read to begin")
    log.open.set()
    old, new = await asyncio.gather(before, after)
    assert old is not new
    assert sorted((invalidations, messages) for _, invalidations, messages in session.pages_read) == [
        (0, 0),
        (1, 5),
    ]


async def test_who_gives_up_takes_nothing_from_the_others(pages: Pages, log: HeldLog) -> None:
    """A follower that leaves while the page comes does not end the read that another waits for."""
    session = Session()
    leaves, stays = (asyncio.create_task(pages.read(session, START)) for _ in range(2))
    await wait_until(lambda: log.reads == 1, "the read to begin")
    leaves.cancel()
    await asyncio.wait([leaves])
    log.open.set()
    assert await stays is not None
    assert leaves.cancelled()
    assert log.reads == 1


async def test_a_failed_read_is_not_kept(pages: Pages, log: HeldLog) -> None:
    """All who waited for it get the error; the next one reads again."""
    session = Session()
    log.error = ConnectionError("gone")
    log.open.set()
    outcomes: list[Any] = await asyncio.gather(
        *(pages.read(session, START) for _ in range(2)), return_exceptions=True
    )
    assert outcomes == [log.error, log.error]
    log.error = None
    assert await pages.read(session, START) is not None
    assert log.reads == 2


async def test_only_large_entries_are_looked_for(pages: Pages) -> None:
    """A large entry is held once for all pages that have it, but not over an invalidation; a small one is not looked for."""
    session = Session()
    large = Entry(1, "t", "", "message", 1, b"x" * LARGE_BYTES)
    again = Entry(1, "t", "", "message", 1, b"x" * LARGE_BYTES)
    shown = pages.rendered(session, 7, large)
    assert pages.rendered(session, 7, again) is shown
    assert pages.rendered(session, 8, again) is not shown
    assert pages.rendered(session, 7, again, number=4) is not shown
    session.invalidations += 1
    assert pages.rendered(session, 7, again) is not shown
    small = Entry(2, "t", "", "message", 1, b"{}")
    assert pages.rendered(session, 7, small) is not pages.rendered(session, 7, small)
