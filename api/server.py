"""The front end as an HTTP server: alone in its process, or beside a worker in one event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools
import orjson
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.app import create_app
from api.connection import extension
from api.edge import PARTING_SECONDS
from shared.errors import BadRequest, ConfigurationError, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Message, Scope, Send

    from api.hub import Hub
    from shared.agents import Agents
    from shared.broker import Broker
    from shared.settings import Settings

log = structlog.get_logger(__name__)

# How long requests that are being answered may take at a shutdown; streams end at once. Longer than a
# stop or a clear of a session with some tasks takes.
GRACE_SECONDS = 10

# How long a request's head may take to come, and how large it may be; the HTTP server itself would wait for ever, and
# gather. A body is limited in api/body.py.
HEADER_SECONDS = 20.0
HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100

# A client that takes nothing of its answer for so long is cut. Streams have their own limit in api/stream.py.
TAKING_SECONDS = 20.0

# What is kept of an answer, beside the last write, for a client that does not take it.
WAITING_BYTES = 16 * 1024

# Connections beside those of followers: of requests that are short, or only about to be made.
MOST_OTHERS = 4096


class FrontEnd:
    """Serves the application.

    Duties:
        1. bind the port (0 takes a free one) before anything else, so that a taken one is told at once;
        2. serve until told to `stop`; take no new turns once told to `refuse` them;
        3. at the end: take no more connections, end streams between frames, let requests finish.
    """

    def __init__(self, settings: Settings, agents: Agents, broker: Broker | None = None) -> None:
        check_server()
        self._settings = settings
        self._socket: socket.socket | None = None
        self.app = create_app(settings, agents, broker)
        self.app.state.has_connections = True
        self.started = asyncio.Event()
        config = uvicorn.Config(
            self.app,
            http=_Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=settings.max_followers + MOST_OTHERS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config, self.app.state.services.hub, self.started)

    def bind(self) -> int:
        """Take the port, and tell which one it is.

        Raises:
            ConfigurationError: it is taken, or the address is not one of this machine.
        """
        if self._socket is None:
            host, port = self._settings.host, self._settings.port
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                self._socket = socket.create_server((host, port), family=family, backlog=2048)
                # Connections inherit it. asyncio's own loop would leave answers waiting for an ACK.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                raise ConfigurationError(
                    f"TURNSTREAM_HOST = {host!r}, TURNSTREAM_PORT = {port}: {error.strerror or error}"
                ) from None
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Serve until stopped.

        Raises:
            ConfigurationError: as `bind`; or the broker refuses us.
        """
        port = self.bind()
        if self._socket is None:
            raise RuntimeError("bound, but without a socket")
        log.info("api.serving", host=self._settings.host, port=port)
        watching = asyncio.create_task(self._watch(), name="watch")
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            watching.cancel()
            [outcome] = await asyncio.gather(watching, return_exceptions=True)
        log.info("api.stopped")
        if isinstance(outcome, Exception):
            raise outcome

    async def _watch(self) -> None:
        """End with what the application cannot do without."""
        await self.started.wait()
        try:
            await self.app.state.attending
        except Exception:
            self.stop()
            raise

    def refuse(self) -> None:
        """Refuse what would begin now, while what runs comes to its end."""
        self.app.state.services.limiter.close()

    def stop(self) -> None:
        """Have `serve` come to its end."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Ends the hub's streams before it waits for connections, and leaves signals as it found them."""

    def __init__(self, config: uvicorn.Config, hub: Hub, up: asyncio.Event) -> None:
        super().__init__(config)
        self._hub = hub
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self._hub.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would raise the signal again at the end, and kill what runs beside us.
        yield


class _Protocol(HttpToolsProtocol):
    """One connection: what the HTTP server leaves open is bounded here.

    Duties:
        1. give a response its connection (see `Connection`);
        2. bound a request's head in bytes, headers and time, and the number of connections;
        3. cut a client that does not take its answer;
        4. say in our own words and log what is wrong with a request that is none;
        5. let go of a request with its connection;
        6. take an offer to upgrade for a request like any other, with its body.
    """

    # Beside the base's attributes: a few more among them, and each connection's would take a kilobyte more.
    __slots__ = (
        "_bytes", "_count", "_deaf", "_in_head", "_lost", "_out", "_plain", "_pressure", "_repeating", "_taking", "_waiting",
        "on_lost",
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_lost: Callable[[], None] | None = None
        self._lost = self._deaf = self._in_head = self._plain = self._repeating = False
        self._bytes = self._count = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    # ── the connection ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        # As `write_chunk` needs them, for each event: not through the instance's dictionary.
        self._out = transport
        self._pressure = self.flow
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._refuse(
                503, Overloaded.code, "There are too many connections. Try again.", why="connections"
            )
        else:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)
        self._lost = True
        if self._taking is not None:
            self._taking.cancel()
        if self.on_lost is not None:
            self.on_lost()
        # They know us: memory would come back only when the collector finds the circle.
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """As the base does it, with a limit, and refusals of our own."""
        self._unset_keepalive_if_required()
        if self._deaf:
            return
        # A head that began with the bytes before: it has not ended, and must not gather for ever.
        self._bytes += len(data) if self._in_head else 0
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self._is_too_large():
                self._too_large()
            else:
                why = type(error).__name__
                self._refuse(400, BadRequest.code, "This is not a valid HTTP request.", why=why)
            return
        if self._in_head and self._is_too_large():
            self._too_large()

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offered:
                rest = rest[offered.args[0] :]
                self._decline()
            else:
                return

    def _decline(self) -> None:
        """Go on behind a head that offers to upgrade.

        The parser takes what follows for another protocol, and the body for the next request: a new one is told the
        head again, as far as it says where the body ends.
        """
        framing = [
            b"%b: %b\r\n" % header
            for header in self.headers
            if header[0] in (b"content-length", b"transfer-encoding")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._repeating = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        finally:
            self._repeating = False

    # ── a request's head ──

    def on_message_begin(self) -> None:
        if self._repeating:
            return
        super().on_message_begin()
        self._in_head = True
        self._bytes = self._count = 0
        self.scope["extensions"] = extension(self)  # type: ignore[typeddict-item]

    def on_url(self, url: bytes) -> None:
        if self._repeating:
            return
        super().on_url(url)
        self._check_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._repeating:
            return
        self._count += 1
        self._bytes = max(self._bytes, len(name) + len(value))
        super().on_header(name, value)
        self._check_head()

    def on_headers_complete(self) -> None:
        if self._repeating:
            return
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._bytes = size
        self._check_head()
        self._headers_came()
        super().on_headers_complete()
        self._plain = self.scope.get("http_version") == "1.0"
        if self._plain:
            self.cycle.send = partial(_send_plain, self.cycle, self.cycle.send)  # type: ignore[method-assign, arg-type]

    def on_message_complete(self) -> None:
        # Behind an offer to upgrade the body is still to come: see `_decline`.
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _check_head(self) -> None:
        if self._is_too_large():
            # It ends the parser's work: see `data_received`.
            raise ValueError("head too large")

    def _is_too_large(self) -> bool:
        return self._bytes > HEAD_BYTES or self._count > MOST_HEADERS

    def _too_large(self) -> None:
        said = f"The request's head is larger than {HEAD_BYTES} bytes or {MOST_HEADERS} headers."
        self._refuse(431, BadRequest.code, said, why="head too large")

    def _wait_for_headers(self) -> None:
        self._headers_came()
        self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, status: int, code: str | int, said: str, *, why: str) -> None:
        """Answer what is no request, and hear no more; behind another request, its answer is the last one."""
        self._deaf = True
        log.warning("request.malformed", status=status, why=why)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body or cycle.response_started or self.pipeline:
                cycle.keep_alive = False
                return
            # Its own body: nothing more of it will come, and this is its answer. An event stream is not written past it.
            self._plain = cycle.disconnected = True
            cycle.message_event.set()
        body = orjson.dumps({"code": code, "message": said})
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        # Closed at once, a client that is still sending would find a broken connection instead of the answer.
        self.transport.write_eof()
        self._headers_came()
        self._waiting = self.loop.call_later(PARTING_SECONDS, self.transport.abort)

    # ── its answer ──

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if left := self.transport.get_write_buffer_size():
            self._taking = self.loop.call_later(TAKING_SECONDS, self._look_whether_it_takes, left)
        if not self.pipeline and not self.transport.is_closing():
            # The next head has its time from now on; until then what came of it disturbed nobody.
            self._wait_for_headers()

    def _look_whether_it_takes(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        elif left:
            self._taking = self.loop.call_later(TAKING_SECONDS, self._look_whether_it_takes, left)

    # ── as `Connection` ──

    def is_lost(self) -> bool:
        return self._lost

    def awaits_body(self, scope: Scope) -> bool:
        cycle = self.cycle
        # Another one came behind it: then it is all there.
        return cycle is not None and cycle.scope is scope and cycle.more_body

    def abort(self) -> None:
        self.transport.abort()

    def write_chunk(self, body: bytes) -> bool:
        if self._pressure.write_paused or self._plain:
            return False
        # Whoever watches for the client's leave is told by the server; until then there is nobody to write to.
        out = self._out
        if not out.is_closing():
            out.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


async def _send_plain(cycle: RequestResponseCycle, send: Send, message: Message) -> None:
    """To a client of HTTP/1.0, which knows no chunks: the answer ends with its connection."""
    if message["type"] == "http.response.start":
        cycle.chunked_encoding = False
    else:
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)


# What `_Protocol` uses of the base's and of a request's attributes: methods, and what their constructors set.
_METHODS = (
    "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url", "on_header",
    "on_headers_complete", "on_message_complete", "on_response_complete", "_unset_keepalive_if_required",
)  # fmt: skip
_CONNECTION = {
    "connections",
    "limit_concurrency",
    "parser",
    "flow",
    "scope",
    "headers",
    "cycle",
    "pipeline",
    "loop",
}
_CYCLE = {
    "scope",
    "more_body",
    "keep_alive",
    "response_started",
    "response_complete",
    "disconnected",
    "message_event",
    "chunked_encoding",
    "expected_content_length",
}


def check_server() -> None:
    """See to it that the HTTP server is one that `_Protocol` knows.

    Raises:
        ConfigurationError: another version is installed, which has changed.
    """
    lacking = [
        *(name for name in _METHODS if not callable(getattr(HttpToolsProtocol, name, None))),
        *sorted(_CONNECTION - set(HttpToolsProtocol.__init__.__code__.co_names)),
        *sorted(_CYCLE - set(RequestResponseCycle.__init__.__code__.co_names)),
    ]
    if lacking:
        raise ConfigurationError(
            f"uvicorn {uvicorn.__version__} is not one that this front end knows (it lacks {', '.join(lacking)}): "
            "install the version that requirements.lock names"
        )
