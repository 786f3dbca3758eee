"""When brokers took no renewals: the silence of a worker tells nothing then."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from redis.exceptions import TryAgainError

from turnstream.shared.broker.client import answers, incarnation, takes_writes
from turnstream.shared.broker.cluster import ClusterRedis, slot_of
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.errors import BrokerAway
from turnstream.worker.lease import AGAIN, RENEWALS

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from turnstream.shared.broker.cluster import Address
    from turnstream.shared.broker.keys import TaskRef

# Between two looks, each of which has each server take a write; late ones come later.
LOOK_SECONDS = 1.0

# By how much two clocks may go apart that are right, or being set right.
MOST_DRIFT = 0.001


class Outages:
    """Which servers took no writes, and when, as one process has seen it.

    A server that is full still takes renewals, so it does not count as away. Where it is a node of the sessions' cluster, that
    tells of the turns there alone; of all of them, when another node has taken its place.

    Attributes:
        whole_since: when this last was said of all, by the monotonic clock.
    """

    def __init__(self, primary: Redis, sessions: Redis, lease: float) -> None:
        """``lease``: seconds; ``sessions`` may be the ``primary`` itself, which holds the hints."""
        self._primary = primary
        self._sessions = sessions
        self._nodes = sessions.nodes if isinstance(sessions, ClusterRedis) else None
        self._lease = lease
        # How long a node may take no writes, and no lease ends by that: off what is left of one when its renewal is due goes what
        # its holder waits between two tries, and what passes between two looks here, late ones, too.
        self._bearable = lease * (1 - (1 + AGAIN) / RENEWALS) - 3 * LOOK_SECONDS
        self.whole_since = time.monotonic()
        # Of each server when the write was sent that it took last, and its clock then (Unix ms).
        self._took: dict[Redis | Address, tuple[float, int]] = {}
        # When nodes took none, and when that had lasted; and how often slots had moved when all were asked.
        self._missed: dict[Address, float] = {}
        self._away: dict[Address, float] = {}
        self._moves = 0

    @property
    def is_calm(self) -> bool:
        """Whether all has been well for one lease."""
        return time.monotonic() - self.whole_since >= self._lease

    def trouble(self) -> None:
        """The broker was away just now, as anybody in this process noticed."""
        self.whole_since = time.monotonic()

    async def look(self, *, writing: bool = True) -> list[str]:
        """Which servers hold hints and sessions now, but for nodes that are away; ``writing``: the others took a write.

        Raises:
            redis.exceptions.RedisError, OSError: a broker's trouble, which is that of all.
        """
        names: list[str] = []
        for redis in dict.fromkeys((self._sessions, self._primary)):
            if not writing:
                names += (await answers(redis, _name))[0]
                continue
            asked = time.monotonic()
            told, clocks, away = await takes_writes(redis)
            names += told
            if any(isinstance(each, tuple) for each in self._took):
                # Nobody knows how its clock compares with that of the node that had its slots.
                self._away |= {node: time.monotonic() for node in clocks if node and node not in self._took}
            for node, ms in clocks.items():
                self.took(node or redis, asked, ms)
            for node in away:
                self._took_none(node)
        if self._nodes is not None:
            if self._is_one_replaced():
                # Whoever took its place has leases that could not be renewed meanwhile.
                self.trouble()
            self._moves = self._nodes.moves
        return names

    def took(self, server: Redis | Address, asked: float, ms: int) -> None:
        """A server took a write that was sent at ``asked`` (monotonic), when its clock said ``ms``.

        That may have gone on by more than time has: it was set, or this host was suspended. Then leases seem to be over which
        nobody could renew.
        """
        former = self._took.get(server)
        self._took[server] = asked, ms
        now = time.monotonic()
        if former is None:
            return
        passed = now - former[0]
        if (ms - former[1]) / 1000 - passed <= LOOK_SECONDS + MOST_DRIFT * passed:
            return
        if isinstance(server, tuple):
            self._away[server] = now
        else:
            self.trouble()

    def as_of(self, ref: TaskRef) -> int:
        """The clock of a turn's server when it took a write last, Unix milliseconds: what leases were over then, are. 0: not known."""
        server = self._server(ref)
        return self._took[server][1] if server is not None and server in self._took else 0

    def silence_tells(self, ref: TaskRef) -> bool:
        """Whether the silence of a turn's worker tells anything now."""
        if self._nodes is None:
            return True
        node, now = self._server(ref), time.monotonic()
        if not isinstance(node, tuple) or now - self._away.get(node, -math.inf) < self._lease:
            return False
        asked, _ = self._took.get(node, (-math.inf, 0))
        # What is sent to a node that stands still is carried out when it goes on.
        return (
            now - asked <= 3 * LOOK_SECONDS
            and self._missed.get(node, -math.inf) <= asked
            and not self._is_one_replaced()
        )

    async def is_of_a_node(self, error: Exception, ref: TaskRef | None = None) -> bool:
        """Whether an error is the trouble of a node of the sessions' cluster, which has the turn: the first broker takes writes.

        Raises:
            redis.exceptions.RedisError, OSError: that one's trouble.
        """
        if self._nodes is None or not (is_transient(error) or isinstance(error, BrokerAway)):
            return False
        if isinstance(error, TryAgainError):
            # Its slot is being moved from node to node: no reason to keep others waiting.
            return True
        await takes_writes(self._primary)
        node = None if ref is None else self._server(ref)
        if isinstance(node, tuple):
            self._missed[node] = self._away[node] = time.monotonic()
        return True

    def _server(self, ref: TaskRef) -> Redis | Address | None:
        """The server that has the turn's session; None: a slot has no node."""
        return self._sessions if self._nodes is None else self._nodes.owner(slot_of(ref.keys.meta))

    def _took_none(self, node: Address) -> None:
        """A node has just taken no write. It may stall now and then: a lease ends only when that lasts."""
        now = time.monotonic()
        self._missed[node] = now
        asked, _ = self._took.get(node, (-math.inf, 0))
        if now - asked >= self._bearable:
            self._away[node] = now

    def _is_one_replaced(self) -> bool:
        """Whether, since all were asked, slots were taken from a node that took no write at some time within the last lease."""
        if self._nodes is None or self._nodes.moves == self._moves:
            return False
        now = time.monotonic()
        return any(
            moves > self._moves and now - self._missed.get(node, -math.inf) < self._lease
            for node, moves in self._nodes.taken_from.items()
        )


async def _name(server: Redis, _: Address | None) -> str:
    return await incarnation(server)
