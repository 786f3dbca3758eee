"""Functions that the client runs: checked against their schema, announced, and answered by ``/callback``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from turnstream.shared.agents import json_schema
from turnstream.worker.agents.tools import results
from turnstream.worker.turn import WITHDRAWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_ai import RunContext

    from turnstream.shared.agents.config import ClientTool
    from turnstream.worker.agents.agent_run import Run

# How often the model may try again with arguments that fit.
MOST_RETRIES = 3

# The library need only see to it that the arguments are JSON; the schema is checked here, in words
# that the model can act upon.
ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class ClientTools(AbstractToolset[Any]):
    """Offers client functions to a model.

    A call with right arguments is announced to the client and deferred, which parks the turn; when the
    run is taken up again the client's answer is the call's result.
    """

    def __init__(self, run: Run, tools: Iterable[ClientTool]) -> None:
        self._run = run
        self._tools = {tool.name: tool for tool in tools}

    @property
    def id(self) -> str | None:
        """No id: the toolset belongs to one run."""
        return None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:  # noqa: ARG002 - the library's signature
        """What the model is offered."""
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=tool.parameters
                ),
                max_retries=MOST_RETRIES,
                args_validator=ANY_OBJECT,
            )
            for tool in self._tools.values()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],  # noqa: ARG002 - the library's signature
    ) -> Any:
        """Defer the call, or give the client's answer.

        Raises:
            CallDeferred: the client was asked.
            ModelRetry: the arguments do not fit the schema; says how.
            ToolFailed: an earlier attempt took the call back.
        """
        run, call = self._run, str(ctx.tool_call_id)
        turn = run.turn
        if call in turn.results:
            run.answered(call)
            return results.never_a_file(turn.results[call])
        if turn.withdrawn(call):
            run.settle_withdrawn(call)
            raise ToolFailed(WITHDRAWN)
        if not turn.asked(call):
            run.check_arguments(call)
            if wrong := json_schema.misfits(self._tools[name].parameters, tool_args):
                raise ModelRetry("The arguments do not fit the function's schema: " + "; ".join(wrong))
            turn.ask(
                call,
                {
                    "kind": "function",
                    "name": name,
                    "path": run.speaker.path,
                    "group": run.group.id,
                    "ids": run.group.ids,
                },
            )
            run.say_call(
                call, "function_call", {"call_id": call, "name": name, "arguments": run.arguments(call)}
            )
        raise CallDeferred
