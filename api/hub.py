"""Following logs: one reader for the whole process, one ring per followed session, a cursor per follower.

A follower has no queue of its own, so a slow client costs no memory: one that falls off the ring reads
from the broker. Nothing is read before the broker acknowledged the subscription, and nothing from the
start: what a reconnect costs is what was missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Self

import structlog

from api.ring import Ring, Shown
from api.tails import TailReader
from shared.broker import is_trouble
from shared.entry import Cursor
from shared.errors import Overloaded, ShuttingDown, TooMany
from shared.log import PAGE, Log, SessionMeta, parse_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from shared.entry import Entry
    from shared.keys import SessionKeys
    from shared.log import Tail

log = structlog.get_logger(__name__)

# How long a session stays followed after its last follower left: a client that comes right back (the next
# turn, a callback, a reconnect) costs no new subscription.
LINGER_SECONDS = 2.0

# A follower that reads from the broker holds one page while its client takes it, however slowly.
PAGE_BYTES = 1024 * 1024
FEWEST = 4

# Between two tries to read from a broker that is away.
RETRY_SECONDS = 0.25


class Over(Enum):
    """Why a feed has no more entries."""

    CLOSED = "closed"  # its client left, or this front end shuts down
    GONE = "gone"  # the session was cleared or has expired


class Hub:
    """Feeds the followers of this process.

    Duties:
        1. subscribe to each followed session once, and unsubscribe a moment after its last follower left;
        2. hand what is heard to the session's ring, and wake its followers;
        3. end every feed at shutdown.

    The reader starts with the first follower.
    """

    def __init__(
        self, redis: Redis, reader: Log, *, most: int = 50_000, most_per_owner: int = 20_000
    ) -> None:
        """``most`` followers at once, each of which holds a connection; above it, clients are sent elsewhere."""
        self._log = reader
        self._most = most
        self._most_per_owner = most_per_owner
        self._tails = TailReader(redis, self)
        self._running: asyncio.Task[None] | None = None
        self._followed: dict[bytes, _Followed] = {}
        self._followers: Counter[str] = Counter()
        self._operators = 0
        self.closed = False

    @property
    def followers(self) -> int:
        """How many follow something here."""
        return self._followers.total() + self._operators

    def followers_of(self, owner: str) -> int:
        """How many of them are the owner's; operators who look at its sessions are not."""
        return self._followers[owner]

    @property
    def sessions(self) -> int:
        """How many sessions are followed here."""
        return len(self._followed)

    def follow(self, keys: SessionKeys, *, operator: bool = False) -> Feed:
        """A feed of the session's entries; the session need not exist yet. Leave it when done (``with``).

        An ``operator`` does not count against what the session's owner may have.

        Raises:
            ShuttingDown: this front end is stopping.
            Overloaded: it holds as many followers as it may.
            TooMany: the owner has too many followers here.
        """
        if self.closed:
            raise ShuttingDown
        if self.followers >= self._most:
            raise Overloaded(
                "This front end holds as many streams as it may. Try again: another one may answer."
            )
        if not operator and self._followers[keys.owner] >= self._most_per_owner:
            raise TooMany
        if self._running is None:
            self._running = asyncio.create_task(self._tails.run())
        channel = keys.tail.encode()
        followed = self._followed.get(channel)
        if followed is None:
            followed = self._followed[channel] = _Followed(keys)
            self._tails.join(channel)
        feed = Feed(self, followed, self._log, operator=operator)
        followed.join(feed)
        if operator:
            self._operators += 1
        else:
            self._followers[keys.owner] += 1
        return feed

    @contextmanager
    def following(self, keys: SessionKeys, *, operator: bool = False) -> Iterator[Feed]:
        """A feed for a response that is yet to be made: left if that fails, else the response leaves it."""
        feed = self.follow(keys, operator=operator)
        try:
            yield feed
        except BaseException:
            feed.leave()
            raise

    def close(self) -> None:
        """End every feed, between two entries; new ones are refused."""
        self.closed = True
        for followed in self._followed.values():
            for feed in list(followed.feeds):
                feed.end()

    async def stop(self) -> None:
        """End every feed and the reader."""
        self.close()
        for followed in self._followed.values():
            followed.stay()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def left(self, followed: _Followed, feed: Feed) -> None:
        """A follower is done."""
        followed.feeds.discard(feed)
        owner = followed.keys.owner
        if feed.operator:
            self._operators -= 1
        else:
            self._followers[owner] -= 1
            if self._followers[owner] <= 0:
                del self._followers[owner]
        if not followed.feeds and not self.closed:
            followed.linger(lambda: self._forget(followed))

    def heard(self, channel: bytes, message: bytes) -> None:
        """A batch was appended to a session's log, or the log was cleared."""
        followed = self._followed.get(channel)
        if followed is None:
            return
        try:
            followed.heard(parse_tail(message))
        except ValueError:
            # Written by another version of us. What it said can be read from the log.
            log.warning("hub.not_understood", channel=channel.decode())
            followed.unsure()

    def subscribed(self, channel: bytes) -> None:
        """From here on nothing is missed; what came before has to be read."""
        followed = self._followed.get(channel)
        if followed is not None:
            followed.attached = True
            followed.unsure()

    def deaf(self) -> None:
        """The reader was lost. Followers wait, and read on when their session is subscribed again."""
        for followed in self._followed.values():
            followed.attached = False

    def _forget(self, followed: _Followed) -> None:
        if followed.feeds:
            return
        channel = followed.keys.tail.encode()
        self._followed.pop(channel, None)
        self._tails.leave(channel)


class Feed:
    """One follower's view of a session.

    Attributes:
        after: the follower's place: what it has been given. Whoever shows entries moves it.
        at_once: shows what it is given in the very call that brought it, and says whether it did. Most entries go
            this way, which spares them the wait for the follower's task; it is asked only while that waits.
        operator: it is not one of those that the session's owner may have.
    """

    __slots__ = (
        "_ended",
        "_followed",
        "_hub",
        "_left",
        "_log",
        "_timer",
        "_timer_at",
        "_waiter",
        "after",
        "at_once",
        "operator",
    )

    def __init__(self, hub: Hub, followed: _Followed, reader: Log, *, operator: bool = False) -> None:
        self.after = Cursor(0, 0)
        self.operator = operator
        self.at_once: Callable[[list[Shown]], bool] | None = None
        self._hub = hub
        self._followed = followed
        self._log = reader
        self._ended = False
        self._left = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def keys(self) -> SessionKeys:
        """The session."""
        return self._followed.keys

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Follow no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._left:
            self._left = True
            self._hub.left(self._followed, self)

    def end(self) -> None:
        """Have `entries` answer `Over.CLOSED` from now on."""
        self._ended = True
        self._wake_task()

    def wake(self) -> None:
        """There may be news."""
        if self._waiter is None:
            return
        if self.at_once is not None and not self._ended:
            try:
                news = self._followed.look(self.after)
                if isinstance(news, list) and news and self.at_once(news):
                    return
            except Exception:
                # The follower's own task meets the same error, where it concerns nobody else.
                log.debug("hub.not_at_once", exc_info=True)
        self._wake_task()

    async def entries(self, wait: float) -> list[Shown] | Over:
        """What stands in the log after `after`, oldest first.

        Waits up to ``wait`` seconds for something; empty when nothing came, or the broker is away. When the
        first entry is not the one right after the cursor, those between were trimmed: see api/follow.py.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while not self._ended:
            found = self._followed.look(self.after)
            if found:
                return found
            left = until - loop.time()
            if left <= 0:
                return []
            if found is None and self._followed.attached:
                page = await self._read(self.after, left)
                if page:
                    return page
            else:
                await self._changed(left)
        return Over.CLOSED

    async def _read(self, after: Cursor, left: float) -> list[Shown] | Over | None:
        """Read from the broker; None when the ring may know more by now."""
        followed = self._followed
        try:
            async with asyncio.timeout(left):
                if followed.sure:
                    return await self._read_page(after)
                # One of the followers finds out for all where the log's end is.
                async with followed.asking:
                    return None if followed.sure else await self._read_page(after)
        except Exception as error:
            if not is_trouble(error):
                raise
        await self._changed(min(left, RETRY_SECONDS))
        return None

    async def _read_page(self, after: Cursor) -> list[Shown] | Over | None:
        followed = self._followed
        count, doubts = followed.page(), followed.doubts
        page = await self._log.read(self.keys, after, count)
        meta = None if page else await self._log.meta(self.keys)
        if followed.doubts != doubts:
            # Read before a subscription was made anew: what came in between is not in it.
            return [Shown(entry) for entry in page] or None
        if not page:
            return followed.confirm(meta, after)
        if len(page) < count and followed.caught_up(after.epoch, page):
            return None
        return [Shown(entry) for entry in page]

    async def _changed(self, seconds: float) -> None:
        """Wait to be woken, ``seconds`` at most; perhaps for less, since a timer serves many waits."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._timer is None or until < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = loop.call_at(until, self._timed_out), until
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _timed_out(self) -> None:
        self._timer = None
        self._wake_task()

    def _wake_task(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Followed:
    """One session that somebody follows.

    ``attached``: the broker acknowledged the subscription, and the reader is whole.
    ``sure``: the ring's last entry is the log's last one. Not so after a (new) subscription, until a message
    comes in or somebody has read.
    """

    __slots__ = ("_former", "_lingering", "_ring", "asking", "attached", "doubts", "feeds", "keys", "sure")

    def __init__(self, keys: SessionKeys) -> None:
        self.keys = keys
        self.feeds: set[Feed] = set()
        self.attached = False
        self.sure = False
        self.doubts = 0
        self.asking = asyncio.Lock()
        self._ring: Ring | None = None
        # The ring of the epoch before: who had not read its last entries when the log was cleared still can.
        self._former: Ring | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def join(self, feed: Feed) -> None:
        self.stay()
        self.feeds.add(feed)

    def stay(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def linger(self, forget: Callable[[], None]) -> None:
        self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, forget)

    def page(self) -> int:
        """How many entries to read at once: about `PAGE_BYTES`, if they are like the newest ones."""
        size = self._ring.entry_bytes if self._ring else 0
        return max(FEWEST, min(PAGE, PAGE_BYTES // size)) if size else PAGE

    def look(self, after: Cursor) -> list[Shown] | Over | None:
        """What the ring knows: entries, nothing new (empty), that the log is gone; None: it must be read."""
        ring = self._ring
        if ring is None or after.epoch > ring.epoch:
            return None
        if after.epoch < ring.epoch:
            former = self._former
            if former is not None and former.epoch == after.epoch and (shown := former.after(after.seq)):
                return shown
            return Over.GONE
        shown = ring.after(after.seq)
        return shown if shown or self.sure else None

    def heard(self, tail: Tail) -> None:
        ring = self._ring
        if ring is None or tail.epoch > ring.epoch:
            self._former = ring
            ring = self._ring = Ring(tail.epoch, tail.first - 1)
        elif tail.epoch < ring.epoch or tail.last <= ring.last:
            return
        if not tail.entries:
            ring.restart(tail.last)
        else:
            if tail.first > ring.last + 1:
                ring.restart(tail.first - 1)
            known = ring.last + 1 - tail.first
            ring.add(tail.entries[known:] if known else tail.entries)
        self.sure = True
        self.wake()

    def unsure(self) -> None:
        self.sure = False
        self.doubts += 1
        self.wake()

    def caught_up(self, epoch: int, page: list[Entry]) -> bool:
        """Take what was read up to the log's end into the ring; False when the ring does not want it."""
        if self.sure:
            return False
        ring = self._ring
        if ring is None or epoch > ring.epoch:
            self._former = ring
            ring = self._ring = Ring(epoch, page[0].seq - 1)
        elif epoch < ring.epoch or page[-1].seq <= ring.last:
            return False
        elif page[0].seq > ring.last + 1:
            ring.restart(page[0].seq - 1)
        ring.add(page[ring.last + 1 - page[0].seq :])
        self.sure = True
        self.wake()
        return ring.after(page[0].seq - 1) is not None

    def confirm(self, meta: SessionMeta | None, after: Cursor) -> Over | None:
        """Nothing stands after the cursor: because it is at the end, or because the log is gone."""
        # A log that ends before the cursor lost its end, in a failover say. Its numbers are given anew.
        if meta is None or (meta.epoch, meta.seq) < (after.epoch, after.seq) or meta.epoch > after.epoch:
            return Over.GONE
        if not self.sure and meta.seq == after.seq:
            ring = self._ring
            if ring is None or (ring.epoch, ring.last) != (meta.epoch, meta.seq):
                self._ring = Ring(meta.epoch, meta.seq)
            self.sure = True
            self.wake()
        return None

    def wake(self) -> None:
        for feed in self.feeds:
            feed.wake()
