"""Whether this front end is up and of use, and what version it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.api.http.schemas import Version
from turnstream.api.operators.schemas import Health
from turnstream.shared.siblings import READY, UP, Question
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services


class HealthRoutes:
    """Answers load balancers and orchestrators; needs no key."""

    def __init__(self, services: Services) -> None:
        self._services = services
        services.siblings.answer(Question.FRONT_END_READY, self._trouble)

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("/healthz", self.up, "GET", "HEAD"),
            route("/readyz", self.ready, "GET", "HEAD"),
            route("/version", self.version, "GET"),
        ]

    async def up(self, request: Request) -> Response:  # noqa: ARG002 - a route's signature
        """The processes run. It says nothing of the broker: to restart us does not bring that back."""
        status = await self._services.siblings.alive()
        return answer(Health, {"status": status}, 200 if status == UP else 503)

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Requests can be served here: by one process at least."""
        status = await self._services.siblings.ready(Question.FRONT_END_READY)
        return answer(Health, {"status": status}, 200 if status == READY else 503)

    async def _trouble(self) -> str:
        if self._services.hub.closed or self._services.limiter.closed:
            return "shutting_down"
        return "" if await self._services.broker.ready() else "broker_away"

    async def version(self, request: Request) -> Response:  # noqa: ARG002
        """Our version."""
        return answer(Version, {"version": VERSION})
