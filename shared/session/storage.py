"""What an owner's sessions hold at the broker, in bytes: reported as each session's total, by whoever changed it.

Sessions and counts may be on two servers, so no script can keep them together. A report that is lost or late is made good
by the session's next one, and a session that expires leaves the count by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import structlog
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, fields_of
from turnstream.shared.broker.retry import Retrying, is_transient
from turnstream.shared.broker.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import SessionKeys

log = structlog.get_logger(__name__)

_stored = Script("stored", keys=("bytes", "sessions"), args=("session", "held", "life_ms"))

# What a session takes beside what is said in it, and each turn beside its messages: hashes, ids, names of keys.
SESSION_BYTES = 1024
TURN_BYTES = 2048

# Between two reports of a session in which a turn runs.
REPORT_SECONDS = 3.0

# A report that takes longer is made again: its process stood still, or a broker was away, and others have reported meanwhile.
LATE_SECONDS = 0.25

# Sums that the session's scripts keep, and the turns of the last two times to live.
_SUMS = ("bytes", "kept", "memory", "asked", "files", "log_back", "history_back")
# Of these sums, files' bytes that stand only once.
_LENT = ("log_lent", "history_lent", "memory_lent")
_TURNS = ("turns", "turns_before")


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """A session of an owner: the bytes it holds, and when it expires (Unix seconds)."""

    session: str
    bytes: int
    expires: float


async def count(script: Script, redis: Redis, /, **given: str | int) -> Any:
    """Run a script whose keys are an owner's counts. Ones that it cannot read are deleted, and it runs again: they are made good.

    Raises:
        redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
    """
    try:
        return await script(redis, **given)
    except ResponseError as error:
        if is_transient(error):
            raise
        metrics.unreadable.add("count")
        counts = [str(given[name]) for name in script.keys]
        log.warning("count.unreadable", keys=counts, error=str(error))
        await command(redis, "DEL", *counts)
        return await script(redis, **given)


class Storage(Retrying):
    """Reports what sessions hold, and reads it."""

    def __init__(self, primary: Redis, sessions: Redis) -> None:
        self._primary = primary
        self._sessions = sessions
        self._soon: set[asyncio.Task[None]] = set()

    async def report(self, session: SessionKeys) -> None:
        """Report what a session holds now.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        loop = asyncio.get_running_loop()
        late = True
        while late:
            read = loop.time()
            life, fields = await asyncio.gather(
                command(self._sessions, "PTTL", session.meta),
                command(self._sessions, "HMGET", session.meta, *_SUMS, *_LENT, *_TURNS),
            )
            held = -1
            if life > 0:
                numbers = iter([int(field or 0) for field in fields])
                sums, lent, turns = (sum(islice(numbers, len(names))) for names in (_SUMS, _LENT, _TURNS))
                held = SESSION_BYTES + sums - lent + TURN_BYTES * turns
            await count(
                _stored,
                self._primary,
                bytes=keys.owner_bytes(session.owner),
                sessions=keys.owner_sessions(session.owner),
                session=session.session,
                held=held,
                life_ms=max(life, 0),
            )
            # It may have taken the place of a newer one.
            late = loop.time() - read > LATE_SECONDS

    async def try_report(self, session: SessionKeys) -> None:
        """Report; should the broker be away, the session's next report makes it good."""
        try:
            await self.once.report(session)
        except Exception as error:
            if not is_transient(error):
                raise

    def report_soon(self, session: SessionKeys) -> None:
        """Report beside what the caller goes on with: of a new session, which is listed from then on."""
        task = asyncio.create_task(self.try_report(session))
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def tend(self, live: Callable[[], Iterable[SessionKeys]]) -> None:
        """Report the sessions in which turns run, for ever; to be run as a task."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            try:
                for session in {(each.owner, each.session): each for each in live()}.values():
                    await self.once.report(session)
            except Exception as error:
                if not is_transient(error):
                    log.exception("storage.not_reported")

    async def of(self, owner: str, most: int) -> tuple[int, int, list[HeldBytes]]:
        """The bytes that an owner holds, in how many sessions, and ``most`` of these, the largest first.

        Raises:
            redis.exceptions.RedisError, OSError: see `turnstream.shared.broker.retry.is_transient`.
        """
        held, count = await asyncio.gather(
            command(self._primary, "HGET", keys.owner_bytes(owner), ""),
            command(self._primary, "ZCARD", keys.owner_sessions(owner)),
        )
        largest: dict[bytes, int] = {}
        async for some in fields_of(self._primary, keys.owner_bytes(owner)):
            largest |= {name: _number(text) for name, text in some.items() if name}
            largest = dict(nlargest(most, largest.items(), key=itemgetter(1)))
        until = await asyncio.gather(
            *(command(self._primary, "ZSCORE", keys.owner_sessions(owner), name) for name in largest)
        )
        found = [
            HeldBytes(name.decode(errors="replace"), size, float(expires) / 1000)
            for (name, size), expires in zip(largest.items(), until, strict=True)
            if expires is not None
        ]
        return _number(held or b"0"), int(count), found


def _number(text: bytes) -> int:
    """A count as the broker keeps it; 0 where that is none."""
    try:
        return int(text)
    except ValueError:
        metrics.unreadable.add("count")
        return 0
