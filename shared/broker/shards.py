"""The subscriber of a cluster: a channel is the business of the node that has its slot (sharded pub/sub)."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from redis.exceptions import MovedError

from turnstream.shared.broker.cluster import ClusterRedis, slot_of
from turnstream.shared.broker.retry import is_transient
from turnstream.shared.broker.subscriber import Listener, Subscriber

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from redis.asyncio import Redis

    from turnstream.shared.broker.cluster import Address, Nodes
    from turnstream.shared.broker.connection import Line

log = structlog.get_logger(__name__)

# How often the slot map is read while channels are wanted, if nothing else reads it: a primary that was frozen, and replaced
# meanwhile, goes on as a replica without an error, and lacks the messages since. And how often while a node is away.
LOOK_SECONDS = 2.0
AWAY_SECONDS = 0.5


class ShardListener(Listener, Protocol):
    """What is done with messages, where channels can be lost one by one."""

    def lost(self, channels: Collection[bytes]) -> None:
        """These channels miss messages until they are acknowledged again; called once for each loss."""


def subscriber(
    redis: Redis, listener: ShardListener, *, lost: str, back: str
) -> Subscriber | ClusterSubscriber:
    """What subscribes to channels at a server, or at the nodes of a cluster."""
    if isinstance(redis, ClusterRedis):
        return ClusterSubscriber(redis.nodes, listener, lost=lost, back=back)
    return Subscriber(redis, listener, lost=lost, back=back)


class ClusterSubscriber:
    """Subscribes to channels at the nodes that have their slots.

    Duties:
        1. hold a subscriber for each node that has channels which are wanted;
        2. where a slot has moved, have its channels subscribed at its new node;
        3. detect that one has, also where no node reports it;
        4. pass on a channel's events, if they come from its own node.
    """

    def __init__(self, nodes: Nodes, listener: ShardListener, *, lost: str, back: str) -> None:
        self._nodes = nodes
        self._listener = listener
        self._events = (lost, back)
        # Where each one was asked for, and which are acknowledged there.
        self._wanted: dict[bytes, Address | None] = {}
        self._new: dict[bytes, None] = {}
        self._acknowledged: set[bytes] = set()
        self._at: dict[Address, tuple[_NodeSubscriber, asyncio.Task[None]]] = {}
        self._work = asyncio.Event()
        self._trouble = False
        self._moves = -1

    def subscribe(self, channel: bytes) -> None:
        """Want a channel; `Listener.subscribed` follows."""
        if channel not in self._wanted:
            self._wanted[channel] = None
            self._new[channel] = None
            self._work.set()

    def unsubscribe(self, channel: bytes) -> None:
        """Want a channel no more."""
        address = self._wanted.pop(channel, None)
        self._new.pop(channel, None)
        self._acknowledged.discard(channel)
        if address is not None:
            self._at[address][0].unsubscribe(channel)

    async def run(self) -> None:
        """Listen for ever; to be run as a task."""
        loop = asyncio.get_running_loop()
        self._nodes.watch(self._work.set)
        look_at = loop.time()
        try:
            while True:
                try:
                    async with asyncio.timeout_at(look_at):
                        await self._work.wait()
                except TimeoutError:
                    self._trouble = True
                self._work.clear()
                if self._trouble or not self._nodes.moves:
                    self._trouble = False
                    if self._wanted:
                        await self._learn()
                    look_at = loop.time() + self._patience()
                self._assign()
        finally:
            self._nodes.unwatch(self._work.set)
            tasks = [task for _, task in self._at.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _learn(self) -> None:
        try:
            await self._nodes.learn()
        except Exception as error:
            # Commands fail with it, too.
            if not is_transient(error):
                log.exception("subscriber.failed")

    def _patience(self) -> float:
        away = self._new or any(each.away for each, _ in self._at.values())
        return AWAY_SECONDS if away else LOOK_SECONDS

    def _assign(self) -> None:
        """Have each channel subscribed where it belongs now."""
        moved = self._moves != self._nodes.moves
        self._moves = self._nodes.moves
        left = []
        for channel in tuple(self._wanted if moved else self._new):
            before, now = self._wanted[channel], self._nodes.owner(slot_of(channel))
            # Its node may have refused a channel that is not acknowledged, while the slot was elsewhere for a moment.
            if now is None or (now == before and channel in self._acknowledged):
                continue
            if before not in (None, now):
                self._at[before][0].unsubscribe(channel)
                left.append(channel)
            self._wanted[channel] = now
            self._new.pop(channel, None)
            self._subscriber(now).subscribe(channel)
        if left:
            log.info("tails.moved", channels=len(left))
            self.lost(left)
        owners = self._nodes.owners if moved else self._at
        for address in [each for each in self._at if each not in owners]:
            if not self._at[address][0].wanted:
                self._at.pop(address)[1].cancel()

    def _subscriber(self, address: Address) -> _NodeSubscriber:
        known = self._at.get(address)
        if known is None:
            one = _NodeSubscriber(self, self._nodes, address, *self._events)
            known = self._at[address] = one, asyncio.create_task(one.run(), name="tails of a node")
        return known[0]

    # ── what the nodes' subscribers say ──

    def message_received(self, channel: bytes, message: bytes) -> None:
        """A message came in on a channel."""
        self._listener.message_received(channel, message)

    def acknowledged(self, channel: bytes, address: Address) -> None:
        """A node has a channel subscribed."""
        if self._wanted.get(channel) == address:
            self._acknowledged.add(channel)
            self._listener.subscribed(channel)

    def away(self, address: Address, channels: Iterable[bytes]) -> None:
        """The connection to a node was lost, with what was subscribed there."""
        self._nodes.suspect(address)
        self._trouble = True
        self._work.set()
        self.lost(channels)

    def lost(self, channels: Iterable[bytes]) -> None:
        """Channels are not subscribed any more where they were."""
        lost = [each for each in channels if each in self._acknowledged]
        if lost:
            self._acknowledged.difference_update(lost)
            self._listener.lost(lost)


class _NodeSubscriber(Subscriber):
    """Subscribes to channels at one node.

    A node that gives a slot away unsubscribes each of its channels (``sunsubscribe``), and is asked for them again: then it
    redirects (``MOVED``).
    """

    def __init__(
        self, cluster: ClusterSubscriber, nodes: Nodes, address: Address, lost: str, back: str
    ) -> None:
        super().__init__(nodes.client(address), self, lost=lost, back=back)
        self._cluster = cluster
        self._nodes = nodes
        self._address = address
        self._given_away: list[bytes] = []

    @property
    def wanted(self) -> Collection[bytes]:
        """The channels that are to be subscribed here."""
        return self._wanted

    @property
    def away(self) -> bool:
        """Whether there is no connection to the node."""
        return self._lost_at is not None

    # ── the listener of the connection ──

    def message_received(self, channel: bytes, message: bytes) -> None:
        """A message came in on a channel."""
        self._cluster.message_received(channel, message)

    def subscribed(self, channel: bytes) -> None:
        """The node acknowledges."""
        self._cluster.acknowledged(channel, self._address)

    def connection_lost(self) -> None:
        """Every channel of the node misses messages."""
        self._cluster.away(self._address, self._wanted)

    # ── the protocol ──

    def _receive(self, reply: Any) -> None:
        kind = reply[0] if isinstance(reply, list) else b""
        if kind == b"smessage":
            self._silent = False
            self.message_received(reply[1], reply[2])
        elif kind == b"ssubscribe":
            self._silent = False
            self._restored()
            self.subscribed(reply[1])
        elif kind == b"sunsubscribe":
            self._silent = False
            # If it was not asked for it.
            if reply[1] in self._wanted and reply[1] not in self._joining:
                if not self._given_away:
                    # A slot's channels come together.
                    asyncio.get_running_loop().call_soon(self._ask_again)
                self._given_away.append(reply[1])
        elif isinstance(reply, MovedError):
            self._silent = False
            self._nodes.redirected(self._address, reply)
        else:
            super()._receive(reply)

    def _ask_again(self) -> None:
        given_away, self._given_away = self._given_away, []
        self._cluster.lost(given_away)
        for channel in given_away:
            if channel in self._wanted:
                self.subscribe(channel)

    def _send(self, line: Line, command: str, channels: list[bytes]) -> None:
        # The channels of one command have one slot.
        for _, same in groupby(sorted(channels, key=slot_of), slot_of):
            super()._send(line, f"S{command}", list(same))
