"""Lifelines: how a killed worker is detected at once. Where they do not detect it, its leases do.

Each worker process subscribes to a channel of its own, over the connection that has its doorbell. When the process is killed,
its system closes that connection, and the channel has no subscriber any more. A connection that is cut looks the same for a
moment, so that alone proves nothing: worker/watch.py has the other conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from redis.asyncio import Redis

# Between two looks, of any process. Longer, and a killed worker is detected later.
BETWEEN_MS = 250

# For how long, and in how many looks in a row, a channel must have no subscriber. Shorter, and a process whose
# connection was cut must be quicker to subscribe again.
ABSENT_MS = 900
LOOKS = 3

# Jobs of lost processes in one reply. The others are in the next one.
MOST_JOBS = 256

_lifeline = Script(
    "lifeline", keys=("subscribed", "held", "watch"), args=("process", "connection", "disturbed"), rest="jobs"
)
_watch = Script(
    "watch",
    keys=("subscribed", "held", "watch", "workers"),
    args=("channel", "server", "between_ms", "absent_ms", "looks", "calm_ms", "most"),
)


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that seems to have been killed: the connection that carried its commands, and ids of jobs that it held."""

    process: str
    connection: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a look: whether no process holds a job, which are lost, and the error, if the broker refused."""

    idle: bool = False
    lost: tuple[Lost, ...] = ()
    refused: str = ""


class Lifelines:
    """What the first broker notes of them: who is subscribed, and which launches each process holds.

    That is a hint: what becomes of a turn, the session's own state and the attempt decide.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def note(
        self, process: str, connection: str, jobs: Collection[str], *, disturbed: bool
    ) -> list[str]:
        """Note that a process is subscribed, and holds these jobs; with an empty ``connection``, that it is not.

        ``connection`` is the broker's id of that which carries its commands. ``disturbed``: it lost one of its connections.

        Returns further jobs that it is noted to hold.
        """
        more: list[bytes] = await _lifeline(
            self._redis,
            subscribed=keys.SUBSCRIBED,
            held=keys.HELD,
            watch=keys.WATCH,
            process=process,
            connection=connection,
            disturbed="1" if disturbed else "0",
            jobs=tuple(jobs),
        )
        return [each.decode(errors="replace") for each in more]

    async def hold(self, process: str, job: str) -> None:
        """Note a job that was not claimed."""
        await command(self._redis, "ZADD", keys.HELD, 0, f"{process} {job}")

    async def let_go(self, process: str, jobs: Sequence[str]) -> None:
        """Note that a process does not hold these jobs any more."""
        if jobs:
            await command(self._redis, "ZREM", keys.HELD, *(f"{process} {job}" for job in jobs))

    async def look(self, server: str, calm_ms: int) -> Seen:
        """Look which processes are subscribed, unless another look was just made; ``server`` is the broker's incarnation.

        No process counts as lost before the broker, and the connections of all processes, were undisturbed for ``calm_ms``.
        """
        reply = await _watch(
            self._redis,
            subscribed=keys.SUBSCRIBED,
            held=keys.HELD,
            watch=keys.WATCH,
            workers=keys.WORKERS,
            channel=keys.ALIVE,
            server=server,
            between_ms=BETWEEN_MS,
            absent_ms=ABSENT_MS,
            looks=LOOKS,
            calm_ms=calm_ms,
            most=MOST_JOBS,
        )
        match reply:
            case [b"looked", *lost]:
                return Seen(lost=tuple(_lost(each) for each in lost))
            case [b"refused", why]:
                return Seen(refused=why.decode(errors="replace"))
        return Seen(idle=reply[0] == b"idle")

    async def is_connected(self, connection: str) -> bool:
        """Whether the broker still has that connection."""
        return bool(await command(self._redis, "CLIENT", "LIST", "ID", connection))


def _lost(words: Sequence[bytes]) -> Lost:
    process, connection, *jobs = (word.decode(errors="replace") for word in words)
    return Lost(process, connection, tuple(jobs))
