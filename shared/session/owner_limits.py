"""What an owner does at the moment, counted at the broker for all front ends, and limits that are held against it.

Nothing here can leak for long. What is counted are admissions, not a number: each is a turn's ref and the operation id
of its submit, so that a request takes back only what it counted itself. Whoever ends a turn takes out the admission
that made it, and when there seems to be no room the tasks themselves are asked (`OwnerLimits.recount`). Followers are told anew by
each front end every few seconds, and believed for a few more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, now_ms
from turnstream.shared.broker.retry import Retrying, is_transient, whole
from turnstream.shared.broker.scripts import Script
from turnstream.shared.session.status import TERMINAL, TaskStatus
from turnstream.shared.session.storage import count as run

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.api_keys import Limits
    from turnstream.shared.broker.keys import TaskRef

log = structlog.get_logger(__name__)

_COUNTS = ("turns", "last_minute", "bytes", "sessions")
_admit = Script(
    "admit",
    keys=_COUNTS,
    args=("admission", "most_turns", "most_rate", "turns_ms", "most_bytes", "session", "cost", "life_ms"),
)
_dismiss = Script("dismiss", keys=_COUNTS, args=("admission", "session", "cost"))
_followers = Script("followers", keys=("followers",), args=("front_end", "held", "more", "limit", "life_ms"))

# An owner's turns are remembered for so long after the newest one was let in. Longer than a turn may wait
# for its client; a turn that is forgotten is merely not counted.
TURNS_MS = 8 * 86_400_000

# A turn that is nowhere to be found may have been let in a moment before it is made.
YOUNG_MS = 10_000

# Turns of one owner that are asked when there seems to be no room, the oldest first.
MOST_ASKED = 2000


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn may begin, and is counted."""


@dataclass(frozen=True, slots=True)
class ManyTurns:
    """The owner has as many turns queued or running as the key allows."""


@dataclass(frozen=True, slots=True)
class TooFast:
    """The owner has begun as many turns in the last minute as the key allows; room in ``ms``."""

    ms: int


@dataclass(frozen=True, slots=True)
class ManyBytes:
    """The owner's sessions hold ``bytes``, and what was asked for is too much beside them."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """What something new takes, of an owner who may hold ``most`` bytes (0: any): ``bytes``, for ``ms``."""

    most: int
    bytes: int
    ms: int


# What takes nothing that is kept.
NOTHING = Room(0, 0, 0)


class OwnerLimits(Retrying):
    """The counts, at the primary; tasks are asked at the sessions' broker."""

    def __init__(self, primary: Redis, sessions: Redis) -> None:
        self._primary = primary
        self._sessions = sessions

    async def admit(
        self, ref: TaskRef, op: str, limits: Limits, room: Room, *, slack: int = 0
    ) -> Admitted | ManyTurns | TooFast | ManyBytes:
        """Count the submit ``op`` of a turn, if the limits let it in and there is room for it.

        ``slack`` is how many of the owner's turns are known not to count.
        """
        reply = await run(
            _admit,
            self._primary,
            **_of(ref.owner),
            admission=keys.admission(ref, op),
            most_turns=limits.concurrency + slack if limits.concurrency else 0,
            most_rate=limits.rate,
            turns_ms=TURNS_MS,
            most_bytes=room.most,
            session=ref.session,
            cost=room.bytes,
            life_ms=room.ms,
        )
        match reply:
            case [b"ok"]:
                return Admitted()
            case [b"turns"]:
                return ManyTurns()
            case [b"bytes", held]:
                return ManyBytes(int(held))
        return TooFast(int(reply[1]))

    async def dismiss(self, ref: TaskRef, op: str, room: Room) -> None:
        """Count the submit ``op`` no more: it was let in, but its turn did not begin by it."""
        await run(
            _dismiss,
            self._primary,
            **_of(ref.owner),
            admission=keys.admission(ref, op),
            session=ref.session,
            cost=room.bytes if room.most else 0,
        )

    @whole
    async def recount(self, owner: str) -> int:
        """Take out the owner's turns that have ended; how many of the others wait for their client."""
        counted: list[bytes] = await command(
            self._primary, "ZRANGE", keys.owner_turns(owner), 0, MOST_ASKED - 1, "WITHSCORES"
        )
        admissions = counted[::2]
        now = await now_ms(self._primary)
        found = await asyncio.gather(*map(self._status, admissions))
        ended = []
        parked = 0
        for admission, since, status in zip(admissions, counted[1::2], found, strict=True):
            # One that is unknown may be not made yet, or be another request's: this one is yet to learn that.
            if status in TERMINAL or (not status and abs(now - float(since)) > YOUNG_MS):
                ended.append(admission)
            parked += status == TaskStatus.PARKED
        if ended:
            await command(self._primary, "ZREM", keys.owner_turns(owner), *ended)
        return parked

    async def _status(self, admission: bytes) -> str:
        """The status of the turn that an admission made; empty where it made none. What names no turn has failed."""
        try:
            ref, op = keys.parse_admission(admission.decode())
            status, made_by = await command(
                self._sessions, "HMGET", ref.keys.task(ref.task), "status", "submit_op"
            )
            return status.decode() if status and made_by == op.encode() else ""
        except (ValueError, ResponseError) as error:
            if is_transient(error):
                raise
            metrics.unreadable.add("count")
            log.warning("count.unreadable", admission=repr(admission[:80]))
            return "failed"

    async def tell_followers(
        self, owner: str, front_end: str, held: int, *, ms: int, more: int = 0, limit: int = 0
    ) -> int:
        """Say how many followers of the owner a front end has, believed for ``ms``; of so many ``more``, how many may come."""
        reply = await run(
            _followers,
            self._primary,
            followers=keys.owner_followers(owner),
            front_end=front_end,
            held=held,
            more=more,
            limit=limit,
            life_ms=ms,
        )
        return int(reply)


def _of(owner: str) -> dict[str, str]:
    """The keys `_COUNTS` of an owner."""
    return {
        "turns": keys.owner_turns(owner),
        "last_minute": keys.owner_rate(owner),
        "bytes": keys.owner_bytes(owner),
        "sessions": keys.owner_sessions(owner),
    }
