"""Deployments whose agent has a real model: an endpoint over HTTP, through the provider's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.fake_provider.server import KEY_VARIABLE, Provider
from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client

AGENT = "demo"


class Deployments:
    """Makes them, and ends them with the test."""

    def __init__(self, place: Place, provider: Provider) -> None:
        self._place = place
        self._provider = provider
        self._stacks: list[Stack] = []
        self.stack: Stack

    async def __call__(
        self, *, deployment: dict[str, Any] | None = None, limits: dict[str, int] | None = None, **fields: Any
    ) -> Client:
        """A front end and a worker with one agent, of these fields, and with these limits of models; a client of it."""
        client = await self.front_end(deployment=deployment, limits=limits, **fields)
        await self.stack.worker()
        return client

    async def front_end(
        self, *, deployment: dict[str, Any] | None = None, limits: dict[str, int] | None = None, **fields: Any
    ) -> Client:
        """The same, without a worker."""
        given = {"name": AGENT, **fields}
        if "python" not in fields:
            given = {
                "model": "openai:test",
                "base_url": self._provider.base_url,
                "api_key_env": KEY_VARIABLE,
                **given,
            }
        specs = {spec.name: spec for spec in load_agents(None)}
        specs[AGENT] = AgentSpec.model_validate(given)
        self.stack = Stack(self._place, Agents(specs, limits=limits), **(deployment or {}))
        self._stacks.append(self.stack)
        return await self.stack.front_end()

    async def close(self) -> None:
        """End all of them."""
        for stack in self._stacks:
            await stack.close()
