"""A worker's own lifeline: the channel by which others detect that it was killed, and the jobs that they then take over."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import NoPermissionError

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import PipedRedis, command
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.lifelines import Lifelines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from redis.asyncio import Redis

    from turnstream.shared.broker.pipeline import Pipe

log = structlog.get_logger(__name__)

# How long what has ended may be noted as held, so that many ends are one command.
TIDY_SECONDS = 0.5

# Between two times that all is noted anew, should the broker have lost it.
ANEW_SECONDS = 60.0

RETRY_SECONDS = 0.2
# The same, where it is no trouble that passes.
FAILED_SECONDS = 10.0

END_SECONDS = 1.0


class Lifeline:
    """Keeps true what the broker notes of this process.

    Duties:
        1. note it as subscribed once it is, with the connection that carries its commands;
        2. take that back as soon as it is not any more, for whatever reason: a live process must not be looked for;
        3. note which jobs it holds: those it claims are noted by the claim, and here it is noted when they have ended.

    The embedded broker has no other processes, and needs nothing of this.
    """

    def __init__(
        self, redis: Redis, process: str, jobs: Callable[[], Collection[str]], disturbed: Callable[[], None]
    ) -> None:
        """``jobs`` are those that it holds now; ``disturbed`` is called when it has lost a connection."""
        self._redis = redis
        self._pipe = redis.pipe if isinstance(redis, PipedRedis) else None
        self._lifelines = Lifelines(redis)
        self._jobs = jobs
        self._disturbed = disturbed
        # What claims are to name, empty: nothing is noted.
        self.process = process if self._pipe is not None else ""
        self.channel = f"{keys.ALIVE}{process}".encode()
        self._is_subscribed = self._was_lost = False
        # What the broker has on record: whether it is subscribed, and on which of its connections; None: nothing yet.
        self._noted: bool | None = None
        self._connection = 0
        self._noted_at = 0.0
        self._refused = False
        self._took: set[str] = set()
        self._ended: set[str] = set()
        self._changed = asyncio.Event()

    def subscribed(self) -> None:
        """The process is subscribed to its channel."""
        self._is_subscribed = True
        self._changed.set()

    def lost(self) -> None:
        """It is not any more."""
        self._is_subscribed, self._was_lost = False, True
        self._disturbed()
        self._changed.set()

    def took(self, job: str) -> None:
        """It holds a job that it did not claim."""
        if self.process:
            self._took.add(job)
            self._changed.set()

    def ended(self, job: str) -> None:
        """It does not hold a job any more."""
        if self.process:
            self._took.discard(job)
            self._ended.add(job)

    async def tend(self) -> None:
        """Keep the record true for ever; to be run as a task."""
        while True:
            try:
                # The embedded broker has no record.
                async with asyncio.timeout(TIDY_SECONDS if self._pipe else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._pipe is None:
                continue
            try:
                await self._note(self._pipe)
                await self._tidy()
            except Exception as error:
                passes = is_transient(error) and not isinstance(error, NoPermissionError)
                if not is_transient(error):
                    log.exception("lifeline.failed")
                elif not passes and not self._refused:
                    self._refused = True
                    log.warning("rescuer.cannot_take_over", error=str(error), todo=TODO)
                if not passes:
                    # It may last: what is noted of these is found when all is noted anew.
                    self._took.clear()
                    self._ended.clear()
                await asyncio.sleep(RETRY_SECONDS if passes else FAILED_SECONDS)
                self._changed.set()

    async def end(self) -> None:
        """Take it all back; does not wait for a broker that is away. What it holds still is left for others to notice."""
        if self._pipe is None or self._jobs():
            return
        self._is_subscribed = False
        try:
            async with asyncio.timeout(END_SECONDS):
                self._ended.update(await self._lifelines.note(self.process, "", (), disturbed=False))
                await self._tidy()
        except Exception as error:
            if not (is_transient(error) or isinstance(error, TimeoutError)):
                raise

    async def _note(self, pipe: Pipe) -> None:
        """Update the broker's record, if it is not true any more."""
        subscribed = self._is_subscribed
        # Lost, and another one made: this one by itself, when there was something to send.
        moved = bool(self._noted) and pipe.connections != self._connection
        returns = subscribed and not self._noted
        disturbed = self._noted is not None and (moved or returns or self._was_lost)
        anew = bool(self._noted) and time.monotonic() - self._noted_at >= ANEW_SECONDS
        if subscribed == bool(self._noted) and not disturbed and not anew:
            return
        if moved:
            self._disturbed()
        connection = await self._name_of(pipe) if subscribed else ""
        self._was_lost = False
        try:
            more = await self._lifelines.note(self.process, connection, self._jobs(), disturbed=disturbed)
        except BaseException:
            self._was_lost = disturbed
            raise
        self._noted, self._noted_at = subscribed, time.monotonic()
        # What is being claimed when the broker answers has begun here by now.
        self._ended.update(set(more).difference(self._jobs()))

    async def _name_of(self, pipe: Pipe) -> str:
        """What the broker calls the connection that carries this process's commands."""
        while True:
            self._connection = pipe.connections
            name = await command(self._redis, "CLIENT", "ID")
            if pipe.connections == self._connection:
                return str(name)

    async def _tidy(self) -> None:
        while self._took:
            job = self._took.pop()
            await self._lifelines.hold(self.process, job)
        ended, self._ended = self._ended.difference(self._jobs()), set()
        try:
            await self._lifelines.let_go(self.process, sorted(ended))
        except BaseException:
            self._ended |= ended
            raise


# What operators are to do when the broker refuses.
TODO = "load deploy/redis.acl of this release; until then a lost worker is detected by its leases alone"
