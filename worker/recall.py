"""Recalls live turns: has rescuers look at every one when hints were lost.

Hints, queue and lists stand at the primary; the sessions themselves know which of their turns are live.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker.client import command, servers
from turnstream.shared.broker.keys import LIVE_SESSIONS, TaskRef, session_of_live
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.session.queue import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from turnstream.shared.session.queue import LaunchQueue
    from turnstream.shared.session.webhooks import Webhooks

log = structlog.get_logger(__name__)

# Keys looked through by one command, and sessions asked side by side: neither holds up others' commands.
KEYS_AT_ONCE = 500
SESSIONS_AT_ONCE = 50

# Turns noted by one script.
TURNS_AT_ONCE = 1000

# Should who recalls die, somebody begins anew after this. Longer than `SESSIONS_AT_ONCE` full sessions take.
HELD_MS = 60_000

# When `ALL` is due while nothing is lost: never.
NEVER_MS = 10**15


class Recall:
    """Goes through all sessions, with a pause after each step that is as long as the step took.

    What it costs depends on how many keys and live turns there are; that hints were lost is all that begins it.
    """

    def __init__(self, sessions: Redis, launches: LaunchQueue, webhooks: Webhooks) -> None:
        self._sessions = sessions
        self._launches = launches
        self._webhooks = webhooks

    async def run(self, taken: int) -> None:
        """Recall every turn that is live now; ``taken`` is the hint `ALL`.

        Who finds that it was moved leaves the rest to whoever takes it next: more was lost meanwhile.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`. Somebody begins anew later.
        """
        begun = time.monotonic()
        turns = 0
        seen, (moves, where) = -1, await servers(self._sessions)
        # Again, if slots have moved meanwhile: sessions may be where they were looked for before.
        while seen != moves:
            for server in where:
                async for sessions in self._pages(server):
                    taken = await self._launches.redate(ALL, HELD_MS, taken)
                    if not taken:
                        return
                    turns += await self._recall(sessions)
            seen, (moves, where) = moves, await servers(self._sessions)
        if await self._launches.redate(ALL, NEVER_MS, taken):
            log.info("rescuer.recalled", turns=turns, seconds=round(time.monotonic() - begun, 2))

    async def _recall(self, sessions: list[bytes]) -> int:
        """Recall the live turns of some sessions; how many. It takes twice as long as that takes."""
        at = time.monotonic()
        refs = [ref for live in await asyncio.gather(*map(self._live, sessions)) for ref in live]
        for first in range(0, len(refs), TURNS_AT_ONCE):
            await self._launches.recall(refs[first : first + TURNS_AT_ONCE])
        await asyncio.gather(*map(self._webhooks.recall, refs))
        await asyncio.sleep(time.monotonic() - at)
        return len(refs)

    async def _pages(self, server: Redis) -> AsyncIterator[list[bytes]]:
        """The names of all sessions' lists of live tasks at one server, some at a time."""
        cursor: bytes | int = 0
        while True:
            at = time.monotonic()
            cursor, names = await command(
                server, "SCAN", cursor, "MATCH", LIVE_SESSIONS, "COUNT", KEYS_AT_ONCE
            )
            pause = time.monotonic() - at
            for first in range(0, len(names), SESSIONS_AT_ONCE):
                yield names[first : first + SESSIONS_AT_ONCE]
            if int(cursor) == 0:
                return
            await asyncio.sleep(pause)

    async def _live(self, name: bytes) -> list[TaskRef]:
        """A session's live tasks; none of what cannot be read as such."""
        try:
            session = session_of_live(name)
            tasks: list[bytes] = await command(self._sessions, "ZRANGE", session.live, 0, -1)
            return [TaskRef(session.owner, session.session, task.decode()) for task in tasks]
        except (ValueError, ResponseError) as error:
            if is_transient(error):
                raise
            metrics.unreadable.add("live tasks")
            log.warning("rescuer.unreadable_session", key=repr(name[:80]))
            return []
