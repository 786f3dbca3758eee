"""A log and its history, whole: production reads them page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.shared.session.event_log import Log

if TYPE_CHECKING:
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Cursor, Entry


class WholeLog(Log):
    """Reads all there is, for tests that look at it."""

    async def read(self, keys: SessionKeys, after: Cursor, count: int = 1_000_000) -> list[Entry]:
        """The log's entries after the cursor."""
        entries: list[Entry] = []
        while (page := await self.page(keys, after)) and page.entries and len(entries) < count:
            entries += page.entries
            after = after._replace(seq=page.entries[-1].seq)
        return entries[:count]

    async def history(self, keys: SessionKeys, after: Cursor | None = None) -> list[Entry]:
        """The history after the cursor."""
        return [entry async for entry in self.all_kept(keys, after)]
