"""What a worker tells those who watch it: metrics and health, over HTTP, where the operator wants that."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import structlog

from turnstream.shared.errors import ConfigurationError
from turnstream.shared.prometheus import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from turnstream.shared.prometheus import Readings
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)


class Status:
    """A small server in the worker's own loop, so that a loop that stands still does not look healthy.

    ``port`` is the one that it listens on, while `served`; 0 when it does not.
    """

    def __init__(
        self, settings: Settings, gauges: Callable[[], Readings], trouble: Callable[[], Awaitable[str]]
    ) -> None:
        self._host = settings.host
        self._wanted = settings.metrics_port
        self._gauges = gauges
        self._trouble = trouble
        self.port = 0

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Serve for as long as this is entered; without a port in the settings, do nothing.

        Raises:
            ConfigurationError: the port is taken.
        """
        if self._wanted is None:
            yield
            return
        import uvicorn

        class Server(uvicorn.Server):
            """Leaves signals to the worker."""

            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        listening = self._bind(self._wanted)
        self.port = listening.getsockname()[1]
        log.info("worker.status", host=self._host, port=self.port)
        config = uvicorn.Config(
            self._app(), ws="none", lifespan="off", log_config=None, access_log=False, server_header=False
        )
        server = Server(config)
        serving = asyncio.create_task(server.serve([listening]), name="status")
        try:
            yield
        finally:
            server.should_exit = True
            server.force_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            listening.close()
            self.port = 0

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            return socket.create_server((self._host, port), family=family)
        except OSError as error:
            raise ConfigurationError(
                f"TURNSTREAM_HOST = {self._host!r}, TURNSTREAM_METRICS_PORT = {port}: {error.strerror or error}"
            ) from None

    def _app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        async def metrics(request: Request) -> Response:  # noqa: ARG001 - a route's signature
            return Response(exposition(self._gauges()), headers={"Content-Type": CONTENT_TYPE})

        async def up(request: Request) -> Response:  # noqa: ARG001
            return JSONResponse({"status": "up"})

        async def ready(request: Request) -> Response:  # noqa: ARG001
            trouble = await self._trouble()
            return JSONResponse({"status": trouble or "ready"}, 503 if trouble else 200)

        return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", up), Route("/readyz", ready)])
