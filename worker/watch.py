"""The watch: detects a killed worker by its lifeline (shared/lifelines.py), long before its leases end.

Any rescuer may look; the broker limits that to a few looks a second, however many workers there are. While no turn is
running, none looks.

A channel without its subscriber proves little: a connection may be cut, and a frozen process does not make another one. So
all of these conditions must hold before its turns are taken over; where one does not, a turn's lease decides:

    - the process is on record as subscribed: one that closes its connection, or finds it closed, takes that back;
    - in several looks in a row, for about a second, the channel had no subscriber;
    - the broker is the same incarnation, and no process has lost a connection to it, for one lease;
    - the rescuer that looks has run without a pause: where it was frozen, others may have been;
    - the connection that carried the process's commands is gone, too: both are closed only when a process ends;
    - the turn showed no activity (lease renewed, anything appended) for about a second (lua/sweep.lua).

A false detection would cost an attempt, and nothing else: the process is fenced.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import NoPermissionError

from turnstream.shared.broker.client import incarnation
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.lifelines import Lifelines
from turnstream.worker.lifeline import TODO

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.lifelines import Lost
    from turnstream.shared.settings import Settings
    from turnstream.worker.rescuer import Rescuer

log = structlog.get_logger(__name__)

# Between two looks of one rescuer.
LOOK_SECONDS = 0.4

# A look that comes later than this after its time does not count, nor do those in the next `PUNCTUAL_SECONDS`.
LATE_SECONDS = 0.25
PUNCTUAL_SECONDS = 0.9

# How long the result of a look may be acted on: this process may be frozen in between.
TRUE_SECONDS = 1.0

# For how long it looks after a doorbell, though no turn is running: one may be claimed a little later.
AFTER_BELL_SECONDS = 2.0

# Between two looks without a doorbell. Signals may be lost.
UNASKED_SECONDS = 30.0


class Watch:
    """Looks at the lifelines of workers while there are turns, and has those of killed ones taken over."""

    def __init__(self, redis: Redis, rescuer: Rescuer, settings: Settings) -> None:
        self._redis = redis
        self._lifelines = Lifelines(redis)
        self._rescuer = rescuer
        self._lease = settings.lease_seconds
        # By the loop's clock: when a doorbell rang last, this process was disturbed, and it looked.
        self._rang_at = self._disturbed_at = self._looked_at = -math.inf
        # As the last look has seen.
        self._is_used = False
        self._refused = ""

    def rang(self) -> None:
        """A turn may be claimed."""
        self._rang_at = asyncio.get_running_loop().time()

    def disturbed(self) -> None:
        """Note that this process lost a connection: what cut it may have cut others', so a missing subscriber proves nothing for a while."""
        self._disturbed_at = asyncio.get_running_loop().time()

    async def tend(self) -> None:
        """Look for ever; to be run as a task."""
        loop = asyncio.get_running_loop()
        self.disturbed()
        punctual_since = loop.time()
        while True:
            # The doorbell wakes all rescuers at once: they are not to look at once, too.
            asked, seconds = loop.time(), LOOK_SECONDS * random.uniform(0.8, 1)  # noqa: S311
            await asyncio.sleep(seconds)
            if loop.time() > asked + seconds + LATE_SECONDS:
                punctual_since = loop.time()
            elif loop.time() - punctual_since >= PUNCTUAL_SECONDS and self._is_worth_while():
                try:
                    await self._look()
                except Exception as error:
                    self._failed(error)
                if loop.time() > asked + seconds + LATE_SECONDS:
                    # It stood still then, or the broker did.
                    punctual_since = loop.time()

    def _is_worth_while(self) -> bool:
        now = asyncio.get_running_loop().time()
        return now - self._disturbed_at >= self._lease and (
            self._is_used
            or now - self._rang_at < AFTER_BELL_SECONDS
            or now - self._looked_at > UNASKED_SECONDS
        )

    async def _look(self) -> None:
        if not self._rescuer.outages.is_calm:
            return
        server = await incarnation(self._redis)
        self._looked_at = asyncio.get_running_loop().time()
        seen = await self._lifelines.look(server, int(1000 * self._lease))
        self._is_used = not seen.idle
        if seen.refused:
            self._cannot(seen.refused)
        for lost in seen.lost:
            await self._take_over(lost)

    async def _take_over(self, lost: Lost) -> None:
        if await self._lifelines.is_connected(lost.connection):
            return
        until = self._looked_at + TRUE_SECONDS
        settled = await self._rescuer.take_over(lost.process, lost.jobs, until)
        if settled:
            log.warning("rescuer.worker_dead", worker=lost.process, turns=len(settled))
        await self._lifelines.let_go(lost.process, settled)

    def _failed(self, error: Exception) -> None:
        if is_transient(error) and not isinstance(error, NoPermissionError):
            self.disturbed()
            self._rescuer.outages.trouble()
        else:
            self._cannot(f"{type(error).__name__}: {error}")

    def _cannot(self, why: str) -> None:
        if why != self._refused:
            self._refused = why
            log.warning("rescuer.cannot_take_over", error=why, todo=TODO)
