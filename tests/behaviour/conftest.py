"""A team of scripted agents, served as a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client

PLAYER = "tests.support.scripted:player"


def team(**tables: dict[str, Any]) -> Agents:
    """Agents by name, scripted players unless they say otherwise; ``lead`` is the one that the client speaks to."""
    specs = {spec.name: spec for spec in load_agents(None)}
    for name, table in tables.items():
        specs[name] = AgentSpec.model_validate({"name": name, "python": PLAYER, **table})
    return Agents(specs)


@pytest.fixture
async def serve(place: Place) -> AsyncIterator[Any]:
    """Makes a client of a deployment with one worker that serves the agents of these tables."""
    stacks: list[Stack] = []

    async def serving(**tables: dict[str, Any]) -> tuple[Client, Stack]:
        stack = Stack(place, team(**tables), dev_agent="lead")
        stacks.append(stack)
        await stack.worker()
        return await stack.front_end(), stack

    yield serving
    for stack in stacks:
        await stack.close()
