"""Configured agents: specs become pydantic-ai agents, once per worker; a wrong one is named at start."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models import Model, infer_model
from pydantic_ai.toolsets import FunctionToolset

from shared.agents import DEMO
from shared.errors import ConfigurationError
from worker.agents import demo, memory
from worker.agents.client_tools import ClientTools
from worker.agents.outcome import Done, NeedsClient
from worker.agents.reflection import Reflection
from worker.agents.run import Answer, Run
from worker.agents.server_tools import ServerTools
from worker.agents.subagents import SubAgents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage, UserContent

    from shared.agents import Agents, AgentSpec
    from worker.turn import Turn


class ConfiguredAgent:
    """One agent of the configuration, ready to run any number of turns at once."""

    def __init__(self, spec: AgentSpec, all_agents: dict[str, ConfiguredAgent]) -> None:
        self.spec = spec
        self._all = all_agents
        self._model = _model(spec)
        self._tools = [_tool(spec, reference) for reference in spec.tools]
        self.library_agent: Agent[None, str] = Agent(
            self._model,
            name=spec.name,
            instructions=spec.instructions,
            model_settings=dict(spec.settings) or None,  # type: ignore[arg-type]
        )

    async def run(self, turn: Turn) -> Done | NeedsClient:
        """Answer a turn, or get to where the client must answer first."""
        before, prompt = memory.read_input(turn.input)
        run = Run(turn, turn.speaker(), "")
        answer = await self.answer(run, prompt, [*memory.recall(turn.attempt.memory), *before])
        if answer.waits:
            return NeedsClient()
        return Done(memory.remember([*before, *answer.messages]))

    async def answer(
        self, run: Run, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
    ) -> Answer:
        """Answer at any path, as the session's agent or as somebody's sub-agent."""
        critics = [self._all[name] for name in self.spec.critics]
        if self.spec.model == DEMO and not demo.wants_critics(memory.plain_text(prompt)):
            critics = []
        if critics:
            return await Reflection(self, critics).answer(run, prompt, history)
        return await self.draft(run, prompt, history)

    async def draft(
        self, run: Run, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
    ) -> Answer:
        """Answer without critics."""
        client_tools = list(self.spec.client_tools)
        if self.spec.model == DEMO:
            client_tools += demo.client_tools(memory.plain_text(prompt))
        toolsets = [
            ServerTools(FunctionToolset(self._tools), run=run, deadline=self.spec.tool_deadline),
            ClientTools(run, client_tools),
            SubAgents(run, {name: self._all[name] for name in self.spec.subagents}),
        ]
        return await run.answer(self.library_agent, prompt, history, toolsets)


def build(agents: Agents) -> dict[str, ConfiguredAgent]:
    """Every agent of the configuration.

    Raises:
        ConfigurationError: names the agent and the model, tool or variable that is wrong.
    """
    built: dict[str, ConfiguredAgent] = {}
    for spec in agents:
        built[spec.name] = ConfiguredAgent(spec, built)
    return built


def _model(spec: AgentSpec) -> Model:
    if spec.model == DEMO:
        return demo.model(spec.name)
    try:
        if spec.base_url is None and spec.api_key_env is None:
            return infer_model(spec.model)
        return _compatible(spec)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"agent {spec.name!r}: model {spec.model!r} cannot be used: {error}"
        ) from None


def _compatible(spec: AgentSpec) -> Model:
    """A model behind an endpoint of its own, or with a key of its own."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider, _, name = spec.model.partition(":")
    if provider != "openai" or not name:
        raise ConfigurationError(
            f"agent {spec.name!r}: base_url and api_key_env need a model of the form 'openai:NAME', not {spec.model!r}"
        )
    api_key = "unused"
    if spec.api_key_env is not None:
        api_key = os.environ.get(spec.api_key_env, "")
        if not api_key:
            raise ConfigurationError(
                f"agent {spec.name!r}: the environment variable {spec.api_key_env} is not set"
            )
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=spec.base_url, api_key=api_key))


def _tool(spec: AgentSpec, reference: str) -> Tool[Any]:
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"agent {spec.name!r}: tool {reference!r} cannot be loaded: {error}"
        ) from None
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise ConfigurationError(f"agent {spec.name!r}: tool {reference!r} is not a function")
    return Tool(found)
