"""The deployment as operators see it: processes, counters, agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.admin.params import body_of
from turnstream.api.admin.schemas import AgentList, Processes, Stats, WorkerOrdered
from turnstream.api.admin.tasks import BASE
from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.shared.errors import NoWorker
from turnstream.shared.worker_orders import Order, give

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services


log = structlog.get_logger(__name__)


class WorkerBody(BaseModel):
    """Which worker."""

    model_config = ConfigDict(extra="forbid")

    worker: Annotated[str, Field(min_length=1, max_length=256)]


class AdminDeploymentRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/workers", self.workers, "GET"),
            route(BASE + "/workers/pause", self.pause, "POST"),
            route(BASE + "/workers/resume", self.resume, "POST"),
            route(BASE + "/workers/drain", self.drain, "POST"),
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

    async def pause(self, request: Request) -> Response:
        """Have a worker claim nothing more; what it runs goes on."""
        return await self._order(request, Order.PAUSE)

    async def resume(self, request: Request) -> Response:
        """Have a paused worker go on."""
        return await self._order(request, Order.RESUME)

    async def drain(self, request: Request) -> Response:
        """Have a worker end as if its process were told to: turns that do not end in time go on at other ones."""
        return await self._order(request, Order.DRAIN)

    async def _order(self, request: Request, order: Order) -> Response:
        """Give the worker that the body names an order.

        Raises:
            NoWorker: there is none of that name.
        """
        services = self._services
        key = await services.auth.admin(request)
        body = await body_of(request, services.settings, WorkerBody)
        if body.worker not in {each["worker"] for each in await services.deployment_stats.workers()}:
            raise NoWorker
        await give(services.broker.primary, body.worker, order)
        log.info("admin.worker_ordered", key=key.id, worker=body.worker, order=order.value)
        return answer(WorkerOrdered, {"worker": body.worker, "order": order.value})

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
        held = await services.model_states.agents_held()
        found = [
            {
                **({"held_since": held[spec.name]} if spec.name in held else {}),
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
