"""Keeps the operators' list of live tasks true.

Whoever ends a task takes it off the list. If they die first, or a rescuer launches what just ended, the entry
stays: a few are looked at every few seconds, so that none stays for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, now_ms
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from turnstream.shared.broker.client import Broker

log = structlog.get_logger(__name__)

# Entries looked at, and the time between two looks.
AT_ONCE = 20
LOOK_SECONDS = 5.0

# A task that is nowhere to be found may be listed a moment before it is made.
YOUNG_MS = 60_000


class LiveList:
    """Looks at some of the entries now and then."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def tend(self) -> None:
        """Do so for ever; to be run as a task."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception as error:
                if not is_transient(error):
                    log.exception("live_list.failed")

    async def look(self) -> None:
        """Take off what has ended, among a few."""
        flat = await command(self._broker.primary, "ZRANDMEMBER", keys.LIVE, AT_ONCE, "WITHSCORES")
        if not flat:
            return
        now = await now_ms(self._broker.primary)
        for at in range(0, len(flat), 2):
            if await self._is_over(flat[at], float(flat[at + 1]), now):
                await command(self._broker.primary, "ZREM", keys.LIVE, flat[at])

    async def _is_over(self, entry: bytes, since: float, now: int) -> bool:
        """Whether there is no live task behind an entry, which was listed at ``since`` (the broker's Unix ms, as ``now``)."""
        try:
            ref = TaskRef.parse(entry)
            status = await command(self._broker.sessions, "HGET", ref.keys.task(ref.task), "status")
        except (ValueError, ResponseError) as error:
            if is_transient(error):
                raise
            metrics.unreadable.add("live task")
            log.warning("live_list.unreadable", entry=repr(entry[:80]))
            return True
        if status is None:
            return since < now - YOUNG_MS
        return status.decode() in TERMINAL
