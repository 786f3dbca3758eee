"""One follower's view of a followed session: a place in its log, and a way to wait for more."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

import structlog

from turnstream.api.streaming.ring import RenderedEntry
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.api.streaming.followed import Followed
    from turnstream.api.streaming.pages import Pages, Read
    from turnstream.api.streaming.rounds import Rounds
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Page, SessionMeta

log = structlog.get_logger(__name__)

# Between two reads from the broker of which the first one brought nothing, or failed.
RETRY_SECONDS = 0.25


class Over(Enum):
    """Why a feed has no more entries."""

    CLOSED = "closed"  # its client left, or this front end shuts down
    GONE = "gone"  # the session was cleared or has expired, or its log lost what was shown


class Gap(NamedTuple):
    """The log no longer has the entries between a feed's place and seq ``before``: see api/streaming/start_position.py."""

    before: int


class Feed:
    """One follower's view of a session.

    Attributes:
        after: the follower's place: what it has been given. Whoever shows entries moves it, with `written`.
        written: when the entry at that place was written; 0 if the follower has not been given it here.
        at_once: shows what it is given in the very call that brought it, and says whether it did. Most entries go
            this way, which spares them the wait for the follower's task; it is asked only while that waits.
        task: the only one that it follows, if any. When that is over, and the follower has all there is, it is ended.
        parking: whether `entries` is to come back, with nothing, when an earlier release may have parked a task: that
            leaves no entry.
        operator: it is not one of those that the session's owner may have.
    """

    __slots__ = (
        "_ended",
        "_followed",
        "_left",
        "_lost",
        "_maybe_parked",
        "_opening",
        "_pages",
        "_queued",
        "_timer",
        "_timer_at",
        "_valid_since",
        "_waiter",
        "after",
        "at_once",
        "operator",
        "parking",
        "task",
        "written",
    )

    def __init__(self, followed: Followed, pages: Pages, *, operator: bool = False) -> None:
        self.after = Cursor(0, 0)
        self.written = 0
        self.task: str | None = None
        self.parking = False
        self.operator = operator
        self.at_once: Callable[[list[RenderedEntry]], bool] | None = None
        self._followed = followed
        self._pages = pages
        # The session's invalidations before its last read from the log: until there are more, it uses the ring.
        self._valid_since = followed.invalidations
        self._ended = False
        self._left = False
        self._lost = False
        self._maybe_parked = False
        # What `meta` has read already; place and invalidations it was read for.
        self._opening: tuple[Cursor, int, Read] | None = None
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
            self._followed.leave(self)

    def end(self) -> None:
        """Have `entries` answer `Over.CLOSED` from now on."""
        self._ended = True
        self._wake_task()

    def end_as_gone(self) -> None:
        """Have `entries` answer `Over.GONE` from now on."""
        self._lost = True
        self._wake_task()

    def wake(self) -> None:
        """There may be news."""
        if self._waiter is None:
            return
        if self.at_once is not None and not self._ended:
            try:
                news = self._in_ring()
                if news and self.at_once(news):
                    return
            except Exception:
                # The follower's own task meets the same error, where it affects no other follower.
                log.debug("feed.not_at_once", exc_info=True)
        self._wake_task()

    def wake_in_turn(self, rounds: Rounds) -> None:
        """As `wake`, when it is this follower's turn; what comes until then is shown with it."""
        if self._waiter is not None and not self._queued:
            self._queued = True
            rounds.add(self.keys.owner, self._woken_in_turn)

    async def turn(self) -> None:
        """Wait until this follower may be shown some more: others of its owner, and other owners, come in between."""
        await self._followed.rounds.turn(self.keys.owner)

    def _woken_in_turn(self) -> None:
        self._queued = False
        self.wake()

    def task_may_be_parked(self) -> None:
        """An earlier release may have parked a task."""
        if self.parking:
            self._maybe_parked = True
            self._wake_task()

    async def meta(self, cursor: Cursor | None) -> SessionMeta | None:
        """The session's meta; None: there is no session.

        Where the log has to be read from the ``cursor`` on anyway, one read brings both.

        Raises:
            BrokerAway: the broker did not answer.
        """
        followed = self._followed
        if cursor is not None and followed.in_ring(cursor) is None and not self._ended:
            if not followed.attached:
                await self._changed(RETRY_SECONDS)
            if followed.attached:
                invalidations = followed.invalidations
                try:
                    read = await self._pages.read(followed, cursor)
                except Exception as error:
                    if not is_transient(error):
                        raise
                else:
                    if read is None:
                        return None
                    self._opening = cursor, invalidations, read
                    return read.meta
        return await self._pages.meta(followed.keys, cursor)

    async def entries(self, wait: float) -> list[RenderedEntry] | Gap | Over:
        """What stands in the log after `after`, oldest first.

        Waits up to ``wait`` seconds for something; empty when nothing came, or the broker is away.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while not self._ended and not self._lost:
            known = self._in_ring()
            if known:
                return known
            left = until - loop.time()
            if left <= 0 or self._maybe_parked:
                self._maybe_parked = False
                return []
            if known is None and self._followed.attached:
                news = await self._read(left)
                if news:
                    return news
                del news
                known = self._in_ring()
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
        if page is not None and page.meta.epoch == self.after.epoch:
            return page
        if self._valid_since == followed.invalidations:
            # What it knows of the gap is older than this, and others may hold it still.
            followed.invalidate()
        return None

    def rendered(self, entry: Entry, kind: type[RenderedEntry], number: int | None) -> RenderedEntry:
        """The entry as it is to be shown, with a ``number`` of its own if any; see `Pages.shown`."""
        return self._pages.rendered(self._followed, self.after.epoch, entry, kind, number)

    def _in_ring(self) -> list[RenderedEntry] | None:
        """What the ring has: entries, nothing new (empty); None: the log must be read."""
        followed = self._followed
        return followed.in_ring(self.after) if self._valid_since == followed.invalidations else None

    async def _read(self, left: float) -> list[RenderedEntry] | Gap | Over:
        """Read from the broker; empty when that brought nothing."""
        followed, after, invalidations = self._followed, self.after, self._followed.invalidations
        opening, self._opening = self._opening, None
        read: Read | None
        if opening is not None and opening[:2] == (after, invalidations):
            read = opening[2]
        else:
            try:
                async with asyncio.timeout(left):
                    read = await self._pages.read(followed, after)
            except Exception as error:
                if not is_transient(error):
                    raise
                return []
        if read is not None and after.seq <= read.meta.former.get(after.epoch, -1):
            # The log went on in another epoch; what is there up to here is what it was.
            self.after = Cursor(read.meta.epoch, after.seq)
            return await self._read(left)
        if (
            read is None
            or read.meta.epoch != after.epoch
            # It ends before what we have shown, or has something else there: its end was lost, in a failover say.
            or read.meta.seq < after.seq
            or (self.written and read.written and read.written != self.written)
        ):
            return Over.GONE
        self._valid_since = invalidations
        first = read[0].entry.seq if read else read.meta.seq + 1
        # What the ring has is rendered once for all.
        return Gap(first) if first > after.seq + 1 else self._in_ring() or read

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
