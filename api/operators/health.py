"""Whether this front end is up and of use, and what version it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.api.http.schemas import Version
from turnstream.api.operators.schemas import Health
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

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("/healthz", self.up, "GET", "HEAD"),
            route("/readyz", self.ready, "GET", "HEAD"),
            route("/version", self.version, "GET"),
        ]

    async def up(self, request: Request) -> Response:  # noqa: ARG002 - a route's signature
        """The process runs. It says nothing of the broker: to restart us does not bring that back."""
        return answer(Health, {"status": "up"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Requests can be served here."""
        if self._services.hub.closed or self._services.limiter.closed:
            return answer(Health, {"status": "shutting_down"}, 503)
        if not await self._services.broker.ready():
            return answer(Health, {"status": "broker_away"}, 503)
        return answer(Health, {"status": "ready"})

    async def version(self, request: Request) -> Response:  # noqa: ARG002
        """Our version."""
        return answer(Version, {"version": VERSION})
