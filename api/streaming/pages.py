"""Pages of logs on their way to followers, and in their hands: what several want is read once, and rendered once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from turnstream.api.streaming.ring import RenderedEntry
from turnstream.api.streaming.rounds import Places
from turnstream.api.streaming.start_position import trimmed
from turnstream.shared.session.event_log import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Cursor, Entry
    from turnstream.shared.session.event_log import Log, Page, SessionMeta

# Reads at once, owners in turn. A page may be one entry of a megabyte, and what a thousand followers read at the same time would not
# all be given back to the system.
AT_ONCE = 16

# From that size on an entry is worth to be looked for among those that other followers hold.
LARGE_BYTES = 16 * 1024


class Read(list[RenderedEntry]):
    """What one read of a log brought; ``page`` but with its entries as they are shown."""

    __slots__ = ("__weakref__", "meta", "whole", "written")

    def __init__(self, page: Page, shown: Iterable[RenderedEntry]) -> None:
        super().__init__(shown)
        self.meta = page.meta
        self.written = page.written
        self.whole = page.whole


class PagedSession(Protocol):
    """The session for whose followers something is read."""

    keys: SessionKeys
    invalidations: int
    messages: int

    def page_read(self, read: Read | None, invalidations: int, messages: int) -> None:
        """Take a page that was read; when the read began, there had been so many ``invalidations`` and ``messages``."""


class Pages:
    """Reads pages of logs.

    A page is kept as long as a follower holds it. So followers of one place that go on at their own speeds cost the
    broker one read, and this process the memory of one page.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held: WeakValueDictionary[Hashable, Read] = WeakValueDictionary()
        self._large: WeakValueDictionary[Hashable, RenderedEntry] = WeakValueDictionary()
        self._coming: dict[Hashable, asyncio.Task[Read | None]] = {}
        self._places = Places(AT_ONCE)

    async def read(self, reader: PagedSession, after: Cursor) -> Read | None:
        """What stands after the cursor; None: there is no session. Nothing is kept over an invalidation.

        Raises:
            redis.exceptions.RedisError, OSError: the broker's trouble.
        """
        name = (reader.keys.tail, after, reader.invalidations)
        held = self._held.get(name)
        if held is not None:
            return held
        coming = self._coming.get(name)
        if coming is None:
            coming = self._coming[name] = asyncio.create_task(self._fetch(reader, after))
            coming.add_done_callback(lambda done: self._came(name, done))
        # Shielded: who gives up must not take the page from the others.
        return await asyncio.shield(coming)

    async def meta(self, keys: SessionKeys, cursor: Cursor | None) -> SessionMeta | None:
        """A session's meta alone, for who has a ``cursor`` perhaps; None: there is no session.

        Raises:
            BrokerAway: the broker did not answer.
        """
        return await self._log.sure_meta(keys, cursor)

    async def trimmed(self, keys: SessionKeys, after: Cursor, before: int) -> Page | None:
        """As `turnstream.api.streaming.start_position.trimmed`."""
        async with self._places.one(keys.owner):
            return await trimmed(self._log, keys, after, before)

    def rendered(
        self,
        reader: PagedSession,
        epoch: int,
        entry: Entry,
        kind: type[RenderedEntry] = RenderedEntry,
        number: int | None = None,
    ) -> RenderedEntry:
        """The entry, once for all who hold it if it is large: the pages that have it begin at any place.

        ``number`` is its own, where that is not the log's.
        """
        if len(entry.event) + len(entry.extra) < LARGE_BYTES:
            return kind(entry)
        name = (reader.keys.tail, epoch, entry.seq, reader.invalidations, kind, number)
        shown = self._large.get(name)
        if shown is None:
            shown = self._large[name] = kind(entry)
        return shown

    async def close(self) -> None:
        """Give up what is on its way."""
        coming = list(self._coming.values())
        for each in coming:
            each.cancel()
        await asyncio.gather(*coming, return_exceptions=True)

    async def _fetch(self, reader: PagedSession, after: Cursor) -> Read | None:
        async with self._places.one(reader.keys.owner):
            invalidations, messages = reader.invalidations, reader.messages
            page = await self._log.once.page(reader.keys, after, PAGE_BYTES)
        read = None
        if page is not None:
            read = Read(page, [self.rendered(reader, page.meta.epoch, entry) for entry in page.entries])
        reader.page_read(read, invalidations, messages)
        return read

    def _came(self, name: Hashable, done: asyncio.Task[Read | None]) -> None:
        del self._coming[name]
        if not done.cancelled() and done.exception() is None and (read := done.result()):
            self._held[name] = read
