"""Limits of keys and of the whole deployment, held at the broker: the same through every front end."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING

import structlog

from turnstream.shared import metrics
from turnstream.shared.api_keys import Limits
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BodyTooLarge, BrokerAway, Overloaded, Refused, ShuttingDown, TooMany
from turnstream.shared.session.owner_limits import NOTHING, Admitted, ManyBytes, ManyTurns, Room, TooFast
from turnstream.shared.session.storage import SESSION_BYTES, TURN_BYTES
from turnstream.shared.session.tasks import EMPTY_MS, operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from turnstream.api.access.auth import Caller
    from turnstream.api.streaming.hub import Hub
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.broker.memory import Memory
    from turnstream.shared.session.owner_limits import OwnerLimits
    from turnstream.shared.session.queue import LaunchQueue
    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

# How often a front end tells its followers of limited keys, and for how long it is believed. That some left
# is noticed elsewhere after the first; that a whole front end is gone, after the second.
TELL_SECONDS = 1.0
BELIEVED_MS = 10_000

# Of a broker's `maxmemory` an owner's sessions may hold this much, where the key does not say how much.
OWNER_SHARE = 0.25

# Sessions that an owner may make in a minute without speaking in them, where the key has no rate.
SESSIONS_A_MINUTE = 600

# When a request may come again for which there is no room.
FULL_RETRY_SECONDS = 10

# For how long turns that wait for their client are known not to count, before they are asked again.
SLACK_SECONDS = 1.0


class Limiter:
    """Refuses what is too much.

    Duties:
        1. let turns in, or not: no round trip, or one where the key has limits;
        2. when an owner seems to have too many, ask the turns themselves before saying so;
        3. count the followers of limited keys over all front ends;
        4. know about how many launches wait: each own one tells it, and it is looked at now and then;
        5. know whether a broker's memory is almost full, by a look every second.
    """

    def __init__(
        self,
        settings: Settings,
        caps: OwnerLimits,
        launches: LaunchQueue,
        hub: Hub,
        memories: Sequence[Memory],
        front_end: str,
    ) -> None:
        # Whether nothing more is let in: the front end is stopping.
        self.closed = False
        self._most_queued = settings.max_queued
        self._ttl_ms = settings.ttl_ms
        self._memories = memories
        self._caps = caps
        self._launches = launches
        self._hub = hub
        self._front_end = front_end
        self._asking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()
        # When an owner's turns were asked last, and why that failed.
        self._asked: dict[str, tuple[float, BrokerAway | None]] = {}
        self._slack: dict[str, tuple[float, int]] = {}
        # Owners whose followers the broker may have been told of.
        self._told: set[str] = set()
        # Who came to follow, by owner and limit, and what asks for them.
        self._coming: dict[tuple[str, int], list[asyncio.Future[None]]] = {}
        self._letting_in: set[asyncio.Task[None]] = set()
        self._turnstile: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tellers: Counter[str] = Counter()

    async def admit(self, ref: TaskRef, op: str, caller: Caller, size: int) -> Room | None:
        """Let the submit ``op`` of a turn in, of which ``size`` bytes are kept; what it was counted with, if it was.

        Raises:
            TooMany: the key's limits say no.
            BodyTooLarge: it is more than all sessions of the owner may hold.
            Overloaded: too many turns of all owners wait, or as `admit_data`.
            BrokerAway: the broker did not answer.
        """
        self.admit_data()
        if self._most_queued and self._launches.waiting >= self._most_queued and await self._full():
            metrics.turns_refused.add("queue")
            raise Overloaded
        # Its message stands in the log and in the history, and what it asks for in its own hash.
        room = self._room(caller, SESSION_BYTES + TURN_BYTES + size, self._ttl_ms)
        if 0 < room.most < room.bytes:
            metrics.turns_refused.add("storage")
            raise BodyTooLarge(
                f"This turn takes {room.bytes} bytes of storage: its attachments, three times the rest of its request, "
                f"and some more. All your sessions together may hold {room.most}: it never fits. Send less at once, or "
                "ask the operator for more storage."
            )
        if not (caller.limits.turns or room.most):
            return None
        outcome = await self._ask(ref, op, caller, room)
        if isinstance(outcome, ManyTurns):
            outcome = await self._ask_the_turns(ref, op, caller, room)
        match outcome:
            case ManyTurns():
                metrics.turns_refused.add("concurrency")
                raise TooMany(
                    f"This API key allows {caller.limits.concurrency} turns at once, and as many are queued or "
                    "running. Try again when one has ended."
                )
            case TooFast(ms):
                metrics.turns_refused.add("rate")
                raise TooMany(
                    f"This API key allows {caller.limits.rate} turns a minute, and as many were begun.",
                    retry_after=math.ceil(ms / 1000),
                )
            case ManyBytes(held):
                raise self._no_room(room, held)
        return room

    async def admit_session(self, keys: SessionKeys, caller: Caller, size: int = SESSION_BYTES) -> None:
        """Let a session in, of so many bytes, that is made before anybody speaks in it. It counts for the rate, like a turn.

        Raises:
            TooMany: the key's limits, or what every key may do at most, say no.
            Overloaded: as `admit_data`.
            BrokerAway: the broker did not answer.
        """
        self.admit_data()
        rate = caller.limits.rate or SESSIONS_A_MINUTE
        room = self._room(caller, size, EMPTY_MS)
        op = operation()
        outcome = await self._caps.admit(TaskRef(keys.owner, keys.session, "-"), op, Limits(rate=rate), room)
        match outcome:
            case TooFast(ms):
                metrics.turns_refused.add("rate")
                raise TooMany(
                    f"{rate} sessions and turns a minute are allowed, and as many were begun.",
                    retry_after=math.ceil(ms / 1000),
                )
            case ManyBytes(held):
                raise self._no_room(room, held)

    def _room(self, caller: Caller, size: int, ms: int) -> Room:
        memory = self._memories[-1]
        return Room(caller.limits.storage or int(OWNER_SHARE * memory.most * memory.servers), size, ms)

    def _no_room(self, room: Room, held: int) -> TooMany:
        metrics.turns_refused.add("storage")
        return TooMany(
            f"Your sessions hold {held} of the {room.most} bytes that they may, and {room.bytes} more do not fit. Clear "
            "sessions, wait until some expire, or ask the operator for more storage.",
            retry_after=FULL_RETRY_SECONDS,
        )

    def close(self) -> None:
        """Let nothing more in; what was let in before goes on."""
        self.closed = True

    def admit_data(self) -> None:
        """Let something in that is to be kept: a session, a turn, an answer.

        Raises:
            ShuttingDown: this front end is stopping.
            Overloaded: a broker's memory is almost full; what it has left is for turns that were taken.
        """
        if self.closed:
            raise ShuttingDown
        if any(memory.almost_full for memory in self._memories):
            metrics.turns_refused.add("memory")
            raise Overloaded(
                "The broker's memory is almost full: nothing new is taken until sessions expire or are deleted. "
                "Try again later.",
                retry_after=FULL_RETRY_SECONDS,
            )

    @asynccontextmanager
    async def counting_refusals(self, caller: Caller) -> AsyncIterator[None]:
        """Count a request that is refused within as a turn that was begun: it costs about as much to read."""
        try:
            yield
        except Refused:
            if caller.limits.rate:
                await self._count_refusal(caller)
            raise

    async def _count_refusal(self, caller: Caller) -> None:
        op = uuid.uuid4().hex
        ref = TaskRef(caller.owner, "refused", op)
        try:
            await self._caps.once.admit(ref, op, Limits(rate=caller.limits.rate), NOTHING)
        except Exception as error:
            if not is_transient(error):
                raise

    async def dismiss(self, ref: TaskRef, op: str, room: Room) -> None:
        """A submit that was counted began nothing; should this fail, it is found out when there seems to be no room."""
        try:
            await self._caps.once.dismiss(ref, op, room)
        except Exception as error:
            if not is_transient(error):
                raise

    async def admit_follower(self, caller: Caller) -> None:
        """Let a follower in; for `following` of api/turns/follow.py, which follows before anything else is awaited.

        Raises:
            TooMany: the key's owner has as many followers as the key allows, over all front ends.
            BrokerAway: the broker did not answer.
        """
        limit, owner = caller.limits.followers, caller.owner
        if not limit:
            return
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        together = self._coming.setdefault((owner, limit), [])
        together.append(came)
        if len(together) == 1:
            telling = asyncio.create_task(self._let_in(owner, limit))
            self._letting_in.add(telling)
            telling.add_done_callback(self._letting_in.discard)
        await came

    async def _let_in(self, owner: str, limit: int) -> None:
        """Ask once for all who have come when it is their turn: thousands come at the same time when a front end is lost."""
        async with self._telling(owner):
            # Who has left meanwhile takes no place.
            together = [came for came in self._coming.pop((owner, limit)) if not came.done()]
            self._told.add(owner)
            outcome: int | Exception
            try:
                outcome = await self._caps.tell_followers(
                    owner,
                    self._front_end,
                    self._hub.followers_of(owner),
                    more=len(together),
                    limit=limit,
                    ms=BELIEVED_MS,
                )
            except Exception as error:
                outcome = error
            for number, came in enumerate(together):
                if came.done():
                    continue
                if isinstance(outcome, Exception):
                    # One for each: a shared one would gather all their tracebacks.
                    came.set_exception(copy(outcome))
                elif number < outcome:
                    came.set_result(None)
                else:
                    metrics.turns_refused.add("followers")
                    came.set_exception(
                        TooMany(
                            f"This API key allows {limit} streams at once, and as many are open. Close some, or try again."
                        )
                    )
            # They follow now, before what is told next is counted.
            await asyncio.sleep(0)

    async def keep(self) -> None:
        """Tell the followers of limited keys' owners, and look at the queue, for ever; to be run as a task."""
        while True:
            await self._look()
            await asyncio.sleep(TELL_SECONDS)
            for owner in list(self._told):
                async with self._telling(owner):
                    await self._tell(owner, self._hub.followers_of(owner))

    async def _full(self) -> bool:
        """Whether as many launches wait as may."""
        waiting = await self._launches.depth()
        return waiting >= self._most_queued

    async def _look(self) -> None:
        try:
            if self._most_queued:
                await self._launches.once.depth()
            for memory in self._memories:
                await memory.look()
        except Exception as error:
            if not is_transient(error):
                log.exception("limits.not_looked")

    async def end(self) -> None:
        """Take this front end's followers out of the count; does not wait for a broker that is away."""
        for owner in list(self._told):
            await self._tell(owner, 0)

    async def _tell(self, owner: str, count: int) -> None:
        try:
            await self._caps.once.tell_followers(owner, self._front_end, count, ms=BELIEVED_MS)
        except Exception as error:
            if not is_transient(error):
                log.exception("limits.not_told")
        else:
            if count == 0:
                self._told.discard(owner)

    @asynccontextmanager
    async def _telling(self, owner: str) -> AsyncIterator[None]:
        """One at a time for an owner: what is told later must be what was counted later."""
        self._tellers[owner] += 1
        try:
            async with self._turnstile[owner]:
                yield
        finally:
            self._tellers[owner] -= 1
            if not self._tellers[owner]:
                del self._tellers[owner], self._turnstile[owner]

    async def _ask(
        self, ref: TaskRef, op: str, caller: Caller, room: Room
    ) -> Admitted | ManyTurns | TooFast | ManyBytes:
        slack = self._known_slack(caller.owner) or 0
        return await self._caps.admit(ref, op, caller.limits, room, slack=slack)

    def _known_slack(self, owner: str) -> int | None:
        """How many of the owner's turns do not count; None: that is not known any more."""
        until, slack = self._slack.get(owner, (-math.inf, 0))
        if until >= asyncio.get_running_loop().time():
            return slack
        self._slack.pop(owner, None)
        return None

    async def _ask_the_turns(
        self, ref: TaskRef, op: str, caller: Caller, room: Room
    ) -> Admitted | ManyTurns | TooFast | ManyBytes:
        """Find out which of the owner's turns still count, one request of an owner at a time, and ask again."""
        loop = asyncio.get_running_loop()
        owner = caller.owner
        came = loop.time()
        self._waiting[owner] += 1
        try:
            async with self._asking[owner]:
                # One that was begun while this request waited serves it as well, unless what it found is too old by now.
                asked, failed = self._asked.get(owner, (-math.inf, None))
                if asked > came and failed:
                    # Or all who wait would find the broker away, one after the other.
                    raise copy(failed)
                try:
                    if asked <= came or self._known_slack(owner) is None:
                        asked = loop.time()
                        parked = await self._caps.recount(owner)
                        self._asked[owner] = asked, None
                        self._slack[owner] = loop.time() + SLACK_SECONDS, parked
                    return await self._ask(ref, op, caller, room)
                except BrokerAway as error:
                    self._asked[owner] = asked, error
                    raise
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._asking[owner]
                self._asked.pop(owner, None)
