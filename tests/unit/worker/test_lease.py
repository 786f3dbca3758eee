"""A turn that is cancelled while something starts that must not be cut short."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import ref
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.outcomes import Attempt, Claim
from turnstream.worker import lease
from turnstream.worker.lease import Held


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
