"""Configured agents: specs become pydantic-ai agents, once per worker; a wrong one is named at start."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models import Model, infer_model
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from shared.agents import DEMO
from shared.errors import ConfigurationError
from worker.agents import demo, memory
from worker.agents.client_tools import ClientTools
from worker.agents.generator import GeneratorAgent
from worker.agents.outcome import Done, NeedsClient
from worker.agents.reflection import Reflection
from worker.agents.run import Answer, Run
from worker.agents.server_tools import ServerTools
from worker.agents.subagents import SubAgents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.toolsets import AbstractToolset

    from shared.agents import Agents, AgentSpec
    from worker.turn import Turn


class ConfiguredAgent:
    """One agent of the configuration, ready to run any number of turns at once.

    Args:
        brought: a pydantic-ai agent that somebody wrote; else one is built from the spec.
    """

    def __init__(
        self, spec: AgentSpec, all_agents: Mapping[str, Runnable], brought: Agent[Any, Any] | None = None
    ) -> None:
        self.spec = spec
        self._all = all_agents
        self.library_agent: Agent[Any, Any]
        if brought is not None:
            self.library_agent = brought
            # Its own tools are run through ours, so that their results are said and kept.
            self._tools: AbstractToolset[Any] = CombinedToolset(list(brought.toolsets))
        else:
            self.library_agent = Agent(
                _model(spec),
                name=spec.name,
                instructions=spec.instructions,
                model_settings=dict(spec.settings) or None,  # type: ignore[arg-type]
            )
            self._tools = FunctionToolset([_tool(spec, reference) for reference in spec.tools])

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
        critics = [_as_helper(self.spec, self._all[name]) for name in self.spec.critics]
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
        helpers = {name: _as_helper(self.spec, self._all[name]) for name in self.spec.subagents}
        toolsets: list[AbstractToolset[Any]] = [
            ServerTools(self._tools, run=run, deadline=self.spec.tool_deadline),
            ClientTools(run, client_tools),
            SubAgents(run, helpers),
        ]
        with self.library_agent.override(toolsets=toolsets, tools=[]):
            return await run.answer(self.library_agent, prompt, history)


Runnable = ConfiguredAgent | GeneratorAgent


def build(agents: Agents) -> dict[str, Runnable]:
    """Every agent of the configuration.

    Raises:
        ConfigurationError: names the agent and the model, tool, function or variable that is wrong.
    """
    built: dict[str, Runnable] = {}
    for spec in agents:
        built[spec.name] = _coded(spec, built) if spec.python else ConfiguredAgent(spec, built)
    for spec in agents:
        for name in (*spec.subagents, *spec.critics):
            _as_helper(spec, built[name])
    return built


def _as_helper(spec: AgentSpec, helper: Runnable) -> ConfiguredAgent:
    if isinstance(helper, GeneratorAgent):
        raise ConfigurationError(
            f"agent {spec.name!r}: {helper.spec.name!r} is an async generator, which cannot be a sub-agent or critic"
        )
    return helper


def _coded(spec: AgentSpec, built: Mapping[str, Runnable]) -> Runnable:
    found = _load(spec, "python", str(spec.python))
    if isinstance(found, Agent):
        if found._output_validators:  # noqa: SLF001 - the library tells in no other way before a run
            raise ConfigurationError(
                f"agent {spec.name!r}: {spec.python!r} has output validators, which cannot be combined with parking: "
                "check its output in a tool instead"
            )
        return ConfiguredAgent(spec, built, found)
    if inspect.isasyncgenfunction(found):
        return GeneratorAgent(spec, found)
    raise ConfigurationError(
        f"agent {spec.name!r}: {spec.python!r} is neither a pydantic-ai Agent nor an async generator function"
    )


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
    found = _load(spec, "tool", reference)
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise ConfigurationError(f"agent {spec.name!r}: tool {reference!r} is not a function")
    return Tool(found)


def _load(spec: AgentSpec, what: str, reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"agent {spec.name!r}: {what} {reference!r} cannot be loaded: {error}"
        ) from None
