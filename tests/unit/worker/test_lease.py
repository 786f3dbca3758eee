"""A turn that is cancelled while something starts that must not be cut short."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

from tests.support.instant import InstantLoop
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import ref
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.outcomes import Attempt, Claim, Fenced, Renewed
from turnstream.shared.settings import Settings
from turnstream.worker import lease
from turnstream.worker.lease import Held, Leases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo


class Runs:
    """A turn with two runs side by side, as sub-agents are: each starts within a block, until it is let go."""

    def __init__(self) -> None:
        self.go = [asyncio.Event(), asyncio.Event()]
        self.begun = 0
        self.started = 0
        self.held: Held | None = None

    async def turn(self) -> None:
        """Both runs; then it waits to be cancelled."""
        self.held = Held(Attempt(ref(), Claim(1, "1", 1, 1), {}))
        async with asyncio.TaskGroup() as group:
            for go in self.go:
                group.create_task(self._start(self.held, go))
            await asyncio.Event().wait()

    async def _start(self, held: Held, go: asyncio.Event) -> None:
        with held.undisturbed():
            self.begun += 1
            await go.wait()
            self.started += 1
        await asyncio.Event().wait()


async def test_a_cancellation_waits_for_all_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one block is not the end of the other one."""
    monkeypatch.setattr(lease, "UNDISTURBED_SECONDS", 60)
    runs = Runs()
    turn = asyncio.create_task(runs.turn())
    await wait_until(lambda: runs.begun == 2, "both to begin")
    assert runs.held is not None
    runs.held.cancel(Reason.STOP)
    assert turn.cancelling() == 0
    runs.go[0].set()
    await wait_until(lambda: runs.started == 1, "one to have started")
    assert turn.cancelling() == 0
    runs.go[1].set()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert runs.started == 2
    assert runs.held.reason is Reason.STOP


async def test_a_cancellation_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not get to its end in time is cut short."""
    monkeypatch.setattr(lease, "UNDISTURBED_SECONDS", 0.01)
    runs = Runs()
    turn = asyncio.create_task(runs.turn())
    await wait_until(lambda: runs.begun == 2, "both to begin")
    assert runs.held is not None
    runs.go[0].set()
    runs.held.cancel(Reason.STOP)
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert runs.started == 1


async def test_a_cancellation_that_is_put_off_twice_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop stood still for longer than an agent may clean up, and the loss of the lease comes while the stop is still put off."""
    monkeypatch.setattr(lease, "CLEANUP_SECONDS", 0)
    monkeypatch.setattr(lease, "UNDISTURBED_SECONDS", 0.02)
    go, begun = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def turn() -> bool:
        held = Held(Attempt(ref(), Claim(1, "1", 1, 1), {}))
        try:
            with held.undisturbed():
                begun.set_result(held)
                await go.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # Cleans up for longer than any cancellation may be put off.
            until = asyncio.get_running_loop().time() + 2 * lease.UNDISTURBED_SECONDS
            await wait_until(lambda: asyncio.get_running_loop().time() > until, "the time to be over")
        return True

    running = asyncio.create_task(turn())
    held = await begun
    held.cancel(Reason.STOP)
    held.cancel(Reason.LEASE_LOST)
    go.set()
    assert await running
    assert running.cancelling() == 1
    assert held.reason is Reason.STOP


async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
    """A model that goes on speaking."""
    while True:
        yield "word "
        await asyncio.sleep(0)


async def test_a_loop_that_stood_still_has_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is handed over whole, however long the loop stands still meanwhile, and at whichever of its steps.

    Where the library's hand-over is cut short in two of them, the task that has the stream waits for ever.
    """
    monkeypatch.setattr(lease, "UNDISTURBED_SECONDS", 0.02)
    agent = Agent(FunctionModel(stream_function=stream))

    async def turn(holds: asyncio.Future[Held]) -> None:
        held = Held(Attempt(ref(), Claim(1, "1", 1, 1), {}))
        async with agent.iter("hello") as run, AsyncExitStack() as stack:
            async for node in run:
                if Agent.is_model_request_node(node):
                    holds.set_result(held)
                    with held.undisturbed():
                        speech = await stack.enter_async_context(node.stream(run.ctx))
                    async for _ in speech:
                        pass

    before = asyncio.all_tasks()
    for steps in range(30):
        holds: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(turn(holds))
        (await holds).cancel(Reason.STOP)
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(lease.UNDISTURBED_SECONDS + 0.005)  # noqa: ASYNC251 - the loop stands still
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_until(lambda: asyncio.all_tasks() == before, f"no task to be left, of {steps} steps")


class Broker:
    """Renews until the attempt was taken, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.taken = False
        self.slow = 0.0
        self.away = 0

    async def renew(self, *_: object) -> Renewed | Fenced:
        """Answer as things were when it was asked; the reply may be late."""
        self.asked.append(asyncio.get_running_loop().time())
        taken = self.taken
        if self.away:
            self.away -= 1
            raise ConnectionResetError
        if self.slow:
            await asyncio.sleep(self.slow)
        return Fenced() if taken else Renewed()


class Clock:
    """The host's clock, which goes on while the loop's stands still."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead = 0.0
        self._loop = loop

    def time(self) -> float:
        """Unix seconds."""
        return 1_800_000_000 + self._loop.time() + self.ahead


def _held(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``run`` returns, given an attempt with a lease of 9 seconds, its broker and its host's clock."""
    broker = Broker()
    loop = InstantLoop()
    clock = Clock(loop)
    monkeypatch.setattr(time, "time", clock.time)

    async def main() -> Any:
        leases = Leases(broker, Settings(redis_url="memory://", lease_seconds=9))  # type: ignore[arg-type]
        held = leases.hold(Attempt(ref(), Claim(1, "1", 1, 1), {}))
        keeping = asyncio.create_task(leases.keep())
        try:
            return await run(held, broker, clock)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


async def _loses(held: Held, seconds: float) -> float:
    """Seconds until the turn is cancelled since its lease was lost, of so many at most."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        assert held.reason is Reason.LEASE_LOST
        return loop.time() - begun
    raise AssertionError("it was not cancelled")


def test_a_thawed_worker_asks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen while a renewal was in flight: its reply is as old as the freeze, and says nothing."""

    async def run(held: Held, broker: Broker, clock: Clock) -> float:
        broker.slow = 20
        await asyncio.sleep(3.5)
        broker.taken, broker.slow = True, 0
        await asyncio.sleep(broker.asked[-1] + 19.9 - asyncio.get_running_loop().time())
        return await _loses(held, 5)

    assert _held(run, monkeypatch) < 0.2


def test_a_host_that_was_suspended_asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's clock did not go on, the host's did."""

    async def run(held: Held, broker: Broker, clock: Clock) -> float:
        await asyncio.sleep(4)
        broker.taken, clock.ahead = True, 60
        return await _loses(held, 5)

    assert _held(run, monkeypatch) <= lease.CLOCK_SECONDS


def test_a_renewal_that_failed_is_tried_again_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thawed worker's first command may meet a connection that is no more."""

    async def run(held: Held, broker: Broker, clock: Clock) -> float:
        await asyncio.sleep(4)
        broker.taken, broker.away, clock.ahead = True, 1, 60
        return await _loses(held, 5)

    assert _held(run, monkeypatch) <= lease.CLOCK_SECONDS + 1


def test_a_lease_is_renewed_three_times_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more often nor less."""

    async def run(held: Held, broker: Broker, clock: Clock) -> list[float]:
        await asyncio.sleep(9.5)
        return [asked - broker.asked[0] for asked in broker.asked]

    assert _held(run, monkeypatch) == pytest.approx([0, 3, 6, 9])
