"""The deployment as operators see it: processes, counters, agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.admin.schemas import AgentList, Processes, Stats
from turnstream.api.admin.tasks import BASE
from turnstream.api.http.answers import answer
from turnstream.api.http.params import route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services


class AdminDeploymentRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/workers", self.workers, "GET"),
            route(BASE + "/stats", self.stats, "GET"),
            route(BASE + "/agents", self.agents, "GET"),
        ]

    async def workers(self, request: Request) -> Response:
        """The processes that showed signs of life."""
        services = self._services
        await services.auth.admin(request)
        deployment_stats = services.deployment_stats
        workers = await deployment_stats.workers()
        front_ends = await deployment_stats.front_ends()
        return answer(Processes, {"workers": workers, "front_ends": front_ends})

    async def stats(self, request: Request) -> Response:
        """Queue, tasks, processes and totals in numbers."""
        services = self._services
        await services.auth.admin(request)
        stats = await services.deployment_stats.stats()
        return answer(Stats, stats)

    async def agents(self, request: Request) -> Response:
        """The agents that keys can select."""
        services = self._services
        await services.auth.admin(request)
        found = [
            {
                "agent": spec.name,
                "model": spec.python or spec.model,
                "busy": spec.busy,
                "images": spec.images,
                "simple": spec.simple,
                "description": spec.description,
            }
            for spec in services.agents
        ]
        return answer(AgentList, {"agents": found})
