"""``/metrics`` of a front end: what it counts, and what it sees of the deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from api.asked import route
from shared import measures
from shared.broker import is_trouble
from shared.exposition import CONTENT_TYPE, exposition
from shared.tasks import PARKED, QUEUED, RUNNING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from api.services import Services
    from shared.exposition import Readings


class MetricsRoutes:
    """Serves Prometheus."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The route."""
        return [route("/metrics", self.metrics, "GET")]

    async def metrics(self, request: Request) -> Response:
        """Everything, in Prometheus' text format."""
        if not self._services.settings.metrics_open:
            await self._services.auth.admin(request)
        return Response(exposition(await self._readings()), headers={"Content-Type": CONTENT_TYPE})

    async def _readings(self) -> Readings:
        hub = self._services.hub
        own = {measures.followers: hub.followers, measures.sessions_followed: hub.sessions}
        try:
            stats = await self._services.overview.stats()
        except Exception as error:
            # The broker is away: what this process knows by itself is told all the same.
            if not is_trouble(error):
                raise
            return own
        return own | {
            measures.queue_depth: stats["queue"]["depth"],
            measures.queue_age: stats["queue"]["oldest_seconds"],
            measures.tasks: {status: stats["tasks"][status] for status in (QUEUED, RUNNING, PARKED)},
            measures.workers: stats["workers"]["count"],
            measures.front_ends: stats["front_ends"]["count"],
        }
