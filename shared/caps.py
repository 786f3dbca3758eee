"""What an owner does at the moment, counted at the broker for all front ends, and limits that are held against it.

Nothing here can leak for long. Turns are kept by ref, not as a number: whoever ends one takes it out, and
when there seems to be no room the tasks themselves are asked (`Caps.recount`). Followers are told anew by
each front end every few seconds, and believed for a few more.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared import keys
from shared.broker import command
from shared.keys import TaskRef
from shared.scripts import Script
from shared.tasks import PARKED, TERMINAL

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from shared.api_keys import Limits

_admit = Script("admit")
_followers = Script("followers")

# An owner's turns are remembered for so long after the newest one was let in. Longer than a turn may wait
# for its client; a turn that is forgotten is merely not counted.
TURNS_MS = 8 * 86_400_000

# A turn that is nowhere to be found may have been let in a moment before it is made.
YOUNG_MS = 10_000

# Turns of one owner that are asked when there seems to be no room, the oldest first.
MOST_ASKED = 2000


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn may begin; ``new``: it was not counted before."""

    new: bool


@dataclass(frozen=True, slots=True)
class ManyTurns:
    """The owner has as many turns queued or running as the key allows."""


@dataclass(frozen=True, slots=True)
class TooFast:
    """The owner has begun as many turns in the last minute as the key allows; room in ``ms``."""

    ms: int


class Caps:
    """The counts, at the primary; tasks are asked at the sessions' broker."""

    def __init__(self, primary: Redis, sessions: Redis) -> None:
        self._primary = primary
        self._sessions = sessions

    async def admit(self, ref: TaskRef, limits: Limits, *, slack: int) -> Admitted | ManyTurns | TooFast:
        """Count a turn, if the limits let it in; ``slack`` is how many of the owner's turns are known not to count."""
        reply = await _admit(
            self._primary,
            (keys.owner_turns(ref.owner), keys.owner_rate(ref.owner)),
            (str(ref), limits.concurrency + slack if limits.concurrency else 0, limits.rate, TURNS_MS),
        )
        match reply:
            case [b"ok", new]:
                return Admitted(bool(int(new)))
            case [b"turns"]:
                return ManyTurns()
        return TooFast(int(reply[1]))

    async def dismiss(self, ref: TaskRef) -> None:
        """Count a turn no more that was let in but did not begin."""
        await asyncio.gather(
            command(self._primary, "ZREM", keys.owner_turns(ref.owner), str(ref)),
            command(self._primary, "ZREM", keys.owner_rate(ref.owner), str(ref)),
        )

    async def recount(self, owner: str) -> int:
        """Take out the owner's turns that have ended; how many of the others wait for their client."""
        counted: list[bytes] = await command(
            self._primary, "ZRANGE", keys.owner_turns(owner), 0, MOST_ASKED - 1, "WITHSCORES"
        )
        refs = [counted[at].decode() for at in range(0, len(counted), 2)]
        young = time.time() * 1000 - YOUNG_MS
        known = [TaskRef.parse(text) for text in refs]
        statuses: list[bytes | None] = await asyncio.gather(
            *(command(self._sessions, "HGET", ref.keys.task(ref.task), "status") for ref in known)
        )
        ended = []
        parked = 0
        for text, since, status in zip(refs, counted[1::2], statuses, strict=True):
            if status is None:
                if float(since) < young:
                    ended.append(text)
            elif status.decode() in TERMINAL:
                ended.append(text)
            else:
                parked += status.decode() == PARKED
        if ended:
            await command(self._primary, "ZREM", keys.owner_turns(owner), *ended)
        return parked

    async def tell_followers(self, owner: str, front_end: str, count: int, *, limit: int, ms: int) -> bool:
        """Say how many followers of the owner a front end has, believed for ``ms``; False: more than ``limit`` in all."""
        reply = await _followers(self._primary, (keys.owner_followers(owner),), (front_end, count, limit, ms))
        return bool(reply)
