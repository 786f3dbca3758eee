"""Tools that the worker runs: said, run under a deadline, their results kept; with approval where asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, ApprovalRequired
from pydantic_ai.toolsets import WrapperToolset

from turnstream.shared import metrics
from turnstream.worker.agents.tools import approval, results
from turnstream.worker.agents.tools.effects import Effect
from turnstream.worker.agents.tools.threads import THREADS, NoThread

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.toolsets import ToolsetTool

    from turnstream.worker.agents.agent_run import Run
    from turnstream.worker.agents.calls import Policies


@dataclass
class ServerTools(WrapperToolset[Any]):
    """Wraps the agent's own tools.

    Duties:
        1. run a call at most once after its result was kept;
        2. ask the client first when the tool needs approval, and take no for a result;
        3. mark a call that may have an effect before it runs, and go by its policy when its worker was lost;
        4. end a call that takes longer than ``deadline`` seconds; the model is told.
    """

    run: Run
    agent: str
    deadline: float
    policies: Policies
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
        known, kept = run.result(call)
        if known:
            return results.given(kept)
        run.check_arguments(call)
        if name in self.need_approval:
            decision = approval.decided(run, name, call, self.agent)
            if decision is None:
                raise ApprovalRequired
            if not approval.approves(decision):
                self._say_call(name, call)
                return self._settled(name, call, approval.denial(decision))
            ctx = replace(ctx, tool_call_approved=True)
        effect = Effect(run, self.policies.of(tool.tool_def), call, name, self.agent, self.deadline)
        known, result = await effect.outcome()
        self._say_call(name, call)
        if not known:
            await effect.begin()
            with metrics.tool_seconds.timing(self.agent, name), effect.running():
                result = await self._returned(name, tool_args, ctx, tool)
        return self._settled(name, call, result)

    async def _returned(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """What the tool returns, or words about why it does not."""
        try:
            with Agent.using_thread_executor(THREADS):
                async with asyncio.timeout(self.deadline) as limit:
                    return await super().call_tool(name, tool_args, ctx, tool)
        except NoThread:
            return "The tool was not run: too many calls of tools hang in this worker."
        except TimeoutError:
            if not limit.expired():
                raise  # the tool's own
            return f"The tool took longer than {self.deadline:g} seconds and was ended."
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # SystemExit would end the worker's whole loop, and with it everybody's turns; nobody else
            # expects any other kind.
            raise RuntimeError(f"the tool {name!r} raised {type(error).__name__}") from error

    def _say_call(self, name: str, call: str) -> None:
        if not self.run.called(call):
            data = {"call_id": call, "name": name, "arguments": self.run.arguments(call)}
            self.run.say_call(call, "plugin_call", data)

    def _settled(self, name: str, call: str, returned: Any) -> Any:
        result = results.result_of(returned)
        output = {"call_id": call, "name": name, "output": result.shown}
        self.run.settle(call, "plugin_call_output", output, result.kept)
        return result.given
