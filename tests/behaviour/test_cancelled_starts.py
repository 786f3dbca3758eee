"""A turn is cancelled at each step of the loop while a run, or a model's stream, starts: nothing of it is left.

That no task is left is checked where the broker is cleared away (`place`), for every test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering

from tests.support.client import check_whole, terminal
from tests.support.scripted import judge, player, script
from turnstream.shared.session.cancellation import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestContext

    from turnstream.worker.lease import Leases

# More than the library needs from its hooks to the run's, or the stream's, first step.
STEPS = 12


@dataclass
class Canceller(AbstractCapability[Any]):
    """Cancels the worker's turns so many steps of the loop after a run, or after its request, began."""

    leases: Leases | None = None
    at_request: bool = False
    steps: int = 0

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """The run is about to start."""
        if not self.at_request:
            self._step(self.steps)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """The request is about to be sent."""
        if self.at_request:
            self._step(self.steps)
        return request_context

    def _step(self, more: int) -> None:
        if more:
            asyncio.get_running_loop().call_soon(self._step, more - 1)
            return
        for held in self.leases or ():
            held.cancel(Reason.DEADLINE)


class Queue(AbstractCapability[Any]):
    """Sends all requests from one task of its own, which goes on when a run has ended."""

    _asked: asyncio.Queue[tuple[asyncio.Future[ModelResponse], Awaitable[ModelResponse]]]

    def get_ordering(self) -> CapabilityOrdering:
        """Around all else."""
        return CapabilityOrdering(position="outermost")

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Have it sent."""
        answered: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((answered, handler(request_context)))
        return await answered

    async def work(self) -> None:
        """Send what is asked for, one after the other."""
        self._asked = asyncio.Queue()
        while True:
            answered, request = await self._asked.get()
            answered.set_result(await request)


canceller = Canceller()
queue = Queue()
queued: Agent[None, str] = Agent(player.model, capabilities=[queue])
speaker: Agent[None, str] = Agent(player.model, capabilities=[canceller])
critic: Agent[None, str] = Agent(judge.model, capabilities=[canceller])

SPEAKER = {"python": f"{__name__}:speaker"}
CRITIC = {"python": f"{__name__}:critic"}


@pytest.fixture(autouse=True)
async def as_before() -> AsyncIterator[None]:
    """No test finds the canceller as another one left it."""
    yield
    canceller.leases = None


@pytest.mark.parametrize("at_request", [False, True])
@pytest.mark.parametrize(
    ("tables", "prompt"),
    [
        ({"lead": SPEAKER}, script("word " * 50)),
        (
            {"lead": {"subagents": ["helper"]}, "helper": SPEAKER},
            script([("helper", ["word " * 50])], "done"),
        ),
        ({"lead": {"critics": ["critic"]}, "critic": CRITIC}, '{"drafts": ["good [9]"]}'),
    ],
    ids=["agent", "sub-agent", "critic"],
)
async def test_nothing_is_left_of_a_run_that_is_cancelled_as_it_starts(
    serve: Any, tables: dict[str, dict[str, Any]], prompt: str, at_request: bool
) -> None:
    """The client of each is told that its turn was over its time."""
    client, stack = await serve(**tables)
    ((worker, _),) = stack.workers
    canceller.leases, canceller.at_request = worker.leases, at_request
    for steps in range(STEPS):
        canceller.steps = steps
        frames = await client.turn(f"s{steps}", prompt)
        check_whole(frames)
        ended = terminal(frames)
        assert ended is not None
        assert ended["status"] in ("failed", "completed")


async def test_a_task_of_an_agents_own_goes_on_behind_a_run_that_ends_well(serve: Any) -> None:
    """Each turn's requests are sent by the same one."""
    client, _ = await serve(lead={"python": f"{__name__}:queued"})
    working = asyncio.create_task(queue.work())
    try:
        for turn in ("first", "second"):
            ended = terminal(await client.turn("s", script(turn)))
            assert ended is not None
            assert ended["status"] == "completed"
            assert not working.done()
    finally:
        working.cancel()
