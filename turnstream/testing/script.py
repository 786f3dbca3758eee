"""The script that stands in for a model: its replies in a turn, one after the other."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import WrapperToolset

from turnstream.worker.agents.run_outcome import AgentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import AgentInfo
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

    from turnstream.shared.agents.config import AgentSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """What the model is given when it is asked.

    Attributes:
        prompt: the user's last words.
        results: what tools and functions returned since, as the model reads it; of one that the model is to call again, why.
        instructions: the agent's.
        tools: the names of what it may call.
        messages: all of it, as pydantic-ai has it.
    """

    prompt: str
    results: list[str]
    instructions: str
    tools: list[str]
    messages: Sequence[ModelMessage]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that the model makes in one reply; join several by ``+``."""

    made: tuple[tuple[str, dict[str, Any]], ...]

    def __add__(self, other: Calls) -> Calls:
        return Calls(self.made + other.made)


@dataclass(slots=True)
class Crash:
    """A reply in the middle of which the worker is killed, the first time. Make it by `crash`."""

    reply: str | Calls
    happened: bool = field(default=False, init=False)


Reply: TypeAlias = (
    "str | Calls | Crash | Mapping[str, Any] | Exception | Callable[[Seen], str | Calls | Mapping[str, Any]]"
)
"""A reply of the model: a text, calls, the object of a structured answer, an error that is raised, or a function that makes one."""


def calls(name: str, /, **arguments: Any) -> Calls:
    """The model calls a tool, a sub-agent or a function of the client."""
    return Calls(((name, arguments),))


def crash(reply: str | Calls) -> Crash:
    """The worker is killed in the middle of this reply: within the text, or after the first server tool that is called has run.

    The turn goes on at another worker. A tool's function has run to its end then, and its result was not kept: what becomes of such
    a call, its policy says. Calls of the client alone have no middle.
    """
    return Crash(reply)


class Script:
    """The replies of one agent's model. A turn begins with the first, whatever turns there were before."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._replies: tuple[Reply, ...] = ()

    def write(self, replies: Sequence[Reply]) -> None:
        """Have these replies from now on."""
        self._replies = tuple(replies)

    @property
    def crashes(self) -> list[Crash]:
        """Its crashes."""
        return [reply for reply in self._replies if isinstance(reply, Crash)]

    def reply(self, place: int) -> Reply:
        """The reply of that place, from 0.

        Raises:
            AgentError: there is none.
        """
        if place < len(self._replies):
            return self._replies[place]
        raise AgentError(
            "script_ended",
            f"The model of {self._agent!r} was asked {place + 1} times in this turn, and its script has "
            f"{len(self._replies)} replies: served.script(…, agent={self._agent!r}).",
        )


class Scripted:
    """The models of one worker, which follow the scripts (`turnstream.worker.agents.registry.StandIn`)."""

    def __init__(self, scripts: Mapping[str, Script], kill: Callable[[], None]) -> None:
        """``kill`` ends this worker as a crash would."""
        self._scripts = scripts
        self._kill = kill
        # Tools after the first of which this worker is killed.
        self._fatal: set[str] = set()

    def model(self, spec: AgentSpec) -> Model:
        """A model that follows the agent's script."""
        script = self._scripts[spec.name]

        async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
            reply = script.reply(_place(messages))
            dies = isinstance(reply, Crash) and not reply.happened
            if isinstance(reply, Crash):
                reply.happened = True
                reply = reply.reply
            reply = _made(reply, messages, info)
            if isinstance(reply, str):
                for word in re.findall(r"\s*\S+|\s+$", reply) or [""]:
                    yield word
                    if dies:
                        await self._die()
            else:
                if dies:
                    self._fatal |= {name for name, _ in reply.made}
                for at, (name, arguments) in enumerate(reply.made):
                    yield {
                        at: DeltaToolCall(
                            name=name, json_args=json.dumps(arguments), tool_call_id=f"call{at}"
                        )
                    }

        async def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            reply = _made(script.reply(_place(messages)), messages, info)
            if isinstance(reply, str):
                return ModelResponse(parts=[TextPart(reply)])
            return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in reply.made])

        return FunctionModel(whole, stream_function=streamed, model_name="scripted")

    def around(self, spec: AgentSpec, tools: AbstractToolset[Any]) -> AbstractToolset[Any]:  # noqa: ARG002 - of all agents
        """The tools, one of which may be the worker's last."""
        return _Fatal(tools, self)

    async def ran(self, tool: str) -> None:
        """A tool has run."""
        if tool in self._fatal:
            self._fatal.clear()
            await self._die()

    async def _die(self) -> None:
        self._kill()
        # Nothing comes of what a killed process does. Its tasks are cancelled.
        await asyncio.Event().wait()


@dataclass
class _Fatal(WrapperToolset[Any]):
    scripted: Scripted

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        result = await super().call_tool(name, tool_args, ctx, tool)
        await self.scripted.ran(name)
        return result


def _made(reply: Reply, messages: list[ModelMessage], info: AgentInfo) -> str | Calls:
    """The reply as a text or calls.

    Raises:
        Exception: the one that the reply is.
    """
    if isinstance(reply, Crash):
        reply = reply.reply
    if isinstance(reply, Exception):
        raise reply
    made = reply(_seen(messages, info)) if callable(reply) else reply
    if isinstance(made, Mapping):
        if not info.output_tools:
            raise AgentError(
                "no_output_schema", "The script answers with an object, and no schema was asked for."
            )
        return Calls(((info.output_tools[0].name, dict(made)),))
    return made


def _place(messages: list[ModelMessage]) -> int:
    """How often the model has replied since the user's last words."""
    place = 0
    for message in messages:
        if isinstance(message, ModelResponse):
            place += 1
        elif any(isinstance(part, UserPromptPart) for part in message.parts):
            place = 0
    return place


def _seen(messages: list[ModelMessage], info: AgentInfo) -> Seen:
    prompt, results = "", list[str]()
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                content = part.content
                words = (
                    [content]
                    if isinstance(content, str)
                    else [each for each in content if isinstance(each, str)]
                )
                prompt, results = " ".join(words), []
            elif isinstance(part, ToolReturnPart):
                results.append(part.model_response_str())
            elif isinstance(part, RetryPromptPart):
                results.append(part.model_response())
    tools = [tool.name for tool in (*info.function_tools, *info.output_tools)]
    return Seen(prompt, results, info.instructions or "", tools, messages)
