"""The tasks that pydantic-ai makes for one run of an agent: none of them outlives the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult


class LibraryTasks(AbstractCapability[Any]):
    """Ends what a run leaves behind. Enter it around the run, and give it to the run among its ``capabilities``.

    The library has a task wait while a run goes on, and another one while an answer is streamed; each holds what the
    run has open, as the model's connection. A run that is cancelled after such a task is ready, and before the run
    has taken it over, leaves it waiting for ever. Those are single steps of the loop, but a turn is stopped at any of them.
    A run that ends well leaves nothing, and a task that goes on behind it is the agent's own.
    """

    def __init__(self) -> None:
        self._runs_in: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._runs_in = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def get_ordering(self) -> CapabilityOrdering:
        """Outside those of the agent, which may wait before they let the library go on."""
        return CapabilityOrdering(position="outermost")

    async def wrap_run(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the library's signature
        *,
        handler: Callable[[], Awaitable[AgentRunResult[Any]]],
    ) -> AgentRunResult[Any]:
        """Note the task that waits for the run's end."""
        self._note()
        return await handler()

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the library's signature
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Note the task that waits for the stream's end. A request without a stream has none."""
        self._note()
        return await handler(request_context)

    def _note(self) -> None:
        task = asyncio.current_task()
        if task is not None and task is not self._runs_in:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
