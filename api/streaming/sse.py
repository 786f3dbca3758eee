"""Entries to a client as server-sent events, over one raw ASGI response."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from turnstream.api.http.connection import Watched, connection_of
from turnstream.api.streaming.feed import Gap, Over
from turnstream.api.streaming.gaps import GapFilter, Visibility
from turnstream.api.streaming.ring import RenderedEntry, ReplayedEntry
from turnstream.api.streaming.start_position import begun_before, ended, opening, renumbered
from turnstream.shared import metrics
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.entry import END, RESPONSE, Cursor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from starlette.types import Receive, Scope, Send

    from turnstream.api.http.connection import Connection
    from turnstream.api.streaming.dialect import Dialect, Encoder
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.leaving import Left
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log, Page
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# Frames that wait are joined up to this size. A stalled client costs about two writes of memory, one here and one in the
# server; everything else is shared with other followers.
SEND_BYTES = 32 * 1024
# About how much is written to one client before other followers get their turn.
TURN_BYTES = 4 * SEND_BYTES

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class SlowClientError(Exception):
    """The client did not take what it was sent in time."""


class UnfinishedError(Exception):
    """The stream ends before what it tells does, to a client that would not see the difference."""


class EventStream:
    """Sends a session's or a task's entries until the end.

    Duties:
        1. write each entry once, in order, in the client's dialect; what was trimmed, as the history has it, and
           where that was the turn's beginning, with one of its own and numbers of its own;
        2. join what waits into few writes, give each write its time, and have turns with other followers (api/streaming/rounds.py);
        3. keep a silent connection open with heartbeats, also while the broker is away;
        4. end between two frames: after the task's end, after the longest time for a session, when the
           session is cleared or its log is not what it was, when the client leaves and at shutdown. The turn itself
           goes on. A dialect that `cuts` has its connection cut, but for the first of these.
    """

    __slots__ = (
        "_begun",
        "_connection",
        "_dialect",
        "_encoder",
        "_fed",
        "_feed",
        "_fresh",
        "_gap_filter",
        "_headers",
        "_held",
        "_left",
        "_log",
        "_made",
        "_number",
        "_opening",
        "_over",
        "_seen",
        "_send",
        "_session",
        "_settings",
        "_size",
        "_task",
        "_time",
        "_waiting",
        "_wrote_at",
    )

    def __init__(
        self,
        feed: Feed,
        start: Start,
        dialect: Dialect,
        reader: Log,
        settings: Settings,
        *,
        headers: Headers = (),
        encoder: Encoder | None = None,
        left: Left | None = None,
        opening: bytes = b"",
    ) -> None:
        """With an ``encoder`` it writes the entries, from the start's place on, instead of the dialect.

        ``left`` is called when the client leaves before the end. ``opening``: frames that come before all others.
        """
        self._feed = feed
        self._session = feed.keys.session
        feed.after = start.after
        feed.task = self._task = start.task
        self._over = start.over
        # Whether nothing was shown yet of a task that is wanted from its first event.
        self._fresh = start.fresh
        # How the task began whose first events are gone: what of it was not shown yet.
        self._begun: list[Entry] = []
        # The next number, where they are not the log's own.
        self._number: int | None = None
        self._dialect = dialect
        self._encoder = encoder
        self._left = left
        self._opening = opening
        self._seen = start.seen
        # The last seq that the encoder was fed with, and by their seqs the frames that were made and are not written yet.
        self._fed = 0
        self._made: dict[int, bytes] = {}
        self._log = reader
        self._settings = settings
        self._headers = headers
        self._waiting: list[bytes] = []
        self._size = 0
        # Whose frames are the last ones that wait: as long as it is held, others write the same ones.
        self._held: RenderedEntry | None = None
        self._wrote_at = 0.0
        self._gap_filter: GapFilter | None = None
        # Set while entries may be shown at once.
        self._connection: Connection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Begin the response, and leave the rest of it to the connection."""
        metrics.streams_opened.n += 1
        connection = connection_of(scope)
        self._send = send
        began = False
        try:
            began = await self._served(connection, self._begin())
        finally:
            if not began:
                self._feed.leave()
                self._check_left(connection)
        if began:
            connection.rest = partial(self._rest, connection, scope["method"] == "HEAD")

    async def _rest(self, connection: Connection, head: bool, send: Send) -> None:
        self._send = send
        if not head:
            self._connection = connection
        with self._feed:
            await self._served(connection, self._follow())
        self._check_left(connection)

    def _check_left(self, connection: Connection) -> None:
        if self._left is not None and not self._over and connection.is_lost():
            self._left()

    async def _served(self, connection: Connection, part: Awaitable[None]) -> bool:
        """Serve a part; False when the connection is cut."""
        try:
            with Watched(connection, self._feed.end):
                await part
        except SlowClientError:
            metrics.cut_readers.n += 1
            log.info("stream.slow_client", session=self._session, task=self._task)
        except UnfinishedError:
            log.info("stream.unfinished", session=self._session, task=self._task)
        else:
            return True
        self._feed.leave()
        lost = asyncio.Event()
        with Watched(connection, lost.set):
            connection.abort()
            await lost.wait()
        return False

    async def _begin(self) -> None:
        content_type = (b"content-type", self._dialect.content_type.encode())
        headers = [content_type, *HEADERS, *self._headers]
        await self._give({"type": "http.response.start", "status": 200, "headers": headers})

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._time = loop.time
        self._wrote_at = loop.time()
        if self._connection is not None:
            self._feed.at_once = self._show_at_once
        self._put(self._opening)
        self._opening = b""
        await self._flush()
        ends = None if self._task else self._wrote_at + settings.stream_seconds
        while not self._over:
            now = loop.time()
            if ends is not None and now >= ends:
                break
            wait = self._wrote_at + settings.heartbeat_seconds - now
            if wait <= 0:
                self._put(self._dialect.ping)
                await self._flush()
                continue
            news = await self._feed.entries(wait if ends is None else min(wait, ends - now))
            if isinstance(news, Over):
                break
            if isinstance(news, Gap):
                if not await self._fill(news.before):
                    break
                continue
            if news:
                await self._feed.turn()
            self._show(news, self._behind_gap)
            # While it waits for the client it keeps nothing but what it writes: the rest is read again.
            del news
            await self._flush()
        if self._dialect.cuts and not self._over:
            raise UnfinishedError
        await self._give({"type": "http.response.body", "body": b"", "more_body": False})

    def _show_at_once(self, news: list[RenderedEntry]) -> bool:
        """Show what follows the feed's place while the task waits; False when it has to see to it."""
        if self._gap_filter is not None or self._connection is None:
            return False
        feed, task, dialect, session = self._feed, self._task, self._dialect, self._session
        epoch, encoder = feed.after.epoch, self._encoder
        frames = []
        over = False
        for shown in news:
            entry = shown.entry
            if task is None or entry.task == task:
                if encoder is None:
                    frames.append(shown.frames(dialect, session, epoch))
                else:
                    frames.append(self._encoded(encoder, epoch, entry))
                if task is not None and (entry.kind == END or self._ends(entry)):
                    over = True
                    break
        body = b"".join(frames)
        if body:
            if len(body) > SEND_BYTES or not self._connection.write_chunk(body):
                return False
            self._made.clear()
            metrics.bytes_out.n += len(body)
            self._wrote_at = self._time()
        last = news[-1].entry
        feed.after, feed.written = Cursor(epoch, last.seq), last.created
        self._fresh = False
        if over:
            self._over = True
            feed.end()
        return True

    def _show(
        self, news: Iterable[RenderedEntry], view: Callable[[RenderedEntry], RenderedEntry | None]
    ) -> None:
        """Write what the client takes at once, have one more write wait, and move the feed's place behind them.

        Not more than is for one turn.
        """
        feed, task, dialect, session = self._feed, self._task, self._dialect, self._session
        epoch, encoder = feed.after.epoch, self._encoder
        written = 0
        for each in news:
            entry = each.entry
            if task is None or entry.task == task:
                shown = view(each)
                if shown is not None and encoder is None:
                    self._put(shown.frames(dialect, session, epoch), shown)
                elif shown is not None and encoder is not None:
                    self._put(self._encoded(encoder, epoch, shown.entry))
                    self._made.pop(shown.entry.seq, None)
            feed.after, feed.written = Cursor(epoch, entry.seq), entry.created
            self._fresh = False
            if task is not None and entry.task == task and (entry.kind == END or self._ends(entry)):
                self._over = True
                return
            if self._size >= SEND_BYTES:
                written += self._size
                if written >= TURN_BYTES or not self._flush_at_once():
                    return

    def _encoded(self, encoder: Encoder, epoch: int, entry: Entry) -> bytes:
        """What the encoder makes of an entry, which it is fed with once; nothing where the client has it already."""
        if entry.seq > self._fed:
            frames = encoder.feed(epoch, entry)
            self._fed = entry.seq
            if frames and entry.seq > self._seen:
                self._made[entry.seq] = frames
        return self._made.get(entry.seq, b"")

    def _ends(self, entry: Entry) -> bool:
        """Whether the encoder's last frames are this entry's."""
        return self._encoder is not None and self._encoder.over and entry.seq >= self._fed

    def _behind_gap(self, shown: RenderedEntry) -> RenderedEntry | None:
        """How to show an entry of the log; behind a gap, perhaps not at all."""
        if self._gap_filter is None:
            return shown
        entry = shown.entry
        visibility = self._gap_filter.visibility(entry)
        if visibility is Visibility.HIDDEN:
            return None
        if visibility is Visibility.WHOLE:
            return self._replayed(shown)
        self._show_begun(entry)
        number = self._number
        if number is None:
            return shown
        return self._feed.rendered(self._renumbered(entry), RenderedEntry, number)

    def _replayed(self, shown: RenderedEntry) -> RenderedEntry:
        """How to show an entry by itself."""
        self._show_begun(shown.entry)
        number = self._number
        return self._feed.rendered(self._renumbered(shown.entry), ReplayedEntry, number)

    def _renumbered(self, entry: Entry) -> Entry:
        if self._number is None:
            return entry
        made = renumbered(entry, self._number)
        self._number += made is not entry
        return made

    async def _fill(self, before: int) -> bool:
        """Show from the history what was cut before seq ``before``, as far as the broker answers; False: no more comes."""
        feed, task = self._feed, self._task
        # Who has seen nothing yet gets what is left.
        promised = not self._fresh
        try:
            if task is not None and self._fresh:
                self._begun = await opening(self._log, feed.keys, task)
                self._number = 0 if self._begun else None
            self._fresh = False
            while feed.after.seq < before - 1:
                page = await feed.trimmed(before)
                if page is None:
                    # The log is another one by now.
                    return True
                if page.cut and promised:
                    return False
                promised = True
                await self._show_trimmed(page, before)
                if self._over:
                    return True
            if task is not None:
                end = await ended(self._log, feed.keys, task)
                # The end itself was cut from the history.
                if end is not None and end < before:
                    return False
        except BrokerAway:
            return True
        self._gap_filter = self._gap_filter or GapFilter()
        return True

    def _show_begun(self, entry: Entry) -> None:
        """Show how its task began, as far as that comes before an entry, the first ones of which are gone."""
        if not self._begun or self._number is None:
            return
        count = max(begun_before(entry) - self._number, 0)
        begun, self._begun = self._begun[:count], self._begun[count:]
        if entry.kind == RESPONSE:
            # It is the next of them itself.
            self._begun = self._begun[1:]
        epoch = self._feed.after.epoch
        for each in begun:
            number = self._number
            shown = self._feed.rendered(self._renumbered(each), ReplayedEntry, number)
            if self._encoder is None:
                self._put(shown.frames(self._dialect, self._session, epoch), shown)
            else:
                self._put(self._encoder.feed(epoch, shown.entry))

    async def _show_trimmed(self, page: Page, before: int) -> None:
        """Show a page of the history, or as much of it as is taken."""
        feed = self._feed
        await feed.turn()
        self._show(map(RenderedEntry, page.entries), self._replayed)
        if page.last is None:
            feed.after = Cursor(feed.after.epoch, before - 1)
        # It is not in the log.
        feed.written = 0
        await self._flush()

    def _put(self, frames: bytes, shown: RenderedEntry | None = None) -> None:
        if frames:
            self._waiting.append(frames)
            self._size += len(frames)
            self._held = shown

    def _flush_at_once(self) -> bool:
        """Write what waits, if it is not much and the client takes it."""
        if self._connection is None or self._size > 2 * SEND_BYTES:
            return False
        if not self._connection.write_chunk(b"".join(self._waiting)):
            return False
        self._wrote()
        return True

    async def _flush(self) -> None:
        if not self._waiting:
            return
        for number, piece in enumerate(self._pieces()):
            if number:
                await self._feed.turn()
            if self._connection is None or not self._connection.write_chunk(piece):
                await self._give({"type": "http.response.body", "body": piece, "more_body": True})
        self._wrote()

    def _pieces(self) -> Iterator[bytes]:
        """What waits: the server copies what it is given, for each client, so it gets little at once."""
        *frames, last = self._waiting
        if self._size <= 2 * SEND_BYTES:
            frames, last = [], b"".join(self._waiting)
        self._waiting.clear()
        if frames:
            yield b"".join(frames)
            frames.clear()
        for at in range(0, len(last), SEND_BYTES):
            yield last[at : at + SEND_BYTES]

    def _wrote(self) -> None:
        metrics.bytes_out.n += self._size
        self._waiting.clear()
        self._size = 0
        self._held = None
        self._wrote_at = self._time()

    async def _give(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._settings.send_seconds):
                await self._send(message)
        except TimeoutError:
            raise SlowClientError from None
