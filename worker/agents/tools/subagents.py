"""Sub-agents: work that one agent hands to another, as a tool."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog
from pydantic_ai import CallDeferred, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from turnstream.shared.errors import BrokerAway
from turnstream.worker.agents.failures import explain, for_operators, retry_seconds
from turnstream.worker.publisher import LostAttempt

if TYPE_CHECKING:
    from pydantic_ai import RunContext

    from turnstream.worker.agents.agent_run import Run
    from turnstream.worker.agents.registry import ConfiguredAgent

log = structlog.get_logger(__name__)

# Agents inside agents. Deeper, and a pair that hand work to each other would never end.
MOST_DEPTH = 4

# Checkpoint: how many sub-agents this turn has begun, at all depths.
_COUNT = "dispatches"

_ARGUMENTS = SchemaValidator(
    core_schema.typed_dict_schema({"task": core_schema.typed_dict_field(core_schema.str_schema())})
)


class SubAgents(AbstractToolset[Any]):
    """Offers other agents to a model, each as a tool that takes a task in words.

    Duties:
        1. run a sub-agent under its own path, several at once if the model asks for several;
        2. when it waits for the client, defer the call with it: its checkpoints are kept under the call's
           id, and it goes on first when the turn is taken up again;
        3. tell the model when a sub-agent fails: who handed the work out decides what that means, and
           the turn goes on; but a failure that passes is the turn's, which waits (`AgentSpec.retry_for`);
        4. bound their depth and, over the whole turn, their number.
    """

    def __init__(self, run: Run, agents: dict[str, ConfiguredAgent]) -> None:
        self._run = run
        self._agents = agents

    @property
    def id(self) -> str | None:
        """No id: the toolset belongs to one run."""
        return None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:  # noqa: ARG002 - the library's signature
        """What the model is offered; nothing at the greatest depth."""
        if self._run.speaker.path.count("/") + 1 >= MOST_DEPTH:
            return {}
        schema = {
            "type": "object",
            "properties": {"task": {"type": "string", "description": "What the agent shall do, in full."}},
            "required": ["task"],
            "additionalProperties": False,
        }
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name,
                    description=agent.spec.description
                    or agent.spec.instructions
                    or f"Hands a task to the agent {name}.",
                    parameters_json_schema=schema,
                ),
                max_retries=1,
                args_validator=_ARGUMENTS,
            )
            for name, agent in self._agents.items()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],  # noqa: ARG002 - the library's signature
    ) -> Any:
        """Run the sub-agent to its answer.

        Raises:
            CallDeferred: the sub-agent waits for the client.
            ToolFailed: it failed, or there were too many.
        """
        run, call = self._run, str(ctx.tool_call_id)
        known, result = run.result(call)
        if known:
            return _given(result)
        if not run.called(call):
            run.check_arguments(call)
            if not self._count():
                most = run.turn.spec.max_dispatches
                return self._settled(
                    name, call, error=f"No more than {most} agents may be asked in one turn."
                )
            self._say_call(name, call, tool_args["task"])
        inner = run.inner(call, name)
        try:
            answer = await self._agents[name].answer(inner, tool_args["task"], [])
        except (LostAttempt, BrokerAway, asyncio.CancelledError):
            raise
        except BaseException as error:
            # What is no Exception, too: nobody else expects it.
            if retry_seconds(error, run.turn.spec.retry_for) is not None:
                raise
            code, text = explain(error)
            log.warning("subagent.failed", agent=name, code=code, **for_operators(error))
            await inner.abandon()
            return self._settled(name, call, error=f"{text} ({code})")
        if answer.waits:
            raise CallDeferred
        return self._settled(name, call, answer=answer.text)

    def _count(self) -> bool:
        """Count one more sub-agent of this turn; False when there were enough."""
        turn = self._run.turn
        count = int(turn.kept(_COUNT) or 0)
        if count >= turn.spec.max_dispatches:
            return False
        turn.keep(_COUNT, str(count + 1).encode())
        return True

    def _say_call(self, name: str, call: str, task: str) -> None:
        self._run.say_call(call, "component_call", {**_about(name, call), "content": [_text(task)]})

    def _settled(self, name: str, call: str, **result: str) -> str:
        """Say and keep an ``answer`` or an ``error``."""
        run = self._run
        if not run.called(call):
            self._say_call(name, call, run.arguments(call))
        run.turn.forget(f"messages:{call}")
        content = [_text(text) for text in result.values()]
        # The client's words for it are the same as for an answer.
        failed = {"failed": True} if "error" in result else None
        run.settle(call, "component_call_output", {**_about(name, call), "content": content}, result, failed)
        return _given(result)


def _about(name: str, call: str) -> dict[str, str]:
    return {"dispatchId": call, "agentId": name, "name": name}


def _given(result: dict[str, str]) -> str:
    """What the model gets, the same from a kept result as from a fresh one."""
    if "error" in result:
        raise ToolFailed(result["error"])
    return result["answer"]


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "message": text}
