"""Entries to a client as server-sent events, over one raw ASGI response."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from api.connection import connection_of, watched
from api.follow import trimmed
from api.hub import Over
from api.torn import Telling, Torn
from shared import measures
from shared.entry import END, Cursor
from shared.errors import BrokerAway

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from api.acceptance import Headers
    from api.connection import Connection
    from api.dialects.base import Dialect
    from api.follow import Start
    from api.hub import Feed
    from api.ring import Shown
    from shared.log import Log
    from shared.settings import Settings

log = structlog.get_logger(__name__)

# Frames that wait are joined up to this size. The server stops reading from us at the same mark, so a
# slow client holds about twice as much of our memory.
SEND_BYTES = 64 * 1024

HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class SlowClientError(Exception):
    """The client did not take what it was sent in time."""


class EventStream:
    """Sends a session's or a task's entries until the end.

    Duties:
        1. write each entry once, in order, in the client's dialect; what was trimmed, as the history has it;
        2. join what waits into few writes, and give each write its time;
        3. keep a silent connection open with heartbeats, also while the broker is away;
        4. end between two frames: after the task's end, after the longest time for a session, when the
           session is cleared, when the client leaves and at shutdown. The turn itself goes on.
    """

    __slots__ = (
        "_connection",
        "_dialect",
        "_feed",
        "_headers",
        "_log",
        "_over",
        "_send",
        "_session",
        "_settings",
        "_size",
        "_spoke",
        "_task",
        "_time",
        "_torn",
        "_waiting",
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
    ) -> None:
        self._feed = feed
        self._session = feed.keys.session
        feed.after = start.after
        self._task = start.task
        self._over = start.over
        self._dialect = dialect
        self._log = reader
        self._settings = settings
        self._headers = headers
        self._waiting: list[bytes] = []
        self._size = 0
        self._spoke = 0.0
        self._torn: Torn | None = None
        # Set while entries may be shown at once.
        self._connection: Connection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Serve the response."""
        self._send = send
        measures.streams_opened.n += 1
        connection = connection_of(scope)
        with self._feed, watched(connection, self._feed.end):
            try:
                await self._begin()
                if scope["method"] != "HEAD":
                    self._connection = connection
                await self._follow()
                await self._give({"type": "http.response.body", "body": b"", "more_body": False})
                return
            except SlowClientError:
                measures.cut_readers.n += 1
                log.info("stream.slow_client", session=self._session, task=self._task)
        lost = asyncio.Event()
        with watched(connection, lost.set):
            connection.abort()
            await lost.wait()

    async def _begin(self) -> None:
        content_type = (b"content-type", self._dialect.content_type.encode())
        headers = [content_type, *HEADERS, *self._headers]
        await self._give({"type": "http.response.start", "status": 200, "headers": headers})

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._time = loop.time
        self._spoke = loop.time()
        if self._connection is not None:
            self._feed.at_once = self._show_at_once
        ends = None if self._task else self._spoke + settings.stream_seconds
        while not self._over:
            now = loop.time()
            if ends is not None and now >= ends:
                return
            wait = self._spoke + settings.heartbeat_seconds - now
            if wait <= 0:
                await self._write(self._dialect.ping)
                await self._flush()
                continue
            news = await self._feed.entries(wait if ends is None else min(wait, ends - now))
            if isinstance(news, Over):
                return
            if news and await self._fill_hole(news[0].entry.seq):
                await self._show(news)
            await self._flush()

    def _show_at_once(self, news: list[Shown]) -> bool:
        """Show what follows the feed's place while the task waits; False when it has to see to it."""
        if self._torn is not None or self._connection is None:
            return False
        feed, task, dialect, session = self._feed, self._task, self._dialect, self._session
        epoch = feed.after.epoch
        frames = []
        over = False
        for shown in news:
            entry = shown.entry
            if task is None or entry.task == task:
                frames.append(shown.frames(dialect, session, epoch))
                if task is not None and entry.kind == END:
                    over = True
                    break
        body = b"".join(frames)
        if body:
            if not self._connection.write_chunk(body):
                return False
            measures.bytes_out.n += len(body)
            self._spoke = self._time()
        feed.after = Cursor(epoch, news[-1].entry.seq)
        if over:
            feed.end()
        return True

    async def _show(self, news: list[Shown]) -> None:
        task, dialect, epoch = self._task, self._dialect, self._feed.after.epoch
        session = self._session
        for shown in news:
            entry = shown.entry
            if task is not None and entry.task != task:
                continue
            if self._torn is None:
                frames = shown.frames(dialect, session, epoch)
            else:
                telling = self._torn.telling(entry)
                if telling is Telling.NOT_AT_ALL:
                    continue
                whole = telling is Telling.WHOLE
                frames = (
                    dialect.replay(session, epoch, entry) if whole else shown.frames(dialect, session, epoch)
                )
            if frames:
                await self._write(frames)
            if task is not None and entry.kind == END:
                self._over = True
                break
        self._feed.after = Cursor(epoch, news[-1].entry.seq)

    async def _fill_hole(self, first: int) -> bool:
        """Tell from the history what was trimmed before seq ``first``; False when that has to be tried again."""
        after = self._feed.after
        if first == after.seq + 1:
            return True
        try:
            entries = await trimmed(self._log, self._feed.keys, after, first, self._task)
        except BrokerAway:
            return False
        for entry in entries:
            frames = self._dialect.replay(self._session, after.epoch, entry)
            if frames:
                await self._write(frames)
            if self._task is not None and entry.kind == END:
                self._over = True
                return False
        self._feed.after = Cursor(after.epoch, first - 1)
        self._torn = self._torn or Torn()
        return True

    async def _write(self, frames: bytes) -> None:
        if self._size + len(frames) > SEND_BYTES:
            await self._flush()
        self._waiting.append(frames)
        self._size += len(frames)

    async def _flush(self) -> None:
        if not self._waiting:
            return
        body = b"".join(self._waiting)
        measures.bytes_out.n += len(body)
        self._waiting.clear()
        self._size = 0
        await self._give({"type": "http.response.body", "body": body, "more_body": True})
        self._spoke = asyncio.get_running_loop().time()

    async def _give(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._settings.send_seconds):
                await self._send(message)
        except TimeoutError:
            raise SlowClientError from None
