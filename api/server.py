"""The front end as an HTTP server: alone in its process, or beside a worker in one event loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.app import create_app
from api.connection import extension
from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from api.hub import Hub
    from shared.agents import Agents
    from shared.broker import Broker
    from shared.settings import Settings

log = structlog.get_logger(__name__)

# How long requests that are being answered may take at a shutdown; streams end at once. Longer than a
# stop or a clear of a session with some tasks takes.
GRACE_SECONDS = 10

# How long a request's headers may take to come; the HTTP server itself would wait for ever. A body's time is
# limited in api/body.py.
HEADER_SECONDS = 20.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class FrontEnd:
    """Serves the application.

    Duties:
        1. bind the port (0 takes a free one) before anything else, so that a taken one is told at once;
        2. serve until told to stop, by `stop` or, with ``signals``, by SIGTERM or SIGINT;
        3. at the end: take no more connections, end streams between frames, let requests finish.
    """

    def __init__(
        self, settings: Settings, agents: Agents, broker: Broker | None = None, *, signals: bool = True
    ) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self.app = create_app(settings, agents, broker)
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
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config, self.app.state.services.hub, self.started, signals=signals)

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

    def stop(self) -> None:
        """Have `serve` come to its end."""
        self._server.should_exit = True


async def serve_api(settings: Settings, agents: Agents, broker: Broker | None = None) -> None:
    """Serve the front end until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: a setting is wrong, the port is taken, or the broker refuses us.
    """
    await FrontEnd(settings, agents, broker).serve()


class _Server(uvicorn.Server):
    """Ends the hub's streams before it waits for connections, and leaves signals as it found them."""

    def __init__(self, config: uvicorn.Config, hub: Hub, up: asyncio.Event, *, signals: bool) -> None:
        super().__init__(config)
        self._hub = hub
        self._up = up
        self._signals = signals

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
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self.handle_exit, each, None)
        try:
            yield
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)


class _Protocol(HttpToolsProtocol):
    """Gives a response its connection (see `Connection`), and headers their time."""

    # Beside the base's attributes: a few more among them, and each connection's would take a kilobyte more.
    __slots__ = ("_lost", "_out", "_pressure", "_waiting", "on_lost")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_lost: Callable[[], None] | None = None
        self._lost = False
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # As `write_chunk` needs them, for each event: not through the instance's dictionary.
        self._out = transport
        self._pressure = self.flow
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)
        self._lost = True
        if self.on_lost is not None:
            self.on_lost()

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()

    def _wait_for_headers(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_headers()
        self.scope["extensions"] = extension(self)  # type: ignore[typeddict-item]

    def is_lost(self) -> bool:
        return self._lost

    def abort(self) -> None:
        self.transport.abort()

    def write_chunk(self, body: bytes) -> bool:
        if self._pressure.write_paused:
            return False
        # Whoever watches for the client's leave is told by the server; until then there is nobody to write to.
        out = self._out
        if not out.is_closing():
            out.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True
