"""Models as operators see them: which may be asked, and a hold or its end; and the same of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import structlog
from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.admin.params import body_of
from turnstream.api.admin.schemas import AgentHeld, ModelHeld, ModelList
from turnstream.api.admin.tasks import BASE
from turnstream.api.http.answers import answer
from turnstream.api.http.params import route
from turnstream.shared.errors import NoAgent, NoModel
from turnstream.shared.model_states import is_agent, of_agent

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.services import Services

log = structlog.get_logger(__name__)


class ModelBody(BaseModel):
    """Which model."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=256)]


class AgentBody(BaseModel):
    """Which agent."""

    model_config = ConfigDict(extra="forbid")

    agent: Annotated[str, Field(min_length=1, max_length=256)]


class AdminModelRoutes:
    """Serves operators."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route(BASE + "/models", self.models, "GET"),
            route(BASE + "/models/hold", self.hold, "POST"),
            route(BASE + "/models/resume", self.resume, "POST"),
            route(BASE + "/agents/hold", self.hold_agent, "POST"),
            route(BASE + "/agents/resume", self.resume_agent, "POST"),
        ]

    async def models(self, request: Request) -> Response:
        """The models that agents have, and those of which something is noted."""
        services = self._services
        await services.auth.admin(request)
        rows = await services.model_states.listed(await services.models(), services.agents.limits)
        return answer(ModelList, {"models": rows})

    async def hold(self, request: Request) -> Response:
        """Let no request to a model begin."""
        key, model = await self._named(request)
        changed = await self._services.model_states.hold(model)
        log.info("admin.model_held", model=model, changed=changed, key=key)
        return answer(ModelHeld, {"model": model, "state": "held", "changed": changed})

    async def resume(self, request: Request) -> Response:
        """End a hold, and close the breaker."""
        key, model = await self._named(request)
        changed = await self._services.model_states.resume(model)
        log.info("admin.model_resumed", model=model, changed=changed, key=key)
        return answer(ModelHeld, {"model": model, "state": "closed", "changed": changed})

    async def hold_agent(self, request: Request) -> Response:
        """Let an agent begin nothing."""
        key, agent = await self._agent(request)
        changed = await self._services.model_states.hold(of_agent(agent))
        log.info("admin.agent_held", agent=agent, changed=changed, key=key)
        return answer(AgentHeld, {"agent": agent, "state": "held", "changed": changed})

    async def resume_agent(self, request: Request) -> Response:
        """End an agent's hold."""
        key, agent = await self._agent(request)
        changed = await self._services.model_states.resume(of_agent(agent))
        log.info("admin.agent_resumed", agent=agent, changed=changed, key=key)
        return answer(AgentHeld, {"agent": agent, "state": "open", "changed": changed})

    async def _agent(self, request: Request) -> tuple[str, str]:
        """The id of the operator's key, and the agent that the body names.

        Raises:
            NoAgent: there is none of that name, and none is held.
        """
        services = self._services
        key = await services.auth.admin(request)
        name = (await body_of(request, services.settings, AgentBody)).agent
        if services.agents.get(name) is None and name not in await services.model_states.agents_held():
            raise NoAgent
        return key.id, name

    async def _named(self, request: Request) -> tuple[str, str]:
        """The id of the operator's key, and the model that the body names.

        Raises:
            NoModel: there is none of that name.
        """
        services = self._services
        key = await services.auth.admin(request)
        body = await body_of(request, services.settings, ModelBody)
        if body.model not in await services.models():
            _, states = await services.model_states.read()
            if body.model not in states or is_agent(body.model):
                raise NoModel
        return key.id, body.model
