"""Following logs: one reader for the whole process, one ring per followed session, a cursor per follower.

A follower has no queue of its own, so a slow client costs no memory: one that falls off the ring reads
from the broker. Nothing is read before the broker acknowledged the subscription, and nothing from the
start: what a reconnect costs is what was missed.

What a ring holds is believed until there is reason for doubt: the connection was lost, a message does not follow on
what is known, or the log itself, asked once in a while, says something else. Then the ring is dropped, and each
follower reads on from its own place before it believes the next one. So each gets all there is to get, or is told
that the log is not the one it followed. Which states a follower can be in: docs/reference.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from enum import Enum
from itertools import count
from random import randrange
from typing import TYPE_CHECKING, NamedTuple, Self

import structlog

from turnstream.api.streaming.pages import Pages
from turnstream.api.streaming.ring import Ring, Shown
from turnstream.api.streaming.rounds import Rounds
from turnstream.api.streaming.subscriber import TailReader
from turnstream.shared.broker.client import is_trouble
from turnstream.shared.errors import Overloaded, ShuttingDown, TooMany
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import parse_tail
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from turnstream.api.streaming.pages import Read
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log, Page, Tail

log = structlog.get_logger(__name__)

# How long a session stays followed after its last follower left: a client that comes right back (the next
# turn, a callback, a reconnect) costs no new subscription.
LINGER_SECONDS = 2.0

# Between two reads from the broker of which the first one brought nothing, or failed.
RETRY_SECONDS = 0.25

# How often a session's log is asked whether it is still the one that its followers see: a broker that was emptied, or
# a session that has expired, says nothing by itself. Smaller, and 10,000 idle followers are felt at the broker.
LOOK_SECONDS = 60.0

# In so many parts, not all of the sessions at once. In a sixth of the time, idle sessions' rings are emptied.
_PARTS = 60


# A session's followers that are shown what is heard in the very call that brought it. More have their turns: what
# one message costs must not grow with the followers of its session.
FIRST_FOLLOWERS = 8


class Over(Enum):
    """Why a feed has no more entries."""

    CLOSED = "closed"  # its client left, or this front end shuts down
    GONE = "gone"  # the session was cleared or has expired, or its log lost what was shown


class Cut(NamedTuple):
    """The log no longer has the entries between a feed's place and seq ``before``: see api/streaming/start_position.py."""

    before: int


class Hub:
    """Feeds the followers of this process.

    Duties:
        1. subscribe to each followed session once, and unsubscribe a moment after its last follower left;
        2. hand what is heard to the session's ring, and wake its followers: many of them in turn with others' (`Rounds`);
           what all of them have, the ring drops;
        3. look now and then whether each session is still there, and what followers have of those that are idle;
        4. end every feed at shutdown.

    The reader starts with the first follower.
    """

    def __init__(
        self, redis: Redis, reader: Log, *, most: int = 15_000, most_per_owner: int = 10_000
    ) -> None:
        """``most`` followers at once, each of which holds a connection; above it, clients are sent elsewhere."""
        self._log = reader
        self._pages = Pages(reader)
        self._most = most
        self._most_per_owner = most_per_owner
        self._tails = TailReader(redis, self)
        self.rounds = Rounds()
        self._running: tuple[asyncio.Task[None], ...] = ()
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
        if not self._running:
            self._running = (asyncio.create_task(self._tails.run()), asyncio.create_task(self._look()))
        channel = keys.tail.encode()
        followed = self._followed.get(channel)
        if followed is None:
            followed = self._followed[channel] = _Followed(keys, self.rounds, randrange(_PARTS))  # noqa: S311
            self._tails.join(channel)
        feed = Feed(self, followed, self._pages, operator=operator)
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
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, self._pages.close(), return_exceptions=True)

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
            followed.doubt()

    def subscribed(self, channel: bytes) -> None:
        """From here on nothing is missed; what came before has to be read."""
        followed = self._followed.get(channel)
        if followed is not None:
            followed.attached = True
            followed.doubt()

    def deaf(self) -> None:
        """The reader was lost. Followers wait, and read on when their session is subscribed again."""
        for followed in self._followed.values():
            followed.attached = False
            followed.doubt()

    async def _look(self) -> None:
        for number in count():
            await asyncio.sleep(LOOK_SECONDS / _PARTS)
            looks = []
            for followed in self._followed.values():
                if followed.part % (_PARTS // 6) == number % (_PARTS // 6):
                    followed.rest()
                if followed.part == number % _PARTS:
                    looks.append(followed.look(self._log))
            for outcome in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(outcome, Exception) and not is_trouble(outcome):
                    log.error("hub.look_failed", exc_info=outcome)

    def _forget(self, followed: _Followed) -> None:
        if followed.feeds:
            return
        channel = followed.keys.tail.encode()
        self._followed.pop(channel, None)
        self._tails.leave(channel)


class Feed:
    """One follower's view of a session.

    Attributes:
        after: the follower's place: what it has been given. Whoever shows entries moves it, with `written`.
        written: when the entry at that place was written; 0 if the follower has not been given it here.
        at_once: shows what it is given in the very call that brought it, and says whether it did. Most entries go
            this way, which spares them the wait for the follower's task; it is asked only while that waits.
        task: the only one that it follows, if any. When that is over, and the follower has all there is, it is ended.
        parking: whether `entries` is to come back, with nothing, when a task may have been parked.
        operator: it is not one of those that the session's owner may have.
    """

    __slots__ = (
        "_believes",
        "_ended",
        "_followed",
        "_hub",
        "_left",
        "_lost",
        "_pages",
        "_queued",
        "_stirred",
        "_timer",
        "_timer_at",
        "_waiter",
        "after",
        "at_once",
        "operator",
        "parking",
        "task",
        "written",
    )

    def __init__(self, hub: Hub, followed: _Followed, pages: Pages, *, operator: bool = False) -> None:
        self.after = Cursor(0, 0)
        self.written = 0
        self.task: str | None = None
        self.parking = False
        self.operator = operator
        self.at_once: Callable[[list[Shown]], bool] | None = None
        self._hub = hub
        self._followed = followed
        self._pages = pages
        # The doubts after which it has read from the log: until there are more, it believes the ring.
        self._believes = followed.doubts
        self._ended = False
        self._left = False
        self._lost = False
        self._stirred = False
        self._queued = False
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
            # It knows us: the memory of both would come back only when the collector finds the circle.
            self.at_once = None
            self._hub.left(self._followed, self)

    def end(self) -> None:
        """Have `entries` answer `Over.CLOSED` from now on."""
        self._ended = True
        self._wake_task()

    def lose(self) -> None:
        """Have `entries` answer `Over.GONE` from now on."""
        self._lost = True
        self._wake_task()

    def wake(self) -> None:
        """There may be news."""
        if self._waiter is None:
            return
        if self.at_once is not None and not self._ended:
            try:
                news = self._known()
                if news and self.at_once(news):
                    return
            except Exception:
                # The follower's own task meets the same error, where it concerns nobody else.
                log.debug("hub.not_at_once", exc_info=True)
        self._wake_task()

    def wake_in_turn(self, rounds: Rounds) -> None:
        """As `wake`, when it is this follower's turn; what comes until then is shown with it."""
        if self._waiter is not None and not self._queued:
            self._queued = True
            rounds.add(self.keys.owner, self._woken_in_turn)

    async def turn(self) -> None:
        """Wait until this follower may be shown some more: others of its owner, and other owners, come in between."""
        await self._hub.rounds.turn(self.keys.owner)

    def _woken_in_turn(self) -> None:
        self._queued = False
        self.wake()

    def stir(self) -> None:
        """A task may have been parked."""
        if self.parking:
            self._stirred = True
            self._wake_task()

    async def entries(self, wait: float) -> list[Shown] | Cut | Over:
        """What stands in the log after `after`, oldest first.

        Waits up to ``wait`` seconds for something; empty when nothing came, or the broker is away.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while not self._ended and not self._lost:
            known = self._known()
            if known:
                return known
            left = until - loop.time()
            if left <= 0 or self._stirred:
                self._stirred = False
                return []
            if known is None and self._followed.attached:
                news = await self._read(left)
                if news:
                    return news
                known = self._known()
                if known is None:
                    left = min(left, RETRY_SECONDS)
            if not known:
                await self._changed(left)
        return Over.GONE if self._lost and not self._ended else Over.CLOSED

    async def trimmed(self, before: int) -> Page | None:
        """A page of what stands in the history for the entries between `after` and seq ``before``.

        None: the log is of another epoch by now, or gone. `entries` tells where to go on.

        Raises:
            BrokerAway: the broker did not answer.
        """
        followed = self._followed
        page = await self._pages.trimmed(followed.keys, self.after, before)
        if page is not None and page.epoch == self.after.epoch:
            return page
        if self._believes == followed.doubts:
            # What it knows of the hole is older than this, and others may hold it still.
            followed.doubt()
        return None

    def shown(self, entry: Entry, kind: type[Shown], number: int | None) -> Shown:
        """The entry as it is to be shown, with a ``number`` of its own if any; see `Pages.shown`."""
        return self._pages.shown(self._followed, self.after.epoch, entry, kind, number)

    def _known(self) -> list[Shown] | None:
        """What is known without a read: entries, nothing new (empty); None: the log must be read."""
        followed = self._followed
        return followed.known(self.after) if self._believes == followed.doubts else None

    async def _read(self, left: float) -> list[Shown] | Cut | Over:
        """Read from the broker; empty when that brought nothing."""
        followed, after, doubts = self._followed, self.after, self._followed.doubts
        try:
            async with asyncio.timeout(left):
                read = await self._pages.read(followed, after)
        except Exception as error:
            if not is_trouble(error):
                raise
            return []
        if read is not None and after.seq <= read.former.get(after.epoch, -1):
            # The log went on in another epoch; what is there up to here is what it was.
            self.after = Cursor(read.epoch, after.seq)
            return await self._read(left)
        if (
            read is None
            or read.epoch != after.epoch
            # It ends before what we have shown, or has something else there: its end was lost, in a failover say.
            or read.seq < after.seq
            or (self.written and read.written and read.written != self.written)
        ):
            return Over.GONE
        self._believes = doubts
        first = read[0].entry.seq if read else read.seq + 1
        # What the ring has is rendered once for all.
        return Cut(first) if first > after.seq + 1 else self._known() or read

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

    ``attached``: the broker acknowledged the subscription, and the reader is whole. There is a ring as long as its
    last entry is the log's last one, for all we know. ``doubts`` counts when that ended, ``news`` what was heard.
    """

    __slots__ = (
        "_former",
        "_idle",
        "_lingering",
        "_ring",
        "_rounds",
        "attached",
        "doubts",
        "feeds",
        "keys",
        "news",
        "part",
    )

    def __init__(self, keys: SessionKeys, rounds: Rounds, part: int) -> None:
        self.keys = keys
        self._rounds = rounds
        self.part = part
        self.feeds: set[Feed] = set()
        self.attached = False
        self.doubts = 0
        self.news = 0
        self._ring: Ring | None = None
        # The ring of the epoch before: who had not read its last entries when the log was cleared still can.
        self._former: Ring | None = None
        self._idle = -1
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

    def known(self, after: Cursor) -> list[Shown] | None:
        """What the ring knows: entries, nothing new (empty); None: the log must be read."""
        ring = self._ring
        if ring is None:
            return None
        if after.epoch == ring.epoch:
            return ring.after(after.seq)
        former = self._former
        if former is not None and after.epoch == former.epoch and (shown := former.after(after.seq)):
            return shown
        return None

    def heard(self, tail: Tail) -> None:
        """Take what was published."""
        self.news += 1
        ring = self._ring
        if ring is None or tail.epoch > ring.epoch:
            # Cleared; else the log has lost its end, perhaps, and with it what the ring has.
            self._former = ring if tail.last == 0 else None
            ring = self._ring = Ring(tail.epoch, tail.first - 1)
            self.wake()
        elif tail.epoch < ring.epoch or (
            # What was read may be ahead of what is heard. Else the log is not what it was.
            tail.first <= min(tail.last, ring.last) and not ring.has(tail.last, tail.written)
        ):
            self.doubt()
            return
        if tail.last > ring.last:
            if not tail.entries:
                ring.restart(tail.last, tail.written)
            else:
                if tail.first > ring.last + 1:
                    ring.restart(tail.first - 1)
                ring.add([Shown(entry) for entry in tail.entries])
            self.wake()
            # What came before it was heard: nothing needs the ring's entries but followers. To look at all of those
            # costs each message a few of them.
            if not self.news % (len(self.feeds) // FIRST_FOLLOWERS or 1):
                self._shrink()
        if tail.first > tail.last:
            self.stir()

    def doubt(self) -> None:
        """What the ring holds may not be so."""
        self.doubts += 1
        self._ring = self._former = None
        self.wake()
        self.stir()

    def learn(self, read: Read | None, doubts: int, news: int) -> None:
        """Take what was read; when it was asked for, there had been so many ``doubts`` and ``news``."""
        if self.doubts != doubts:
            return
        ring = self._ring
        if ring is None:
            if read is None:
                return
            self._ring = _ring_of(read)
        elif read is None or read.epoch != ring.epoch or read.seq < ring.last:
            # What was heard meanwhile may be newer than what was read.
            if self.news == news:
                self.doubt()
            return
        elif read and read.whole and (read.seq > ring.last or not len(ring)):
            self._ring = _ring_of(read)
        else:
            return
        self.wake()

    async def look(self, log: Log) -> None:
        """Ask the log whether it is the one that followers see."""
        ring = self._ring
        if ring is None or not self.attached or not self.feeds:
            return
        doubts, news = self.doubts, self.news
        end, written = Cursor(ring.epoch, ring.last), ring.written
        waiting = [feed for feed in self.feeds if feed.task and feed.after == end]
        page = await log.page(self.keys, end, 1)
        if (self.doubts, self.news) != (doubts, news):
            return
        if (
            page is None
            or (page.epoch, page.seq) != end
            or (written and page.written and page.written != written)
        ):
            self.doubt()
            return
        live = await log.live(self.keys) if waiting else []
        for feed in waiting:
            task = None if feed.task is None or feed.task in live else await log.task(self.keys, feed.task)
            if task is not None and task.get("status", "failed") in TERMINAL and feed.after == end:
                # It has all there is, and no more will be said: the task's hash was lost, or its end.
                feed.lose()

    def rest(self) -> None:
        """Where nothing was heard since the last rest, drop what all followers have, and the former ring."""
        if self.news == self._idle:
            self._former = None
            self._shrink()
        self._idle = self.news

    def _shrink(self) -> None:
        """Drop what all followers have. One that has yet to begin, or is in another epoch, has nothing of it.

        Entries that stay a while lie between objects that stay for long, and the system gets none of that memory back.
        """
        ring = self._ring
        if ring is not None and len(ring):
            epoch = ring.epoch
            ring.forget(
                min(
                    (feed.after.seq if feed.after.epoch == epoch else 0 for feed in self.feeds),
                    default=ring.last,
                )
            )

    def wake(self) -> None:
        for number, feed in enumerate(self.feeds):
            if number < FIRST_FOLLOWERS:
                feed.wake()
            else:
                feed.wake_in_turn(self._rounds)

    def stir(self) -> None:
        for feed in self.feeds:
            feed.stir()


def _ring_of(read: Read) -> Ring:
    if not read or not read.whole:
        ring = Ring(read.epoch, read.seq)
        ring.written = 0 if read else read.written
        return ring
    ring = Ring(read.epoch, read[0].entry.seq - 1)
    ring.add(read)
    return ring
