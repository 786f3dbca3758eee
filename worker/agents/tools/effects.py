"""What becomes of a call whose worker was lost: marked before it runs, and judged by its tool's policy afterwards.

Three cases, distinguished by two checkpoints. Neither is kept: the call never began, and runs. Its result is kept: that is
what it returned. Only the mark is: it may have taken effect or not, and ``on_lost`` decides. Whether the attempt before
was killed, drained, fenced or released to wait for a provider makes no difference.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from pydantic_ai import ApprovalRequired, ModelRetry

from turnstream.shared import metrics
from turnstream.worker.agents.calls import Outcome, call_of, calling
from turnstream.worker.agents.failures import for_operators
from turnstream.worker.agents.tools import approval
from turnstream.worker.agents.tools.threads import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnstream.worker.agents.agent_run import Run
    from turnstream.worker.agents.calls import Policy

log = structlog.get_logger(__name__)

_UNKNOWN = "This call was interrupted: whether it took effect is unknown. It was not run again."
_REASON = "This call was interrupted, and whether it took effect is unknown. Run it again?"


class Effect:
    """One call of a tool, which may have an effect.

    Args:
        label: the MCP server, or the agent, for the client.
    """

    def __init__(self, run: Run, policy: Policy, id_: str, name: str, label: str, deadline: float) -> None:
        self._run = run
        self._policy = policy
        self._id = id_
        self._label = label
        self._deadline = deadline
        self.call = call_of(run.turn, id_, name, deadline)

    async def outcome(self) -> tuple[bool, Any]:
        """Whether the call is not to be run, and what is to be given as its result then.

        Raises:
            ApprovalRequired: the client was asked.
        """
        if self._policy.read_only or not self._run.started(self._id):
            return False, None
        on_lost = self._policy.on_lost
        metrics.calls_lost.add(on_lost if isinstance(on_lost, str) else "function")
        log.info("tool.lost", tool=self.call.name, call=self._id)
        if on_lost == "rerun":
            return False, None
        if on_lost == "ask":
            return self._asked()
        return (True, _UNKNOWN) if isinstance(on_lost, str) else await self._found_out(on_lost)

    async def begin(self) -> None:
        """Keep the mark, unless there is no effect; when this returns it is in the log's store.

        Raises:
            LostAttempt: another attempt has the task, or it has ended.
        """
        if not self._policy.read_only:
            await self._run.start(self._id)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The call runs in this block."""
        with calling(self.call):
            try:
                yield
            except ModelRetry:
                # By its own account the tool did nothing yet.
                self._run.not_started(self._id)
                raise

    def _asked(self) -> tuple[bool, Any]:
        run = self._run
        question = run.question(self._id)
        decision = approval.decided(
            run, self.call.name, self._id, self._label, question=question, reason=_REASON
        )
        if decision is None:
            raise ApprovalRequired
        if approval.approves(decision):
            return False, None
        return True, f"{_UNKNOWN} {approval.denial(decision)}"

    async def _found_out(self, function: Callable[..., Any]) -> tuple[bool, Any]:
        arguments = orjson.loads(self._run.arguments(self._id))
        try:
            with calling(self.call):
                async with asyncio.timeout(self._deadline):
                    found = await _called(function, self.call, arguments)
        except Exception as error:
            log.warning("tool.not_found_out", tool=self.call.name, **for_operators(error))
            found = Outcome.UNKNOWN
        if found is Outcome.NOT_DONE:
            return False, None
        return True, _UNKNOWN if found is Outcome.UNKNOWN else found


async def _called(function: Callable[..., Any], *given: object) -> Any:
    """What a function returns; one that is not async runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    work = partial(copy_context().run, function, *given)
    return await asyncio.get_running_loop().run_in_executor(THREADS, work)
