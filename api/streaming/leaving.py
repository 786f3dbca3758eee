"""Turns whose client lost its connection: found again by the client's own retry, or else stopped after a while."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef, owner_lost
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from redis.asyncio import Redis

    from turnstream.shared.session.endings import Ender
    from turnstream.shared.session.event_log import Log
    from turnstream.shared.session.tasks import Tasks

log = structlog.get_logger(__name__)

# What an answer calls when it cannot be given; done when the client's retry finds its turn.
Left: TypeAlias = "Callable[[], Awaitable[object]]"

# A client whose connection was lost comes back sooner, with the same Idempotency-Key.
GRACE_SECONDS = 10.0


# A client's own retry comes sooner.
RETRY_SECONDS = 60


class Leaving:
    """Keeps turns for their clients' retries, and ends those to which no client can come back.

    1. OpenAI's clients retry by themselves, without an idempotency key: a request is known again by what it asks. Only where its
       connection was lost before it was answered, or its front end stopped: the same request of another client is another turn.
    2. That a client left is noted of its session, so that the front end to which it comes back says otherwise. A front end that
       stops meanwhile leaves the turn to run to its end.
    """

    def __init__(self, primary: Redis, tasks: Tasks, reader: Log, ender: Ender) -> None:
        self._primary = primary
        self._tasks = tasks
        self._log = reader
        self._ender = ender
        self._waiting: set[asyncio.Task[None]] = set()

    def left(self, ref: TaskRef, *, stops: bool, request: str = "") -> Awaitable[object]:
        """Its client's connection is lost; ``stops``: it ends if the client stays away. ``request``: what a retry names, too.

        Done when the retry finds it.
        """
        if stops:
            self._begin(self._stop(ref))
        return asyncio.gather(*([self._begin(self._keep(ref, request))] if request else ()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return task

    async def lost(self, owner: str, request: str) -> TaskRef | None:
        """The turn of a request that was lost, once: its client asks again.

        Raises:
            BrokerAway: the broker did not answer.
        """
        name = owner_lost(owner, request)
        found = await command(self._primary, "GET", name)
        if found is None:
            return None
        await command(self._primary, "DEL", name)
        return TaskRef.parse(found)

    async def back(self, ref: TaskRef) -> None:
        """Its client asks for it again.

        Raises:
            BrokerAway: the broker did not answer.
        """
        await self._tasks.note(ref.keys, _note(ref), "")

    async def end(self) -> None:
        """Stop waiting."""
        for task in [*self._waiting]:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _keep(self, ref: TaskRef, request: str) -> None:
        try:
            name = owner_lost(ref.owner, request)
            await command(self._primary, "SET", name, str(ref), "EX", RETRY_SECONDS)
        except BrokerAway:
            log.warning("leaving.not_kept", ref=str(ref))

    async def _stop(self, ref: TaskRef) -> None:
        mark = secrets.token_hex(8)
        try:
            if not await self._tasks.note(ref.keys, _note(ref), mark):
                return
            await asyncio.sleep(GRACE_SECONDS)
            if await self._log.note(ref.keys, _note(ref)) == mark:
                await end_from_outside(self._ender, ref, TaskStatus.CANCELED, "client_left", who="client")
        except BrokerAway:
            log.warning("leaving.not_stopped", ref=str(ref))


def _note(ref: TaskRef) -> str:
    return f"left:{ref.task}"
