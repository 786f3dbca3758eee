"""A team of scripted agents, served as a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.agents import Agents, AgentSpec
from shared.agents import load as load_agents
from tests.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.client import Client
    from tests.conftest import Place

PLAYER = "tests.scripted:player"


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
