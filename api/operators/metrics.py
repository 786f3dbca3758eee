"""``/metrics`` of a front end: what it counts, and what it sees of the deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from turnstream.api.http.params import route
from turnstream.shared import metrics
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.prometheus import CONTENT_TYPE, exposition
from turnstream.shared.session.status import LIVE
from turnstream.shared.siblings import Question

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.services import Services
    from turnstream.shared.prometheus import Readings

# A model's states by their number.
_STATES = ("closed", "probing", "open", "held")


class MetricsRoutes:
    """Serves Prometheus."""

    def __init__(self, services: Services) -> None:
        self._services = services
        services.siblings.answer(Question.FRONT_END_METRICS, self._own)

    def routes(self) -> list[Route]:
        """The route."""
        return [route("/metrics", self.metrics, "GET")]

    async def metrics(self, request: Request) -> Response:
        """Everything, in Prometheus' text format, of all processes behind this port."""
        if not self._services.settings.metrics_open:
            await self._services.auth.admin(request)
        text = await self._services.siblings.metrics(Question.FRONT_END_METRICS)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def _own(self) -> str:
        return exposition(await self._readings())

    async def _readings(self) -> Readings:
        hub = self._services.hub
        own = {metrics.followers: hub.followers, metrics.sessions_followed: hub.sessions}
        services = self._services
        try:
            stats = await services.deployment_stats.once.stats()
            models = await services.model_states.once.listed(await services.models(), services.agents.limits)
        except Exception as error:
            # The broker is away: what this process knows by itself is told all the same.
            if not is_transient(error):
                raise
            return own
        return own | {
            metrics.queue_depth: stats["queue"]["depth"],
            metrics.queue_age: stats["queue"]["oldest_seconds"],
            metrics.tasks: {status: stats["tasks"][status] for status in sorted(LIVE)},
            metrics.turns_waiting: stats["tasks"]["waiting"],
            metrics.model_states: {each["model"]: _STATES.index(each["state"]) for each in models},
            metrics.model_requests: {each["model"]: each["running"] for each in models if "limit" in each},
            metrics.workers: stats["workers"]["count"],
            metrics.front_ends: stats["front_ends"]["count"],
        }
