"""Turns whose client left for good: stopped after a while, unless it came back, to whichever front end."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import structlog

from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from turnstream.shared.session.endings import Ender
    from turnstream.shared.session.event_log import Log
    from turnstream.shared.session.tasks import Tasks

log = structlog.get_logger(__name__)

# A client whose connection was lost comes back sooner, with the same Idempotency-Key.
GRACE_SECONDS = 10.0


class Leaving:
    """Ends turns for which nobody can come back.

    That a client left is noted of its session, so that the front end to which it comes back says otherwise. A front end that
    stops meanwhile leaves the turn to run to its end.
    """

    def __init__(self, tasks: Tasks, reader: Log, ender: Ender) -> None:
        self._tasks = tasks
        self._log = reader
        self._ender = ender
        self._waiting: set[asyncio.Task[None]] = set()

    def left(self, ref: TaskRef) -> None:
        """Its client's connection is lost."""
        task = asyncio.create_task(self._stop(ref))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def back(self, ref: TaskRef) -> None:
        """Its client asks for it again.

        Raises:
            BrokerAway: the broker did not answer.
        """
        await self._tasks.note(ref.keys, _note(ref), "")

    async def end(self) -> None:
        """Wait for nobody any more."""
        for task in [*self._waiting]:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

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
