"""Configured agents: specs become pydantic-ai agents, once per worker; a wrong one is named at start."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from turnstream.shared import tracing
from turnstream.shared.agents.config import DEMO, ClientTool, model_name
from turnstream.shared.errors import AgentFieldError, ConfigurationError
from turnstream.worker.agents import demo, memory, models, structured_output
from turnstream.worker.agents.agent_run import Run, RunResult
from turnstream.worker.agents.calls import Policies, Policy, declared
from turnstream.worker.agents.coded_agent import GeneratorAgent
from turnstream.worker.agents.failures import place_in_their_code
from turnstream.worker.agents.model_gate import NamedModel
from turnstream.worker.agents.reflection import Reflection
from turnstream.worker.agents.run_outcome import AgentError, Done, NeedsClient
from turnstream.worker.agents.tools.client import ClientTools
from turnstream.worker.agents.tools.server import ServerTools
from turnstream.worker.agents.tools.subagents import SubAgents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.toolsets import AbstractToolset

    from turnstream.shared.agents.config import Agents, AgentSpec, Fallback, MemoryLimits
    from turnstream.worker.agents.tools.mcp_connection import McpConnection
    from turnstream.worker.turn import RunningTurn


class StandIn(Protocol):
    """What tests put in the place of models, and around tools (`turnstream.testing`)."""

    def model(self, spec: AgentSpec) -> Model:
        """The model that an agent is run with, whatever its table or its code names."""

    def around(self, spec: AgentSpec, tools: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """The agent's server tools, as they are to be run."""


class ConfiguredAgent:
    """One agent of the configuration, ready to run any number of turns at once.

    Args:
        brought: a pydantic-ai agent that somebody wrote; else one is built from the spec.
    """

    def __init__(
        self,
        spec: AgentSpec,
        all_agents: Mapping[str, Runnable],
        brought: Agent[Any, Any] | None = None,
        stand_in: StandIn | None = None,
    ) -> None:
        self.spec = spec
        self._all = all_agents
        self._stand_in = stand_in
        self.library_agent: Agent[Any, Any]
        if brought is not None:
            self.library_agent = brought
            # Its own tools are run through ours, so that their results are said and kept.
            self._tools: AbstractToolset[Any] = CombinedToolset(list(brought.toolsets))
        else:
            if stand_in is None:
                model = models.model_of(spec)
                models.check_background(spec, model)
            else:
                model = stand_in.model(spec)
            self.library_agent = Agent(
                model,
                name=spec.name,
                instructions=spec.instructions,
                model_settings=models.settings_of(spec),
                output_type=_output_type(spec),
            )
            self._tools = _server_tools(spec)
        if stand_in is None:
            self.chain = [
                _named(spec, self.library_agent.model),
                *(_fallback(spec, place, each) for place, each in enumerate(spec.fallback)),
            ]
        else:
            self.chain = [_named(spec, stand_in.model(spec))]
        for field, names in (
            ("client_tools", [tool.name for tool in spec.client_tools]),
            ("subagents", spec.subagents),
        ):
            if both := sorted(self.own_tools.keys() & names):
                raise AgentFieldError(spec.name, field, f"{both[0]!r} is the name of a server tool too")
        self._policies = Policies(_chosen(spec, "on_lost", spec.on_lost), self._declared())
        self._servers = _mcp_connections(spec) if spec.mcp else []
        self._make_deps = _load(spec, "deps", spec.deps) if spec.deps else None
        if self._make_deps is not None and not callable(self._make_deps):
            raise AgentFieldError(spec.name, "deps", f"{spec.deps!r} is not a function")

    async def run(self, turn: RunningTurn) -> Done | NeedsClient:
        """Answer a turn, or get to where the client must answer first."""
        if (remembered := turn.kept(_ANSWERED)) is not None:
            # The answer was given; only the end of the turn was lost.
            return Done(remembered)
        before, prompt = await turn.offload(memory.read_input, turn.input)
        run = Run(turn, turn.speaker(), "")
        earlier = await turn.offload(_recall, turn.earlier(), self.spec.memory)
        if reader := turn.models.choose(self.chain).model:
            # An earlier turn's links were read then. They may have expired since.
            earlier = memory.reworded(earlier, lambda content: models.readable(content, reader))
        answer = await self.answer(run, prompt, [*earlier, *before])
        if answer.waits:
            return NeedsClient()
        remembered = await turn.offload(memory.remember, [*before, *answer.messages])
        if answer.structured:
            turn.keep(_ANSWERED, remembered)
            data = answer.output if isinstance(answer.output, dict) else {"output": answer.output}
            part = {"type": "data", "data": data}
            run.speaker.say("message", "assistant", part, extra=answer.completions)
        return Done(remembered)

    async def answer(
        self, run: Run, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
    ) -> RunResult:
        """Answer at any path, as the session's agent or as somebody's sub-agent."""
        critics = [_as_helper(self.spec, self._all[name]) for name in self.spec.critics]
        if self.spec.model == DEMO and not demo.wants_critics(memory.plain_text(prompt)):
            critics = []
        if critics:
            return await Reflection(self, critics).answer(run, prompt, history)
        return await self.draft(run, prompt, history)

    async def draft(
        self, run: Run, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
    ) -> RunResult:
        """Answer without critics."""
        client_tools = list(self.spec.client_tools)
        if self.spec.model == DEMO:
            client_tools += demo.client_tools(memory.plain_text(prompt))
        chain, settings = self.chain, None
        requested: list[ClientTool] = []
        if not run.speaker.path:
            # What the request asks is meant for the session's agent, not for its helpers.
            requested = self._requested_tools(run.turn)
            chain, settings = self._requested_model(run.turn)
        model = run.turn.models.choose(chain)
        if model.model:
            prompt, history = self._links(prompt, history, model.model)
        helpers = {name: _as_helper(self.spec, self._all[name]) for name in self.spec.subagents}
        tools = self._tools if self._stand_in is None else self._stand_in.around(self.spec, self._tools)
        toolsets: list[AbstractToolset[Any]] = [
            ServerTools(
                tools,
                run=run,
                agent=self.spec.name,
                deadline=self.spec.tool_deadline,
                policies=self._policies,
            ),
            ClientTools(run, [*client_tools, *requested]),
            SubAgents(run, helpers),
        ]
        if self._servers:
            from turnstream.worker.agents.tools.mcp import McpTools

            taken = {tool.name for tool in client_tools} | helpers.keys() | self.own_tools.keys()
            brought = {tool.name for tool in requested}
            toolsets.append(McpTools(run, self.spec.name, self._servers, taken, brought))
        agent = self.library_agent
        if not run.speaker.path and run.turn.output_schema is not None:
            agent = self._fitting(run.turn.output_schema)
        with agent.override(toolsets=toolsets, tools=[]):
            return await run.answer(
                agent, prompt, history, model=model, settings=settings, deps=await self.deps()
            )

    def _fitting(self, schema: dict[str, Any]) -> Agent[Any, Any]:
        """The agent for one turn, whose answer fits a schema. The front end asks that of configured agents only.

        Raises:
            AgentError: it cannot be asked of a model.
        """
        spec = self.spec
        try:
            return Agent(
                self.library_agent.model,
                name=spec.name,
                instructions=spec.instructions,
                model_settings=self.library_agent.model_settings,
                output_type=structured_output.type_of(schema),
            )
        except UserError as error:
            raise AgentError("output_schema", f"The schema cannot be used: {error}") from None

    def _links(
        self, prompt: str | Sequence[UserContent], history: Sequence[ModelMessage], reader: Model | str
    ) -> tuple[str | Sequence[UserContent], Sequence[ModelMessage]]:
        """Prompt and history with those links as text that the model is not given.

        Raises:
            AgentError: more links than may be downloaded.
        """
        fetch = self.spec.fetch_links
        if fetch:
            links = sum(models.links_to_fetch(said, reader) for said in [prompt, *memory.prompts(history)])
            if links > models.MOST_LINKS:
                raise AgentError(
                    "too_many_links",
                    f"The input has {links} links to fetch, and {models.MOST_LINKS} are fetched at most.",
                )
        history = memory.reworded(history, lambda said: models.readable(said, reader, fetch=fetch))
        return models.readable(prompt, reader, fetch=fetch), history

    async def deps(self) -> Any:
        """What a pydantic-ai agent's tools and instructions are given as ``ctx.deps``, made anew for each run."""
        made = self._make_deps() if self._make_deps is not None else None
        return await made if inspect.isawaitable(made) else made

    async def close(self) -> None:
        """End the connections to its MCP servers."""
        await asyncio.gather(*(server.close() for server in self._servers))

    @property
    def own_tools(self) -> dict[str, Tool[Any]]:
        """Its server tools by name, as far as they are known before a run."""
        toolsets = self._tools.toolsets if isinstance(self._tools, CombinedToolset) else [self._tools]
        return {
            name: tool
            for each in toolsets
            if isinstance(each, FunctionToolset)
            for name, tool in each.tools.items()
        }

    def _declared(self) -> dict[str, Policy]:
        """Its server tools' own policies.

        Raises:
            AgentFieldError: the configuration, or one of the tools, names what is not there.
        """
        mine = self.own_tools
        toolsets = self._tools.toolsets if isinstance(self._tools, CombinedToolset) else [self._tools]
        # What other kinds of toolsets hold is known in a run only.
        if all(isinstance(each, FunctionToolset) for each in toolsets):
            for name in self.spec.on_lost:
                if name not in mine:
                    raise AgentFieldError(self.spec.name, f"on_lost.{name}", "there is no such server tool")
        field = "python" if self.spec.python else "tools"
        said = {name: declared(tool.function) for name, tool in mine.items()}
        return {name: _loaded(self.spec, field, policy) for name, policy in said.items() if policy}

    def _requested_tools(self, turn: RunningTurn) -> list[ClientTool]:
        # The front end has checked them.
        tools = [ClientTool.model_construct(**tool) for tool in turn.client_tools]
        taken = self.own_tools
        for tool in tools:
            if tool.name in taken:
                raise AgentError("tool_name_taken", f"tools: {tool.name!r} is a tool of the agent already.")
        return tools

    def _requested_model(self, turn: RunningTurn) -> tuple[list[NamedModel], ModelSettings | None]:
        asked = dict(turn.overrides)
        name = asked.pop("model", None)
        chain = self.chain
        if name is not None and isinstance(self.library_agent.model, Model):
            model = models.sibling(self.spec, self.library_agent.model, name)
            provider = self.spec.model.partition(":")[0]
            asked_for = model_name(f"{provider}:{model.model_name}", self.spec.base_url)
            chain = [NamedModel(asked_for, model), *chain[1:]]
        if "stop" in asked:
            stop = asked.pop("stop")
            asked["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        return chain, ModelSettings(**asked) if asked else None  # type: ignore[typeddict-item]


def _named(spec: AgentSpec, model: Model | str | None) -> NamedModel:
    """An agent's model under the name that operators know: of its table, or of the code that brought it."""
    if spec.model:
        return NamedModel(spec.model_name, model)
    own = f"{model.system}:{model.model_name}" if isinstance(model, Model) else model
    return NamedModel(own or "", model)


def _fallback(spec: AgentSpec, place: int, given: Fallback) -> NamedModel:
    """A model that stands in, made as an agent's own would be."""
    like = spec.model_copy(update=given.model_dump())
    try:
        return NamedModel(like.model_name, models.model_of(like))
    except AgentFieldError as error:
        raise AgentFieldError(spec.name, f"fallback.{place}", error.problem) from None


def _recall(earlier: Sequence[bytes], limits: MemoryLimits) -> list[ModelMessage]:
    return memory.recall(memory.within(earlier, limits))


def _output_type(spec: AgentSpec) -> Any:
    if spec.output_schema is None:
        return str
    try:
        return structured_output.type_of(spec.output_schema)
    except UserError as error:
        raise AgentFieldError(spec.name, "output_schema", str(error)) from None


# Checkpoint, kept with the message that gives structured output: what the turn is remembered by.
_ANSWERED = "answered"

Runnable = ConfiguredAgent | GeneratorAgent

# What only an agent with a model can make use of.
_NEEDS_MODEL = frozenset(
    {"client_tools", "mcp", "subagents", "critics", "fetch_links", "deps", "on_lost", "fallback"}
)


def build(agents: Agents, stand_in: StandIn | None = None) -> dict[str, Runnable]:
    """Every agent of the configuration; with ``stand_in``, on its models.

    Raises:
        ConfigurationError: all that is wrong, a line each: where, which field, and what is wrong with it.
    """
    if agents.folder is not None and str(agents.folder) not in sys.path:
        # Last, so that nothing of the same name there can take the place of what is installed.
        sys.path.append(str(agents.folder))
    built: dict[str, Runnable] = {}
    wrong: list[str] = []
    for spec in agents:
        try:
            built[spec.name] = (
                _coded(spec, built, stand_in)
                if spec.python
                else ConfiguredAgent(spec, built, stand_in=stand_in)
            )
        except AgentFieldError as error:
            wrong.append(agents.explain(error))
    for spec in agents:
        for field in ("subagents", "critics"):
            for name in getattr(spec, field):
                try:
                    _as_helper(spec, built[name], field)
                except AgentFieldError as error:
                    wrong.append(agents.explain(error))
                except KeyError:
                    continue  # It is wrong itself, and named above.
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    _instrument()
    return built


def _instrument() -> None:
    """Have models' and tools' calls traced, where traces are wanted; without what is said in them."""
    provider = tracing.provider()
    if provider is not None:
        from pydantic_ai.models.instrumented import InstrumentationSettings

        Agent.instrument_all(InstrumentationSettings(tracer_provider=provider, include_content=False))


@asynccontextmanager
async def opened(built: Mapping[str, Runnable]) -> AsyncIterator[None]:
    """Hold connections to models and MCP servers for as long as the worker runs, and close them with it."""
    async with AsyncExitStack() as stack:
        for agent in built.values():
            if isinstance(agent, ConfiguredAgent):
                stack.push_async_callback(agent.close)
                for each in agent.chain:
                    if isinstance(each.model, Model):
                        await stack.enter_async_context(each.model)
        yield


def model_names(built: Mapping[str, Runnable]) -> frozenset[str]:
    """The names of all models that agents have."""
    return frozenset(
        each.name
        for agent in built.values()
        if isinstance(agent, ConfiguredAgent)
        for each in agent.chain
        if each.name
    )


def with_background(built: Mapping[str, Runnable]) -> dict[tuple[str, str], models.ResponsesModel]:
    """The models that can cancel a background response, by agent and name; an agent's own is there without a name, too."""
    return {
        (name, known): each.model
        for name, agent in built.items()
        if isinstance(agent, ConfiguredAgent)
        for place, each in enumerate(agent.chain)
        if isinstance(each.model, models.ResponsesModel)
        for known in ((each.name,) if place else (each.name, ""))
    }


def _as_helper(spec: AgentSpec, helper: Runnable, field: str = "subagents") -> ConfiguredAgent:
    if isinstance(helper, GeneratorAgent):
        raise AgentFieldError(
            spec.name,
            field,
            f"{helper.spec.name!r} is an async generator, which cannot be a sub-agent or critic",
        )
    return helper


def _coded(spec: AgentSpec, built: Mapping[str, Runnable], stand_in: StandIn | None) -> Runnable:
    found = _load(spec, "python", str(spec.python))
    if isinstance(found, Agent):
        if found._output_validators:  # noqa: SLF001 - the library tells in no other way before a run
            raise AgentFieldError(
                spec.name,
                "python",
                f"{spec.python!r} has output validators, which cannot be combined with parking: "
                "check its output in a tool instead",
            )
        if found.deps_type not in (object, type(None)) and spec.deps is None:
            raise AgentFieldError(
                spec.name,
                "python",
                f"{spec.python!r} has the deps_type {getattr(found.deps_type, '__name__', found.deps_type)}, and "
                "nothing makes its deps: name a function that does as deps = 'module:function'",
            )
        if "model" in spec.allow_overrides:
            raise AgentFieldError(
                spec.name, "allow_overrides", "a pydantic-ai Agent brings its model: leave 'model' out"
            )
        return ConfiguredAgent(spec, built, found, stand_in)
    if inspect.isasyncgenfunction(found):
        for field in sorted(spec.model_fields_set & _NEEDS_MODEL):
            raise AgentFieldError(spec.name, field, "an async generator calls what it needs by itself")
        return GeneratorAgent(spec, found)
    raise AgentFieldError(
        spec.name,
        "python",
        f"{spec.python!r} is neither a pydantic-ai Agent nor an async generator function",
    )


def _server_tools(spec: AgentSpec) -> FunctionToolset[Any]:
    tools = [_tool(spec, reference) for reference in spec.tools]
    try:
        toolset = FunctionToolset(tools)
    except UserError as error:
        raise AgentFieldError(spec.name, "tools", str(error)) from None
    return toolset


def _tool(spec: AgentSpec, reference: str) -> Tool[Any]:
    found = _load(spec, "tools", reference)
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise AgentFieldError(spec.name, "tools", f"{reference!r} is not a function")
    try:
        return Tool(found)
    except Exception as error:
        why = _untyped(found) or error
        raise AgentFieldError(spec.name, "tools", f"{reference!r} cannot be a tool: {why}") from None


def _untyped(function: Callable[..., Any]) -> str:
    """The parameters whose annotations JSON has no type for, and what to do; empty if that is not what is wrong."""
    try:
        hints = get_type_hints(function, include_extras=True)
        names = list(inspect.signature(function).parameters)
    except Exception:
        # A name that is not defined, say: the library's own error tells it.
        return ""
    wrong = [
        f"'{name}: {inspect.formatannotation(hints[name])}'"
        for name in names
        if name in hints and not _is_context(hints[name]) and not _has_type_in_json(hints[name])
    ]
    if not wrong:
        return ""
    kinds = "str, int, float, bool, list, dict, an Enum, a dataclass or a pydantic model"
    return f"JSON has no type for {', '.join(wrong)} of its parameters: use {kinds}"


def _is_context(annotation: Any) -> bool:
    """Whether the library passes the parameter itself."""
    return annotation is RunContext or get_origin(annotation) is RunContext


def _has_type_in_json(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).json_schema()
    except PydanticUserError:
        return False
    except Exception:
        return True
    return True


def _mcp_connections(spec: AgentSpec) -> list[McpConnection]:
    # The library of MCP is a third of all that a worker would load, in time and in memory; few agents need it.
    from turnstream.worker.agents.tools.mcp_connection import McpConnection

    return [
        McpConnection(server, spec, _chosen(spec, f"mcp.{place}.on_lost", server.on_lost))
        for place, server in enumerate(spec.mcp)
    ]


def _chosen(spec: AgentSpec, field: str, given: Mapping[str, str]) -> dict[str, Policy]:
    """Tool → the policy that the configuration gives it."""
    return {tool: _loaded(spec, f"{field}.{tool}", Policy(on_lost)) for tool, on_lost in given.items()}


def _loaded(spec: AgentSpec, field: str, policy: Policy) -> Policy:
    """The policy with its function, where it names one."""
    if not isinstance(policy.on_lost, str) or ":" not in policy.on_lost:
        return policy
    found = _load(spec, field, policy.on_lost)
    if not callable(found):
        raise AgentFieldError(spec.name, field, f"{policy.on_lost!r} is not a function")
    return replace(policy, on_lost=found)


def _load(spec: AgentSpec, field: str, reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module may raise anything, SystemExit and kinds of its own among it: it is wrong, and named.
        why = str(error) if isinstance(error, ImportError | AttributeError) else repr(error)
        if isinstance(error, SyntaxError):
            why = f"{error.filename}:{error.lineno}: {error.msg}"
        elif place := place_in_their_code(error):
            why = f"{place}: {why}"
        raise AgentFieldError(spec.name, field, f"{reference!r} cannot be loaded: {why}") from None
