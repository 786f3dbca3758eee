"""One session that is followed here: its ring, until that is invalidated, and its feeds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turnstream.api.streaming.ring import RenderedEntry, Ring
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.pages import Read
    from turnstream.api.streaming.rounds import Rounds
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log, Tail

# How long a session stays followed after its last follower left: a client that comes right back (the next
# turn, a callback, a reconnect) costs no new subscription.
LINGER_SECONDS = 2.0

# A session's followers that are shown a message's entries in the very call that brought it. More have their turns: what
# one message costs must not grow with the followers of its session.
FIRST_FOLLOWERS = 8


class Followed:
    """One session that somebody follows.

    ``attached``: the broker acknowledged the subscription, and the reader is whole. There is a ring as long as its
    last entry is the log's last one, for all we know. ``invalidations`` counts when that ended, ``messages`` those of the
    tail.
    """

    __slots__ = (
        "_former",
        "_idle",
        "_left",
        "_lingering",
        "_ring",
        "attached",
        "feeds",
        "invalidations",
        "keys",
        "messages",
        "part",
        "rounds",
    )

    def __init__(
        self, keys: SessionKeys, rounds: Rounds, left: Callable[[Followed, Feed], None], part: int
    ) -> None:
        self.keys = keys
        self.rounds = rounds
        self._left = left
        self.part = part
        # In the order in which they came.
        self.feeds: dict[Feed, None] = {}
        self.attached = False
        self.invalidations = 0
        self.messages = 0
        self._ring: Ring | None = None
        # The ring of the epoch before: who had not read its last entries when the log was cleared still can.
        self._former: Ring | None = None
        self._idle = -1
        self._lingering: asyncio.TimerHandle | None = None

    def join(self, feed: Feed) -> None:
        """One more follower."""
        self.stay()
        self.feeds[feed] = None

    def leave(self, feed: Feed) -> None:
        """A follower is done."""
        self.feeds.pop(feed, None)
        self._left(self, feed)

    def stay(self) -> None:
        """Stay subscribed, whatever `linger` was to do."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def linger(self, forget: Callable[[], None]) -> None:
        """Have the session forgotten in `LINGER_SECONDS`, unless it is followed again."""
        self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, forget)

    def in_ring(self, after: Cursor) -> list[RenderedEntry] | None:
        """What the ring has: entries, nothing new (empty); None: the log must be read."""
        ring = self._ring
        if ring is None:
            return None
        if after.epoch == ring.epoch:
            return ring.after(after.seq)
        former = self._former
        if former is not None and after.epoch == former.epoch and (shown := former.after(after.seq)):
            return shown
        return None

    def message_received(self, tail: Tail) -> None:
        """Take what was published on the session's tail."""
        self.messages += 1
        ring = self._ring
        if ring is None or tail.epoch > ring.epoch:
            # Cleared; else the log has lost its end, perhaps, and with it what the ring has.
            self._former = ring if tail.last == 0 else None
            ring = self._ring = Ring(tail.epoch, tail.first - 1)
            self.wake()
        elif tail.epoch < ring.epoch or (
            # What was read may be ahead of the messages. Else the log is not what it was.
            tail.first <= min(tail.last, ring.last) and not ring.has(tail.last, tail.written)
        ):
            self.invalidate()
            return
        if tail.last > ring.last:
            if not tail.entries:
                ring.restart(tail.last, tail.written)
            else:
                if tail.first > ring.last + 1:
                    ring.restart(tail.first - 1)
                ring.add([RenderedEntry(entry) for entry in tail.entries])
            self.wake()
            # What came before it was taken: nothing needs the ring's entries but followers. To look at all of those
            # costs each message a few of them.
            if not self.messages % (len(self.feeds) // FIRST_FOLLOWERS or 1):
                self._shrink()
        if tail.first > tail.last:
            self.task_may_be_parked()

    def attach(self) -> None:
        """The broker acknowledged the subscription: from here on no message is missed."""
        self.attached = True
        if self.invalidations:
            # Messages were missed since, and what was read meanwhile may lack them.
            self.invalidate()
        else:
            # Nothing was read before. What followers of a new turn want is all in the messages that come now.
            self.wake()

    def invalidate(self) -> None:
        """Drop the ring: it may not be what the log is. Each follower reads before it uses the next one."""
        self.invalidations += 1
        self._ring = self._former = None
        self.wake()
        self.task_may_be_parked()

    def page_read(self, read: Read | None, invalidations: int, messages: int) -> None:
        """Take a page that was read; when the read began, there had been so many ``invalidations`` and ``messages``."""
        if self.invalidations != invalidations:
            return
        ring = self._ring
        if ring is None:
            if read is None:
                return
            self._ring = _ring_of(read)
        elif read is None or read.meta.epoch != ring.epoch or read.meta.seq < ring.last:
            # A message that came meanwhile may be newer than what was read.
            if self.messages == messages:
                self.invalidate()
            return
        elif read and read.whole and (read.meta.seq > ring.last or len(read) > len(ring)):
            # It ends as the log does. Where the ring did, too, others who come back find more of it now.
            self._ring = _ring_of(read)
        else:
            return
        self.wake()

    async def look(self, log: Log) -> None:
        """Ask the log whether it is the one that followers see."""
        ring = self._ring
        if ring is None or not self.attached or not self.feeds:
            return
        invalidations, messages = self.invalidations, self.messages
        end, written = Cursor(ring.epoch, ring.last), ring.written
        waiting = [feed for feed in self.feeds if feed.task and feed.after == end]
        page = await log.page(self.keys, end, 1)
        if (self.invalidations, self.messages) != (invalidations, messages):
            return
        if (
            page is None
            or (page.meta.epoch, page.meta.seq) != end
            or (written and page.written and page.written != written)
        ):
            self.invalidate()
            return
        live = await log.live(self.keys) if waiting else []
        for feed in waiting:
            task = None if feed.task is None or feed.task in live else await log.task(self.keys, feed.task)
            if task is not None and task.get("status", "failed") in TERMINAL and feed.after == end:
                # It has all there is, and no more will be said: the task's hash was lost, or its end.
                feed.end_as_gone()

    def shrink_if_idle(self) -> None:
        """Where no message came since the last call, drop what all followers have, and the former ring."""
        if self.messages == self._idle:
            self._former = None
            self._shrink()
        self._idle = self.messages

    def _shrink(self) -> None:
        """Drop what all followers have. One that has yet to begin, or is in another epoch, has nothing of it.

        Entries that stay a while lie between objects that stay for long, and the system gets none of that memory back.
        """
        ring = self._ring
        if ring is not None and len(ring):
            seen = ring.last
            for feed in self.feeds:
                after = feed.after
                if after.epoch != ring.epoch:
                    return
                seen = min(seen, after.seq)
            ring.forget(seen)

    def wake(self) -> None:
        """There may be news: the first followers see them now, the others in turn."""
        for number, feed in enumerate(self.feeds):
            if number < FIRST_FOLLOWERS:
                feed.wake()
            else:
                feed.wake_in_turn(self.rounds)

    def task_may_be_parked(self) -> None:
        """An earlier release may have parked a task."""
        for feed in self.feeds:
            feed.task_may_be_parked()


def _ring_of(read: Read) -> Ring:
    if not read or not read.whole:
        ring = Ring(read.meta.epoch, read.meta.seq)
        ring.written = 0 if read else read.written
        return ring
    ring = Ring(read.meta.epoch, read[0].entry.seq - 1)
    ring.add(read)
    return ring
