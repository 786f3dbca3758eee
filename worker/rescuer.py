"""The rescuer: notices what nobody else would. Here a lost worker is noticed.

Every worker has one. They share the hints in ``ts:due``; taking a hint dates it anew, so two never
act on one task at a time. What must be done is decided by lua/sweep.lua on the task's own hash.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from shared import measures
from shared.broker import is_trouble
from shared.endings import end_from_outside
from shared.keys import TaskRef
from shared.launches import QUEUED_LOOK_MS
from shared.tasks import Drop, Launch, MustEnd, Passed, Redate, operation

if TYPE_CHECKING:
    from shared.endings import Ender
    from shared.settings import Settings

log = structlog.get_logger(__name__)

# Between two looks at the hints. It adds to the time in which a lost worker is noticed.
LOOK_SECONDS = 1.0

# Hints taken at once.
AT_ONCE = 50

# A hint that was taken is due again after this, should the rescuer die with it, or never hear that it has it.
AGAIN_MS = 3_000


class Rescuer:
    """Sweeps what is due.

    Duties:
        1. take due refs and sweep each: launch again, end, re-date or drop;
        2. hold still until the broker has taken its writes for one lease, so that an outage (away, read-only) does not
           look like a hundred dead workers: their renewals come first. One whose memory is full takes both.
    """

    def __init__(self, ender: Ender, settings: Settings) -> None:
        self._ender = ender
        self._lease = settings.lease_seconds
        self._whole_since = time.monotonic()

    def trouble(self) -> None:
        """The broker was away just now, as anybody in this process noticed."""
        self._whole_since = time.monotonic()

    async def watch(self) -> None:
        """Look for ever; to be run as a task for as long as the worker lives."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now - last > LOOK_SECONDS + self._lease:
                # This process stood still (frozen, or starved). It cannot judge others' silence yet.
                self.trouble()
            last = now
            try:
                await self._look()
            except Exception as error:
                self.trouble()
                if not is_trouble(error):
                    log.exception("rescuer.failed")

    async def _look(self) -> None:
        if time.monotonic() - self._whole_since < self._lease:
            await self._ender.launches.try_writing()
            return
        more = True
        while more:
            taken, due = await self._ender.launches.due(AT_ONCE, AGAIN_MS)
            for text in due:
                await self.sweep(TaskRef.parse(text), taken)
            more = len(due) == AT_ONCE

    async def sweep(self, ref: TaskRef, taken: int) -> None:
        """Look at one task, whose hint is ``taken``, and do what must be done."""
        launches = self._ender.launches
        match await self._ender.tasks.sweep(ref, operation()):
            case Launch(number):
                measures.rescues.add("launched")
                log.info("rescuer.launched", ref=str(ref), launch=number)
                await launches.launch(ref, number)
                # Under a backlog it may wait there for long. Once it is claimed this is void.
                await launches.redate(ref, QUEUED_LOOK_MS, taken)
            case Passed(task, number):
                log.info("rescuer.passed", ref=str(ref), to=task)
                await launches.launch(TaskRef(ref.owner, ref.session, task), number)
            case MustEnd(seen, status, why):
                measures.rescues.add("ended")
                log.warning("rescuer.ends", ref=str(ref), status=status, why=why)
                await end_from_outside(self._ender, ref, status, why, who="rescuer", seen=seen)
            case Redate(ms):
                await launches.redate(ref, ms, taken)
            case Drop():
                await launches.redate(ref, -1, taken)
