"""One answer of all entries of a task, for clients that do not want a stream."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from turnstream.api.http.connection import Watched, connection_of
from turnstream.api.streaming.reading import entries_of
from turnstream.api.streaming.sse import HEADERS
from turnstream.shared.errors import NoTask, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.leaving import Left
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log


class WholeAnswer:
    """Waits until there is enough to answer. A client that leaves stops nothing."""

    content_type = b"application/json"

    def __init__(
        self,
        feed: Feed,
        start: Start,
        reader: Log,
        *,
        headers: Headers = (),
        left: Left | None = None,
    ) -> None:
        """``left`` is called when the client leaves before the answer, or is sent to another front end for it."""
        if start.task is None:
            raise NoTask
        self._feed = feed
        feed.after, feed.task = start.after, start.task
        self._task: str = start.task
        self._log = reader
        self._headers = headers
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Serve the response."""
        with self._feed:
            connection = connection_of(scope)
            with Watched(connection, self._feed.end):
                answer = await self.wait()
                if answer is None:
                    if self._left is not None:
                        await self._left()
                    if connection.is_lost():
                        return
                    raise ShuttingDown
        status, body = answer
        length = str(len(body)).encode()
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", length),
            *HEADERS,
            *self._headers,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def wait(self) -> tuple[int, bytes] | None:
        """Status and JSON of the answer; None when the feed was ended."""
        async with aclosing(entries_of(self._feed, self._log, self._task)) as entries:
            return await self.answer(entries)

    async def answer(self, entries: AsyncGenerator[Entry | None, None]) -> tuple[int, bytes] | None:
        """Status and JSON of the answer; None when the entries ended too early."""
        raise NotImplementedError


class Document(Protocol):
    """An encoder that makes one document of all that it is fed with."""

    @property
    def over(self) -> bool:
        """Whether the document is complete."""
        ...

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """Read an entry."""
        ...

    def quiet(self) -> None:
        """Make no frames."""
        ...

    def outcome(self) -> tuple[int, dict[str, Any], Headers]:
        """Status, JSON and further headers of the answer."""
        ...


class WholeDocument(WholeAnswer):
    """Answers with what an encoder has made when it is over."""

    def __init__(
        self,
        feed: Feed,
        start: Start,
        reader: Log,
        encoder: Document,
        *,
        headers: Headers = (),
        left: Left | None = None,
    ) -> None:
        super().__init__(feed, start, reader, headers=headers, left=left)
        encoder.quiet()
        self._encoder = encoder

    async def answer(self, entries: AsyncGenerator[Entry | None, None]) -> tuple[int, bytes] | None:
        """The document."""
        async for entry in entries:
            if entry is None:
                continue
            self._encoder.feed(0, entry)
            if self._encoder.over:
                status, document, headers = self._encoder.outcome()
                self._headers = (*self._headers, *headers)
                return status, orjson.dumps(document)
        return None
