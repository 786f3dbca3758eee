"""The client of OpenAI and of endpoints that are compatible with it, on a transport that costs less, with lean streams.

Requests, retries, timeouts, errors and what is made of an answer are the library's. Ours are, by what the libraries offer
for it: the HTTP transport (aiohttp, a choice of openai's), and the decoder of a stream's events.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient
from pydantic_ai.models import create_async_httpx2_client
from pydantic_ai.providers.openai import OpenAIProvider

from turnstream.worker.agents.delta_listener import window
from turnstream.worker.agents.openai_stream import Decoder, Deltas, transport_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from openai._streaming import SSEBytesDecoder, SSEDecoder

# The longest wait for a retry in place; the turn is released for a longer one.
MOST_IN_PLACE_SECONDS = 2.0

# As many as the library's own client keeps.
_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)

_PIECE_BYTES = 64 * 1024

# Of an answer's head; aiohttp's own 8 KiB and 128 are less than gateways before a model may send.
HEAD_BYTES = 100 * 1024
MOST_HEADERS = 1000

# The most that the transport gives at once: behind a read of so much there is more already, and nothing to wait for.
READ_BYTES = 16 * 1024


class LeanProvider(OpenAIProvider):
    """A provider like another one, whose client reads streams lean."""

    def __init__(self, plain: OpenAIProvider) -> None:
        http = _http_client()
        super().__init__(
            openai_client=_Client(
                api_key=plain.client.api_key, base_url=plain.client.base_url, http_client=http
            )
        )
        # Closed with the last model that uses it, and made anew for the next.
        self._own_http_client = http
        self._http_client_factory = _http_client


class _Client(AsyncOpenAI):
    def _should_retry(self, response: httpx2.Response) -> bool:
        """Whether to retry in place, for which the turn keeps its worker: not when the provider asks for a longer wait."""
        asked = self._parse_retry_after_header(response.headers)
        return (asked is None or asked <= MOST_IN_PLACE_SECONDS) and super()._should_retry(response)

    def _make_sse_decoder(self) -> SSEDecoder | SSEBytesDecoder:
        return Decoder()

    def _process_response_data(self, *, data: object, cast_to: Any, response: httpx2.Response) -> Any:
        """The library's object of an event's data."""
        construct = super()._process_response_data
        if isinstance(data, Deltas):
            return data.build(lambda each: construct(data=each, cast_to=cast_to, response=response))
        return construct(data=data, cast_to=cast_to, response=response)


class _HttpClient(DefaultAioHttpClient):
    def _init_transport(self, *given: Any, **more: Any) -> Any:
        return _Transport(super()._init_transport(*given, **more))

    def _init_proxy_transport(self, *given: Any, **more: Any) -> Any:
        return _Transport(super()._init_proxy_transport(*given, **more))

    async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:
        """Send a request.

        Raises:
            httpx2.TransportError: it was not answered.
        """
        with transport_errors(request):
            return await super().send(_in_pieces(request), **more)


def _in_pieces(request: httpx2.Request) -> httpx2.Request:
    """The request, whose body is written in pieces if it is large: aiohttp writes bytes in one go, and warns of a large body."""
    if len(request.content) <= _PIECE_BYTES:
        return request
    return httpx2.Request(
        request.method,
        request.url,
        headers=request.headers,
        content=_Pieces(request.content),
        extensions=request.extensions,
    )


class _Pieces:
    """The bytes of a body; can be gone through again, for a redirect."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _PIECE_BYTES):
            yield self._body[start : start + _PIECE_BYTES]


class _Transport(httpx2.AsyncBaseTransport):
    """The library's, with a session that takes as large a head of an answer as its own client, and paced streams."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        plain.client = self._session

    def _session(self) -> aiohttp.ClientSession:
        limits: httpx2.Limits = self._plain.limits
        connector = aiohttp.TCPConnector(
            ssl=self._plain.ssl_context,
            limit=limits.max_connections or 0,
            keepalive_timeout=limits.keepalive_expiry,
        )
        return aiohttp.ClientSession(
            connector=connector, max_line_size=HEAD_BYTES, max_field_size=HEAD_BYTES, max_headers=MOST_HEADERS
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        response: httpx2.Response = await self._plain.handle_async_request(request)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _PacedStream(response.stream)
        return response

    async def aclose(self) -> None:
        """Close the session."""
        await self._plain.aclose()


class _PacedStream(httpx2.AsyncByteStream):
    """A stream of events, read in larger pieces when the process is busy (see `DeltaListener`).

    What comes meanwhile stays in the system's buffer: to be woken up for each piece costs as much as all of them together.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self._answer: aiohttp.ClientResponse = plain._aiohttp_response  # noqa: SLF001 - no other way to its socket

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._plain:
            # Without a connection it has come to its end.
            connection = self._answer.connection
            if connection is None or len(data) == READ_BYTES or not (seconds := window()):
                yield data
                continue
            with _paused(connection.transport):
                yield data
                await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """Close the connection, unless all was read."""
        await self._plain.aclose()


@contextmanager
def _paused(socket: asyncio.Transport | None) -> Iterator[None]:
    """Read nothing meanwhile."""
    if socket is None or socket.is_closing():
        yield
        return
    socket.pause_reading()
    try:
        yield
    finally:
        if not socket.is_closing():
            socket.resume_reading()


def _http_client() -> httpx2.AsyncClient:
    """As the library makes it: its timeouts, its name, its limits."""
    like = create_async_httpx2_client()
    return _HttpClient(
        timeout=like.timeout,
        headers=like.headers,
        event_hooks=like.event_hooks,
        limits=_LIMITS,
        follow_redirects=like.follow_redirects,
    )
