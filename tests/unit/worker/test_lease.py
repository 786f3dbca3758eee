"""A lease is renewed in time, and a turn whose lease was lost is cancelled soon."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.instant import InstantLoop
from tests.unit.shared.session.support import ref
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.outcomes import Attempt, Claim, Fenced, Renewed
from turnstream.shared.settings import Settings
from turnstream.worker import lease
from turnstream.worker.lease import Held, Leases, Moment

if TYPE_CHECKING:
    from turnstream.shared.broker.keys import TaskRef


class Broker:
    """Renews until the attempt was taken, and notes when it was asked."""

    def __init__(self) -> None:
        # When it was asked, and did not hang.
        self.asked: list[float] = []
        self.leases: Leases
        self.hangs: TaskRef | None = None
        self.taken = False
        self.slow = 0.0
        self.away = 0

    async def renew(self, ref: TaskRef, _: object) -> Renewed | Fenced:
        """Answer as things were when it was asked; the reply may be late."""
        if ref == self.hangs:
            await asyncio.sleep(8)
            raise ConnectionResetError
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
        broker.leases = leases
        held = leases.hold(Attempt(ref(), Claim(1, "1", 1, 1), {}), Moment())
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


def test_a_server_that_does_not_answer_holds_up_no_renewals_at_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions are at many nodes, and one that hangs lets each command wait for seconds. The others are not asked much more often."""

    async def run(held: Held, broker: Broker, clock: Clock) -> list[float]:
        broker.leases.hold(Attempt(ref(session="s2"), Claim(1, "1", 1, 1), {}), Moment())
        broker.hangs = held.attempt.ref
        await asyncio.sleep(30.5)
        return [after - before for before, after in itertools.pairwise(broker.asked)]

    waits = _held(run, monkeypatch)
    assert len(waits) >= 9
    assert 3 * (1 - lease.AGAIN) <= min(waits) <= max(waits) <= 3


def test_a_lease_that_came_late_is_renewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from when the broker gave it, and the worker may have been frozen before it read that."""

    async def run(held: Held, broker: Broker, clock: Clock) -> float:
        loop, asked = asyncio.get_running_loop(), Moment()
        await asyncio.sleep(5)
        broker.leases.drop(held)
        broker.asked.clear()
        broker.leases.hold(held.attempt, asked)
        begun = loop.time()
        await asyncio.sleep(4)
        return broker.asked[0] - begun

    assert _held(run, monkeypatch) <= lease.CLOCK_SECONDS


def test_a_lease_is_renewed_three_times_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more often nor less."""

    async def run(held: Held, broker: Broker, clock: Clock) -> list[float]:
        await asyncio.sleep(12.5)
        return [asked - broker.asked[0] for asked in broker.asked]

    assert _held(run, monkeypatch) == pytest.approx([0, 3, 6, 9])
