"""Parting words that are being written are seen through: else nobody would launch what the script said is due."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, answer, closed, delta, opened, ref
from turnstream.shared.agents.config import AgentSpec
from turnstream.shared.broker.retry import TRANSIENT, limited
from turnstream.shared.model_states import ModelStates
from turnstream.shared.session import endings
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.endings import Ender
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.outcomes import Attempt, Launch
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.worker.agent_versions import AgentVersions
from turnstream.worker.agents.model_gate import ModelGate
from turnstream.worker.agents.run_outcome import Done, NeedsClient
from turnstream.worker.budget import Budget
from turnstream.worker.lease import Leases
from turnstream.worker.publisher import MOST_GATHERED
from turnstream.worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place
    from turnstream.shared.session.event_log import Page
    from turnstream.worker.turn import RunningTurn


async def _nobody() -> list[dict[str, str]]:
    """No other worker lives."""
    return []


class Agent:
    """Does what the test says."""

    def __init__(self, run: Callable[[RunningTurn], Awaitable[Done | NeedsClient]]) -> None:
        self.spec = AgentSpec(name="demo", model="demo")
        self.run: Any = run


class Delayed(Tasks):
    """The scripts that part with a task; before each reply something else happens in the worker."""

    meanwhile: Callable[[], Awaitable[None]]

    async def _run(self, script: Any, /, *arguments: Any, **more: Any) -> Any:
        reply = await super()._run(script, *arguments, **more)
        if script.name in ("finish", "park", "release"):
            await self.meanwhile()
            await asyncio.sleep(0)
        return reply


class Worker:
    """A runner and its leases, on scripts whose replies are late."""

    def __init__(self, desk: Desk, run: Callable[[RunningTurn], Awaitable[Done | NeedsClient]]) -> None:
        self.tasks = Delayed(desk.redis, desk.settings)
        self.leases = Leases(self.tasks, desk.settings)
        ender = Ender(self.tasks, desk.log, desk.launches, desk.primary)
        self.runner = Runner(
            "w1",
            ender,
            self.leases,
            {"demo": Agent(run)},
            Budget(2**20),
            desk.settings,
            lambda _ref, _ms: None,
            AgentVersions({"demo": "1"}, _nobody),
            ModelGate(ModelStates(desk.primary, desk.settings.lease_ms), {}, frozenset()),
            lambda _kept: None,
        )

    async def renew(self) -> None:
        """The lease is renewed, and refused: the script has parted with the task by now."""
        for held in self.leases:
            await self.leases._renew(held)

    def cancel(self, reason: Reason) -> None:
        """Somebody cancels what runs here."""
        for held in self.leases:
            held.cancel(reason)


@pytest.mark.parametrize("reason", [None, Reason.SHUTDOWN, Reason.DEADLINE])
async def test_a_turn_that_ends_passes_the_turn_on(place: Place, reason: Reason | None) -> None:
    """Whatever comes while the end is being written, the session's next turn is launched."""
    desk = Desk(place)

    async def run(turn: RunningTurn) -> Done:
        return Done(b"{}")

    async def meanwhile() -> None:
        if reason is None:
            await worker.renew()
        else:
            worker.cancel(reason)

    worker = Worker(desk, run)
    worker.tasks.meanwhile = meanwhile
    await desk.submit(ref())
    await desk.submit(ref("t2"))
    await worker.runner.run_task({}, str(ref()), 1)
    assert list(await desk.launches.claim(10)) == ["o1/s1/t2:1"]
    assert (await desk.log.task(ref().keys, "t1"))["status"] == "completed"


async def test_a_turn_that_is_given_back_is_launched(place: Place) -> None:
    """A renewal that is refused since the task was given back does not stop its launch."""
    desk = Desk(place)

    async def run(turn: RunningTurn) -> Done:
        worker.cancel(Reason.SHUTDOWN)
        await asyncio.Event().wait()
        return Done(b"{}")

    worker = Worker(desk, run)
    worker.tasks.meanwhile = worker.renew
    await desk.submit(ref())
    await worker.runner.run_task({}, str(ref()), 1)
    assert list(await desk.launches.claim(10)) == ["o1/s1/t1:2"]


async def test_a_turn_whose_answers_are_in_is_launched(place: Place) -> None:
    """A renewal that is refused since the task is queued again does not stop its launch."""
    desk = Desk(place)

    async def run(turn: RunningTurn) -> NeedsClient:
        turn.ask("c1", {"name": "weather"})
        await turn.publisher.flush()
        await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
        return NeedsClient()

    worker = Worker(desk, run)
    worker.tasks.meanwhile = worker.renew
    await desk.submit(ref())
    await worker.runner.run_task({}, str(ref()), 1)
    assert list(await desk.launches.claim(10)) == ["o1/s1/t1:2"]


class Cut(Log):
    """A log whose connection is cut at the first read."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(limited(desk.redis, math.inf))
        self.reads: list[Any] = []

    async def _read(self, *arguments: Any, **options: Any) -> Page | None:
        self.reads.append(arguments)
        if len(self.reads) == 1:
            raise TRANSIENT[0]
        return await super()._read(*arguments, **options)


@pytest.mark.parametrize("open_message", [True, False])
async def test_an_end_outlives_a_cut_connection(place: Place, open_message: bool) -> None:
    """A connection that is lost while the end is read together costs a retry, not the attempt."""
    desk = Desk(place)
    attempt = await desk.running()
    if open_message:
        await desk.append(attempt, delta("m1", "Hi", opened("m1")))
        await desk.put(ref(), lease=await desk.past())
    else:
        await desk.append(attempt, closed("m1", "Hi", opened("m1")))

    async def run(turn: RunningTurn) -> Done:
        return Done(b"{}")

    worker = Worker(desk, run)
    worker.tasks.meanwhile = worker.renew
    cut = Cut(desk)
    worker.runner._ender = Ender(worker.tasks, cut, desk.launches, desk.primary)
    await desk.tasks.release(ref(), 1, operation())
    await worker.runner.run_task({}, str(ref()), 2)
    assert len(cut.reads) > 1
    assert (await desk.log.task(ref().keys, "t1"))["status"] == "completed"


async def test_a_stop_that_is_heard_twice_cancels_once(place: Place) -> None:
    """The control channel and the log both tell of a stop: the agent's own cleanup is not cut short by it."""
    desk = Desk(place)
    cleaned: list[int] = []

    async def run(turn: RunningTurn) -> Done | NeedsClient:
        held = next(iter(worker.leases))
        try:
            held.cancel(Reason.STOP)
            await asyncio.Event().wait()
        finally:
            held.cancel(Reason.LEASE_LOST)
            for step in range(3):
                await asyncio.sleep(0)
                cleaned.append(step)
        raise AssertionError

    worker = Worker(desk, run)
    await desk.submit(ref())
    await worker.runner.run_task({}, str(ref()), 1)
    assert cleaned == [0, 1, 2]


async def test_a_turn_that_errs_when_its_log_has_lost_its_end_is_launched_again(place: Place) -> None:
    """The agent makes an error of its cancellation, and what is to be read for its end is not there any more."""
    desk = Desk(place)
    began = asyncio.Event()

    async def run(turn: RunningTurn) -> Done:
        await turn.publisher.flush()
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("its cleanup failed") from None
        raise AssertionError

    async def nothing() -> None:
        pass

    worker = Worker(desk, run)
    worker.tasks.meanwhile = nothing
    await desk.submit(ref())
    running = asyncio.create_task(worker.runner.run_task({}, str(ref()), 1))
    await began.wait()
    (held,) = worker.leases
    held.attempt.claim.saw(held.attempt.epoch, held.attempt.claim.seq + 3)
    await worker.renew()
    await running
    assert [*await desk.launches.claim(10)] == [f"{ref()}:2"]


async def test_a_turn_whose_former_words_are_lost_is_launched_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are to be read before the agent begins, and are not there any more."""
    desk = Desk(place)
    first = await desk.running()
    await desk.append(first, opened("m1"))
    released = await desk.tasks.release(ref(), first.claim, operation())
    assert isinstance(released, Launch)
    read = endings.open_messages

    async def lost(ender: Ender, attempt: Attempt) -> Any:
        await wait_until(lambda: attempt.claim.op != attempt.claim.holder, "the version to be kept")
        attempt.claim.saw(attempt.epoch, attempt.claim.seq + 3)
        return await read(ender, attempt)

    async def run(turn: RunningTurn) -> Done:
        raise AssertionError

    async def nothing() -> None:
        pass

    monkeypatch.setattr("turnstream.worker.runner.open_messages", lost)
    worker = Worker(desk, run)
    worker.tasks.meanwhile = nothing
    await worker.runner.run_task({}, str(ref()), released.number)
    assert [*await desk.launches.claim(10)] == [f"{ref()}:{released.number + 1}"]


@pytest.mark.parametrize("wait", ["flush", "room"])
@pytest.mark.parametrize("inner", [False, True])
async def test_a_refusal_is_heard_once(place: Place, wait: str, *, inner: bool) -> None:
    """Who waits to say more hears of the loss there: its cleanup is not cut short by the cancellation that follows."""
    desk = Desk(place)
    cleaned: list[int] = []

    async def say(turn: RunningTurn) -> None:
        speaker = turn.speaker("", "demo")
        try:
            # The first append is in flight while the second one gathers.
            for _ in range(2):
                for number in range(MOST_GATHERED):
                    speaker.say("message", "assistant", {"type": "text", "text": str(number)})
                await getattr(turn.publisher, wait)()
        except BaseException:
            for step in range(3):
                await asyncio.sleep(0)
                cleaned.append(step)
            raise

    async def run(turn: RunningTurn) -> Done | NeedsClient:
        # What the turn begins with must not be what is refused.
        await turn.publisher.flush()
        await desk.tasks.take(ref(), "api", "canceled stop", operation())
        if inner:
            async with asyncio.TaskGroup() as group:
                group.create_task(say(turn))
        else:
            await say(turn)
        raise AssertionError

    worker = Worker(desk, run)
    await desk.submit(ref())
    await worker.runner.run_task({}, str(ref()), 1)
    assert cleaned == [0, 1, 2]
