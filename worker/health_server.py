"""What a worker tells those who watch it: metrics and health, over HTTP, where the operator wants that."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import structlog

from turnstream.shared.listening import listen
from turnstream.shared.prometheus import CONTENT_TYPE, exposition
from turnstream.shared.siblings import READY, UP, Question

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from turnstream.shared.prometheus import Readings
    from turnstream.shared.settings import Settings
    from turnstream.shared.siblings import Siblings

log = structlog.get_logger(__name__)

# Where the port comes from.
SETTING = "TURNSTREAM_METRICS_PORT"


class Status:
    """A small server in the worker's own loop, so that a loop that stands still does not look healthy.

    ``port`` is the one that it listens on, while `served`; 0 when it does not.
    """

    def __init__(
        self,
        settings: Settings,
        siblings: Siblings,
        gauges: Callable[[], Readings],
        trouble: Callable[[], Awaitable[str]],
    ) -> None:
        siblings.answer(Question.WORKER_READY, trouble)
        siblings.answer(Question.WORKER_METRICS, self._metrics)
        self._siblings = siblings
        self._host = settings.host
        self._wanted = settings.metrics_port
        self._gauges = gauges
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

        listening = self._siblings.listening(SETTING) or listen(self._host, self._wanted, SETTING)
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

    async def _metrics(self) -> str:
        return exposition(self._gauges())

    def _app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        async def metrics(request: Request) -> Response:  # noqa: ARG001 - a route's signature
            text = await self._siblings.metrics(Question.WORKER_METRICS)
            return Response(text, headers={"Content-Type": CONTENT_TYPE})

        async def up(request: Request) -> Response:  # noqa: ARG001
            status = await self._siblings.alive()
            return JSONResponse({"status": status}, 200 if status == UP else 503)

        async def ready(request: Request) -> Response:  # noqa: ARG001
            status = await self._siblings.ready(Question.WORKER_READY)
            return JSONResponse({"status": status}, 200 if status == READY else 503)

        return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", up), Route("/readyz", ready)])
