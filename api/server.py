"""The front end as an HTTP server: alone in its process, or beside a worker in one event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from turnstream.api.app import create_app
from turnstream.api.http.connection import extension
from turnstream.api.http.error_shape import Problem
from turnstream.api.http.lean_event import LeanEvent
from turnstream.api.http.middleware import PastLayers
from turnstream.api.protocols import error_shape
from turnstream.shared.errors import BadRequest, ConfigurationError, Overloaded
from turnstream.shared.listening import BACKLOG, listen
from turnstream.shared.siblings import Siblings

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.types import Message, Scope, Send

    from turnstream.api.streaming.hub import Hub
    from turnstream.shared.agents.config import Agents
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# Where the port comes from.
SETTING = "TURNSTREAM_PORT"

# How long requests that are being answered may take at a shutdown. Longer than a stop or a clear of a session with some
# tasks takes.
GRACE_SECONDS = 10

# Of these, how long streams go on until requests that came before have their answers' beginnings: a request that meets
# the end of streams is refused. Between two looks whether there are such requests.
BEGUN_SECONDS = 5
BEGUN_LOOK_SECONDS = 0.02

# How long a request's head may take to come, and how large it may be; the HTTP server itself would wait for ever, and
# gather. A body is limited in api/http/body.py.
HEADER_SECONDS = 20.0
HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100

# How long a connection may wait for its next request. Longer than the other side keeps one that it does not use (nginx
# 60 s, see deploy/nginx.conf; Java's and Python's clients 30 s and less): else a request meets one that is being closed.
KEEP_ALIVE_SECONDS = 75

# Who is answered before all of its request is there, and goes on sending, would not read the answer of a connection
# that is closed at once. It learns that no more comes, is listened to for so long, and what it sends thrown away.
PARTING_SECONDS = 5.0

# A client that takes nothing of its answer for so long is cut. Streams have their own limit in api/streaming/sse.py.
TAKING_SECONDS = 20.0

# What is kept of an answer, beside the last write, for a client that does not take it.
WAITING_BYTES = 16 * 1024

# Connections beside those of followers: of requests that are short, or only about to be made.
MOST_OTHERS = 4096

# Connections above these, each of which has its refusal and is open for PARTING_SECONDS at most.
MOST_REFUSED = 256


class FrontEnd:
    """Serves the application.

    Duties:
        1. bind the port (0 takes a free one) before anything else, so that a taken one is told at once;
        2. serve until told to `stop`; take no new turns once told to `refuse` them;
        3. at the end: take no more connections, end streams between frames, let requests finish.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Agents,
        broker: Broker | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        check_server()
        self._settings = settings
        self._siblings = siblings or Siblings()
        self._socket: socket.socket | None = None
        self.app = create_app(settings, agents, broker, self._siblings)
        self.app.state.has_connections = True
        self.started = asyncio.Event()
        room = _Room(settings.max_followers + MOST_OTHERS)
        config = uvicorn.Config(
            PastLayers(self.app),
            http=partial(_Protocol, room),  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS - BEGUN_SECONDS,
        )
        self._server = _Server(config, self.app.state.services.hub, room, self.started)

    def bind(self) -> int:
        """Take the port, and tell which one it is.

        Raises:
            ConfigurationError: it is taken, or the address is not one of this machine.
        """
        if self._socket is None:
            self._socket = self._siblings.listening(SETTING) or listen(
                self._settings.host, self._settings.port, SETTING
            )
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
    """Answers who came before it ends the hub's streams and the connections, and leaves signals as it found them."""

    def __init__(self, config: uvicorn.Config, hub: Hub, room: _Room, up: asyncio.Event) -> None:
        super().__init__(config)
        self._hub = hub
        self._room = room
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._take_begun()
        self._hub.close()
        await super().shutdown(sockets)

    async def _take_begun(self) -> None:
        """Serve requests of connections that were accepted: another process may listen, but cannot take these over."""
        self._room.leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGUN_SECONDS):
                while any(each.is_beginning() for each in self.server_state.connections):  # type: ignore[union-attr]
                    await asyncio.sleep(BEGUN_LOOK_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would raise the signal again at the end, and kill what runs beside us.
        yield


class _Pipeline(list[Any]):
    """Requests that came behind another one: few connections ever have any, and an empty deque takes 760 bytes."""

    __slots__ = ()

    def appendleft(self, each: Any) -> None:
        self.insert(0, each)


class _Room:
    """How many connections a process may have, and which of them wait for a request, the one that rests longest first.

    ``refused``: those that found no room, the first one first; they are few, and none of the others. ``leaving``: each
    connection ends with the answer that it has now.
    """

    __slots__ = ("leaving", "most", "refused", "resting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.leaving = False
        self.resting: dict[_Protocol, None] = {}
        self.refused: dict[_Protocol, None] = {}


class _Protocol(HttpToolsProtocol):
    """One connection: what the HTTP server leaves open is bounded here.

    Duties:
        1. give a response its connection (see `Connection`);
        2. bound a request's head in bytes, headers and time, and the number of connections: a new one takes the place of
           the one that has waited for a request the longest;
        3. cut a client that does not take its answer;
        4. say in our own words and log what is wrong with a request that is none;
        5. let go of a request with its connection;
        6. take an offer to upgrade for a request like any other, with its body.
    """

    # Beside the base's attributes: a few more among them, and each connection's would take a kilobyte more.
    __slots__ = (
        "_bytes", "_count", "_deaf", "_in_head", "_lost", "_out", "_parting", "_plain", "_pressure", "_repeating", "_room",
        "_taking", "_waiting", "on_lost", "rest",
    )  # fmt: skip

    def __init__(self, room: _Room, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = room
        self.on_lost: Callable[[], None] | None = None
        self.rest: Callable[[Send], Awaitable[None]] | None = None
        self.url = b""
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._lost = self._deaf = self._in_head = self._plain = self._repeating = self._parting = False
        self._bytes = self._count = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    # ── the connection ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        self.flow._is_writable_event = LeanEvent(is_set=True)  # type: ignore[assignment]  # noqa: SLF001
        # As `write_chunk` needs them, for each event: not through the instance's dictionary.
        self._out = transport
        self._pressure = self.flow
        room = self._room
        if len(self.connections) > room.most:
            oldest = next(iter(room.resting), None)
            if oldest is None:
                self._turn_away(room.refused)
                return
            oldest.give_way()
        room.resting[self] = None
        self._wait_for_headers()

    def _turn_away(self, refused: dict[_Protocol, None]) -> None:
        self.connections.discard(self)
        if len(refused) >= MOST_REFUSED:
            next(iter(refused)).give_way()
        refused[self] = None
        self._refuse(
            503, str(Overloaded.code), "There are too many connections. Try again.", why="connections"
        )

    def give_way(self) -> None:
        """Leave at once, for another connection."""
        self._take_no_room()
        self.connections.discard(self)
        self.transport.abort()

    def _take_no_room(self) -> None:
        self._room.resting.pop(self, None)
        self._room.refused.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        self._take_no_room()
        # The base does so only when the connection was not broken.
        self._unset_keepalive_if_required()
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
        if self._waiting is None and not self._is_busy():
            self._wait_for_headers()
        # A head that began with the bytes before: it has not ended, and must not gather for ever.
        self._bytes += len(data) if self._in_head else 0
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self._is_too_large():
                self._too_large()
            else:
                why = type(error).__name__
                self._refuse(400, str(BadRequest.code), "This is not a valid HTTP request.", why=why)
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
        self._room.resting.pop(self, None)
        super().on_headers_complete()
        # Nothing has waited for it yet.
        self.cycle.message_event = LeanEvent()  # type: ignore[assignment]
        if self._room.leaving:
            self.cycle.keep_alive = False
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
        self._refuse(431, str(BadRequest.code), said, why="head too large")

    def _wait_for_headers(self) -> None:
        self._headers_came()
        self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, status: int, word: str, said: str, *, why: str) -> None:
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
        shape = error_shape(self.url.decode("latin-1").partition("?")[0])
        body = shape.body(Problem.refused(status, word, said))
        head = (
            f"content-type: {shape.content_type}\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self._leave_slowly()

    def _leave_slowly(self) -> None:
        """Close in two steps, as RFC 9112 (9.6) has it: the client reads the answer to its end, whatever it still sends."""
        self._deaf = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self._see_it_taken()
        self._headers_came()
        self._waiting = self.loop.call_later(PARTING_SECONDS, self.transport.close)
        if self in self.connections:
            self._room.resting[self] = None

    # ── its answer ──

    def on_response_complete(self) -> None:
        pipelined = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            self._see_it_taken()
        elif self._parting:
            self._leave_slowly()
        else:
            taken = self._see_it_taken()
            if not pipelined:
                if taken:
                    self._room.resting[self] = None
                if self._in_head:
                    # It has its time from now on; until then what came of it disturbed no other.
                    self._wait_for_headers()

    def _see_it_taken(self) -> bool:
        """Whether the client has taken what was written; one that does not go on taking it is cut."""
        left = self.transport.get_write_buffer_size()
        if left:
            self._taking = self.loop.call_later(TAKING_SECONDS, self._look_whether_it_takes, left)
        return not left

    def _look_whether_it_takes(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        elif self._see_it_taken() and not self._is_busy():
            self._room.resting[self] = None

    def is_beginning(self) -> bool:
        """Whether the connection is new, or a request came of which the answer has not begun."""
        return not self._deaf and (self._in_head or self.cycle is None or not self.cycle.response_started)

    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # ── as `Connection` ──

    def is_lost(self) -> bool:
        return self._lost

    def awaits_body(self, scope: Scope) -> bool:
        cycle = self.cycle
        # Another one came behind it: then it is all there.
        return cycle is not None and cycle.scope is scope and cycle.more_body

    def part(self) -> None:
        self._parting = True
        # The server would close at once.
        self.cycle.keep_alive = True

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
