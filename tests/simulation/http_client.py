"""An HTTP client's transport in a few lines: what is simulated is the server's side, and libraries take most of the time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import httptools
import httpx
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# Pieces of a body that wait to be read; with more, the connection is not read.
MOST_UNREAD = 16


class SimulatedTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over connections that are used again, each for one request at a time."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Connection]] = {}

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions["timeout"]
        port = request.url.port or 80
        idle = self._idle.setdefault(port, [])
        while idle and not idle[-1].open:
            idle.pop()
        connection = idle.pop() if idle else await _connected(port, timeout["connect"])
        try:
            connection.send(request)
            await connection.more(timeout["read"], lambda: connection.begun)
        except BaseException:
            connection.close()
            raise
        body = _Body(connection, idle, timeout["read"])
        return httpx.Response(connection.status, headers=connection.headers, stream=body)

    @override
    async def aclose(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()


class NoCookies(httpx.Cookies):
    """Nobody sets any: to look for them costs more than the rest of a request."""

    @override
    def extract_cookies(self, response: httpx.Response) -> None:
        """There are none."""


async def _connected(port: int, seconds: float) -> _Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
    except ConnectionRefusedError as error:
        raise httpx.ConnectError(str(error)) from None
    except TimeoutError:
        raise httpx.ConnectTimeout("no connection in time") from None
    return connection


class _Connection(asyncio.Protocol):
    """Requests and their responses, one after the other.

    Attributes:
        begun, complete: whether the response's head is there, and its end.
        pieces: of its body, not yet read.
    """

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._changed: asyncio.Future[None] | None = None
        self._lost: httpx.TransportError | None = None
        self._expect()

    def _expect(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.begun = self.complete = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: deque[bytes] = deque()

    @property
    def open(self) -> bool:
        """Whether another request may be sent."""
        return self._lost is None and not self._transport.is_closing()

    def send(self, request: httpx.Request) -> None:
        """Send a request."""
        self._expect()
        if self._lost is not None:
            raise self._lost
        head = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
        fields = b"".join(b"%b: %b\r\n" % field for field in request.headers.raw)
        self._transport.write(head + fields + b"\r\n" + request.content)

    async def more(self, seconds: float, enough: Callable[[], object]) -> None:
        """Wait until there is enough of the response.

        Raises:
            httpx.TransportError: the connection was lost, or nothing came in time.
        """
        while not enough():
            if self._lost is not None:
                raise self._lost
            self._transport.resume_reading()
            self._changed = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed
            except TimeoutError:
                raise httpx.ReadTimeout("nothing came in time") from None
            finally:
                self._changed = None

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._lost = self._lost or httpx.ReadError("closed")
        self._transport.close()

    # ── as a protocol ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(httpx.RemoteProtocolError(str(error)))
        if len(self.pieces) > MOST_UNREAD:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._lose(httpx.RemoteProtocolError("closed by the server"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(httpx.ReadError(str(exc)))

    def _lose(self, error: httpx.TransportError) -> None:
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # ── as a parser's listener ──

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.begun = True

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, idle: list[_Connection], seconds: float) -> None:
        self._connection = connection
        self._idle = idle
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        while True:
            await connection.more(self._seconds, lambda: connection.pieces or connection.complete)
            if not connection.pieces:
                return
            pieces = b"".join(connection.pieces)
            connection.pieces.clear()
            yield pieces

    async def aclose(self) -> None:
        if self._connection.complete and self._connection.open:
            self._idle.append(self._connection)
        else:
            self._connection.close()
