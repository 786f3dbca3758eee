"""Leases: what this worker holds, kept while it lives, and dropped at once when it is lost."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.outcomes import Behind, Ended, Renewed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnstream.shared.session.outcomes import Attempt, Refusal
    from turnstream.shared.session.tasks import Tasks
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# Of one lease. Three chances: two of them may be lost before anybody takes over.
RENEWALS = 3

# Of the time between two renewals: after this one that was not answered is tried again.
AGAIN = 1 / 4

# Between two cancellations of one agent: it has so long to clean up undisturbed.
CLEANUP_SECONDS = 5.0

# Between two looks at the host's clock, which tells that it was suspended.
CLOCK_SECONDS = 0.5

# What is no time: clocks are read with an error.
SHORT_SECONDS = 0.001


class Moment:
    """When it was made, by the loop's clock and the host's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._at, self._wall = self._loop.time(), time.time()

    def age(self) -> float:
        """Seconds since then, by the clock that went on further. Infinite where the host's was set back."""
        wall = time.time() - self._wall
        return math.inf if wall < 0 else max(self._loop.time() - self._at, wall)


class Held:
    """One attempt that this worker runs, and the way to cancel it with a reason."""

    def __init__(self, attempt: Attempt, renewed: Moment, renew_after: float) -> None:
        """Its lease, which it has since ``renewed``, is renewed so many seconds after that."""
        self.attempt = attempt
        self.renewed = renewed
        self.renew_after = renew_after
        self.reason: Reason | None = None
        # The launch that is due once this attempt has stopped, because the log lost what it wrote: see `Behind`.
        self.launch = 0
        # Its parting words are being written. They are fenced by themselves, and what the script then says
        # is due (a launch) is known here alone: nothing may cut that off any more.
        self.parting = False
        # The log or the lease refused it: there is nothing to renew any more.
        self.over = False
        # Unix seconds of the turn's deadline, by this host's clock.
        self.ends = math.inf
        self._task = asyncio.current_task()
        self._cancel_again = 0.0

    def cancel(self, reason: Reason) -> None:
        """Cancel the turn. Keeps the first reason; LEASE_LOST replaces any but STOP, and STOP replaces all."""
        if self._task is None or self._task.done() or self.parting:
            return
        if (
            self.reason is None
            or reason is Reason.STOP
            or (reason is Reason.LEASE_LOST and self.reason is not Reason.STOP)
        ):
            self.reason = reason
        # A stop is heard twice: on the control channel, and from the log that refuses. A second cancellation
        # would cut short what the agent does about the first, and leave its streams and tasks behind.
        loop = asyncio.get_running_loop()
        if loop.time() < self._cancel_again:
            return
        self._cancel_again = loop.time() + CLEANUP_SECONDS
        self._task.cancel(msg=self.reason)

    def refused(self, outcome: Refusal) -> None:
        """The log or the lease refused the attempt."""
        self.over = True
        if isinstance(outcome, Behind):
            self.launch = outcome.launch
        self.cancel(Reason.STOP if isinstance(outcome, Ended) else Reason.LEASE_LOST)


class Leases:
    """The attempts of this worker.

    Duties:
        1. know which attempts run here;
        2. renew their leases, three times in one lease, also while a tool is silent or the worker drains; at once when
           the process was frozen or its host suspended for as long;
        3. cancel the turns whose lease was lost, and those that ``ts:control`` names.
    """

    def __init__(self, tasks: Tasks, settings: Settings) -> None:
        self._tasks = tasks
        self._interval = settings.lease_seconds / RENEWALS
        self._held: dict[str, Held] = {}
        self._now = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def hold(self, attempt: Attempt, asked: Moment) -> Held:
        """Keep the attempt's lease, which was ``asked`` for then, until `drop`; called by the task that runs it."""
        held = Held(attempt, asked, self._interval)
        if self._left(held) < CLOCK_SECONDS:
            self._now.set()
        former = self._held.get(str(attempt.ref))
        if former is not None:
            former.cancel(Reason.LEASE_LOST)
        self._held[str(attempt.ref)] = held
        return held

    def drop(self, held: Held) -> None:
        """Stop keeping it."""
        ref = str(held.attempt.ref)
        if self._held.get(ref) is held:
            del self._held[ref]

    def lost(self, ref: str, attempt: int, reason: Reason) -> None:
        """Somebody took ``attempt`` of a task: cancel the older one, if it runs here."""
        held = self._held.get(ref)
        if held is not None and held.attempt.number < attempt:
            held.cancel(reason)

    def renew_now(self) -> None:
        """Renew at the next opportunity: control messages may have been missed."""
        self._now.set()

    async def keep(self) -> None:
        """Renew for ever; to be run as a task for as long as the worker lives."""
        # Renewals that wait for their reply, and when they were asked for.
        under_way: dict[asyncio.Task[bool], tuple[Held, Moment]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                now = Moment()
                waiting = {held for held, _ in under_way.values()}
                for held in self:
                    # What is due soon goes with what is due.
                    is_due = self._now.is_set() or self._left(held) <= self._interval * AGAIN
                    if is_due and not held.over and held not in waiting:
                        under_way[group.create_task(self._renew(held))] = held, now
                self._now.clear()
                if under_way:
                    # A server that does not answer holds up no renewals at others.
                    await asyncio.wait(under_way, timeout=self._interval * AGAIN)
                for task in [task for task in under_way if task.done()]:
                    held, asked = under_way.pop(task)
                    if task.result():
                        # From when it was asked for: a reply may be as old as the process was frozen.
                        held.renewed, held.renew_after = asked, self._interval
                    else:
                        held.renewed, held.renew_after = Moment(), self._interval * AGAIN
                if not under_way:
                    await self._pause()

    def _left(self, held: Held) -> float:
        """Seconds until a renewal is due, by either clock: the loop's stands still while the host is suspended."""
        return held.renew_after - held.renewed.age()

    async def _pause(self) -> None:
        """Wait until a renewal is due."""
        while not self._now.is_set():
            left = min((self._left(held) for held in self if not held.over), default=math.inf)
            if left < SHORT_SECONDS:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, CLOCK_SECONDS, self._interval)):
                    await self._now.wait()

    async def _renew(self, held: Held) -> bool:
        """Whether the broker answered."""
        attempt = held.attempt
        try:
            outcome = await self._tasks.renew(attempt.ref, attempt.claim)
        except Exception as error:
            if not is_transient(error):
                log.exception("lease.renew_failed", ref=str(attempt.ref))
            return False
        if not isinstance(outcome, Renewed):
            log.info(
                "lease.lost", ref=str(attempt.ref), attempt=attempt.number, because=type(outcome).__name__
            )
            held.refused(outcome)
        return True
