"""Sub-agents: work that one agent hands to another, as a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import CallDeferred
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from worker.agents.run import Run

if TYPE_CHECKING:
    from pydantic_ai import RunContext

    from worker.agents.configured import ConfiguredAgent

# Agents inside agents. Deeper, and a pair that hand work to each other would never end.
MOST_DEPTH = 4

_ARGUMENTS = SchemaValidator(
    core_schema.typed_dict_schema({"task": core_schema.typed_dict_field(core_schema.str_schema())})
)


class SubAgents(AbstractToolset[Any]):
    """Offers other agents to a model, each as a tool that takes a task in words.

    A sub-agent speaks under its own path. When it waits for the client, the call is deferred with it;
    its checkpoints are kept under the call's id, and it goes on first when the turn is taken up again.
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
                    description=agent.spec.instructions or f"Hands a task to the agent {name}.",
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
        """
        run, call = self._run, str(ctx.tool_call_id)
        known, result = run.result(call)
        if known:
            return result
        dispatch = {"dispatchId": call, "agentId": name, "name": name}
        if not run.called(call):
            run.say_call(call, "component_call", {**dispatch, "content": [_text(tool_args["task"])]})
        path = f"{run.speaker.path}/{name}" if run.speaker.path else name
        inner = Run(run.turn, run.turn.speaker(path, name), call)
        answer = await self._agents[name].answer(inner, tool_args["task"], [])
        if answer.waits:
            raise CallDeferred
        text = str(answer.output)
        run.turn.forget(f"messages:{call}")
        run.settle(call, "component_call_output", {**dispatch, "content": [_text(text)]}, text)
        return text


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "message": text}
