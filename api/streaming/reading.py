"""A task's entries one by one, for who makes one answer of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.streaming.feed import Gap, Over
from turnstream.api.streaming.start_position import ended
from turnstream.shared.errors import CursorGone
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnstream.api.streaming.feed import Feed
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log

# Between two looks at nothing; news wake the reader by themselves.
IDLE_SECONDS = 60.0


async def entries_of(feed: Feed, log: Log, task: str) -> AsyncGenerator[Entry | None, None]:
    """The task's entries behind the feed's place: what was cut from the log, as the history has it.

    None when nothing has come for a while, or may be going to (`Feed.parking`). It ends when the feed is ended; who has enough reads no further.

    Raises:
        CursorGone: the session was cleared or has lost what was read, or the task's end was cut from the history.
        BrokerAway: the broker did not answer.
    """
    while True:
        news = await feed.entries(IDLE_SECONDS)
        if news is Over.GONE:
            raise CursorGone
        if isinstance(news, Over):
            return
        if isinstance(news, Gap):
            async for entry in _trimmed(feed, log, task, news.before):
                yield entry
            continue
        for shown in news:
            if shown.entry.task == task:
                yield shown.entry
        if not news:
            yield None
            continue
        last = news[-1].entry
        feed.after, feed.written = Cursor(feed.after.epoch, last.seq), last.created


async def _trimmed(feed: Feed, log: Log, task: str, before: int) -> AsyncGenerator[Entry, None]:
    """Those that were cut from the log before seq ``before``."""
    epoch = feed.after.epoch
    while feed.after.seq < before - 1:
        page = await feed.trimmed(before)
        if page is None:
            return
        for entry in page.entries:
            if entry.task == task:
                yield entry
        feed.after, feed.written = page.last or Cursor(epoch, before - 1), 0
    over = await ended(log, feed.keys, task)
    if over is not None and over < before:
        raise CursorGone
