"""``/v1/models``: the agents that the key may speak with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from turnstream.api.http.answers import Described, answer
from turnstream.api.http.params import route
from turnstream.api.protocols.openai.overridden import NO_MODEL
from turnstream.shared.errors import NoModel

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services


class Model(Described):
    """An agent, as one of OpenAI's models."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Described):
    """The agents of a key."""

    object: Literal["list"]
    data: list[Model]


class ModelRoutes:
    """Serves the list of models."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """All of them, and one."""
        return [
            route("/v1/models", self.all, "GET"),
            route("/v1/models/{model}", self.one, "GET"),
        ]

    async def all(self, request: Request) -> Response:
        """The key's agents."""
        caller = await self._services.auth.caller(request)
        return answer(Models, {"object": "list", "data": [_model(name) for name in caller.names]})

    async def one(self, request: Request) -> Response:
        """One of the key's agents."""
        caller = await self._services.auth.caller(request)
        name = request.path_params["model"]
        if name not in caller.names:
            raise NoModel(NO_MODEL)
        return answer(Model, _model(name))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnstream"}
