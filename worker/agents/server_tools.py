"""Tools that the worker runs: said, run under a deadline, their results kept; with approval where asked for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pydantic_core
from pydantic_ai import Agent, ApprovalRequired
from pydantic_ai.toolsets import WrapperToolset

from worker.agents import approval

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.toolsets import ToolsetTool

    from worker.agents.run import Run


# Tools that are plain functions run here. A thread cannot be ended: after its deadline, or a stop, it is
# left alone, and runs to its end unheard.
_THREADS = ThreadPoolExecutor(max_workers=128, thread_name_prefix="tool")


@dataclass
class ServerTools(WrapperToolset[Any]):
    """Wraps the agent's own tools.

    Duties:
        1. run a call at most once after its result was kept;
        2. ask the client first when the tool needs approval, and take no for a result;
        3. end a call that takes longer than ``deadline`` seconds; the model is told.
    """

    run: Run
    deadline: float
    need_approval: set[str] = field(default_factory=set)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, none marked as in need of approval: the library would defer those unseen, and say nothing."""
        tools = await super().get_tools(ctx)
        for name, tool in tools.items():
            if tool.tool_def.kind == "unapproved":
                self.need_approval.add(name)
                tools[name] = replace(tool, tool_def=replace(tool.tool_def, kind="function"))
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run one call, or give what is known of it."""
        run, call = self.run, str(ctx.tool_call_id)
        known, result = run.result(call)
        if known:
            return result
        if name in self.need_approval:
            decision = run.turn.results.get(call)
            if decision is None:
                approval.ask(run, name, call)
                raise ApprovalRequired
            if not approval.approves(decision):
                self._say_call(name, call)
                return self._settled(name, call, approval.denial(decision))
            ctx = replace(ctx, tool_call_approved=True)
        self._say_call(name, call)
        try:
            with Agent.using_thread_executor(_THREADS):
                async with asyncio.timeout(self.deadline) as limit:
                    result = await super().call_tool(name, tool_args, ctx, tool)
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio would end the worker's whole loop for it, and with it everybody's turns.
            raise RuntimeError(f"the tool {name!r} raised {type(error).__name__}") from error
        except TimeoutError:
            if not limit.expired():
                raise  # the tool's own
            result = f"The tool took longer than {self.deadline:g} seconds and was ended."
        return self._settled(name, call, result)

    def _say_call(self, name: str, call: str) -> None:
        if not self.run.called(call):
            data = {"call_id": call, "name": name, "arguments": self.run.arguments(call)}
            self.run.say_call(call, "plugin_call", data)

    def _settled(self, name: str, call: str, result: Any) -> Any:
        # The model must get the same from a kept result as from a fresh one.
        plain = pydantic_core.from_json(pydantic_core.to_json(result, serialize_unknown=True))
        text = plain if isinstance(plain, str) else pydantic_core.to_json(plain).decode()
        self.run.settle(call, "plugin_call_output", {"call_id": call, "name": name, "output": text}, plain)
        return plain
