"""Simulated brokers that stand in for each other: a pair that Sentinels watch, and the nodes of a Redis Cluster.

What a node answers was asked of Valkey 9: see `Node.refusal`. A replica has no data of its own; when it takes its primary's
place, it is given all that this has, or had a moment before.
"""

from __future__ import annotations

import asyncio
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import hiredis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.simulation.broker import SimulatedBroker, Socket, Store, encoded
from tests.simulation.recording import Moved
from tests.simulation.steps import Steps

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from tests.simulation.loop import Process, SimulatedLoop

# A server that is silent for so long counts as failed; how long it then takes until its replica is chosen, and until the
# others know.
TIMEOUT_SECONDS = 0.6
ELECTED_SECONDS = (0.1, 0.6)
KNOWN_SECONDS = (0.0, 0.3)

# Until one that stood still hears that it was replaced.
UNAWARE_SECONDS = (0.0, 0.05)

# Until a message is at the replica's subscribers.
PASSED_ON_SECONDS = (1e-4, 1e-2)

# Who is sent to and fro so often does not know that it is to ask: what was under way at the same time explains less.
MOST_SENT = 3

# Keys of a slot that go to another node together; and the time between two steps of that.
MOST_KEYS = 40
PAUSES_SECONDS = ((0.0, 0.001), (0.0, 0.02), (0.0, 0.2))

# The share of moves that concern sessions with a turn; and of those that leave a node nothing.
LIVE_SHARE = 0.8
WHOLE_SHARE = 0.2

NAME = "turnstream"

_OK = b"+OK\r\n"
_DOWN = b"-CLUSTERDOWN The cluster is down\r\n"

# Commands that name no key.
_WITHOUT_KEY = frozenset(
    b"PING INFO AUTH SELECT CLIENT HELLO TIME SCAN DBSIZE KEYS PUBLISH SUBSCRIBE UNSUBSCRIBE SCRIPT ECHO".split()
)
# Those whose keys are channels, which are never missing.
_CHANNELS = frozenset(b"SSUBSCRIBE SUNSUBSCRIBE SPUBLISH".split())
_MANY_KEYS = frozenset(b"DEL UNLINK EXISTS MGET SSUBSCRIBE SUNSUBSCRIBE".split())


@lru_cache(100_000)
def slot_of(key: bytes) -> int:
    """The slot of a key, or of a channel."""
    slot: int = key_slot(key)
    return slot


class Shard:
    """A server that has data, and the one that takes its place.

    Attributes:
        in_hand: something is done to them that others must not disturb.
    """

    def __init__(self, primary: SimulatedBroker, replica: SimulatedBroker) -> None:
        self.primary = primary
        self.replica = replica
        self.in_hand = False


class Servers(Store):
    """Several that hold one set of data between them.

    Attributes:
        shards: whose data it is now.
        on_loss: called when something is lost, or was written where it will be.
    """

    shards: Sequence[Shard]

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        super().__init__(Steps(rng))
        self.loop = loop
        self.rng = rng
        self.on_loss: Callable[[], None] = lambda: None

    @property
    def brokers(self) -> Sequence[SimulatedBroker]:
        """All, in an order of their own."""
        return sorted(
            (each for shard in self.shards for each in (shard.primary, shard.replica)),
            key=lambda each: each.port,
        )

    @property
    def serving(self) -> Sequence[SimulatedBroker]:
        """The primaries."""
        return [shard.primary for shard in self.shards]

    def start(self) -> None:
        """Take connections."""
        for each in self.brokers:
            # What they cannot do at one time is noted once.
            each.unable = self.unable
            each.start()

    async def fail_over(self, shard: Shard, *, kept: bool) -> None:
        """What its replica does when the primary has become silent; ``kept``: with the copy that the primary has kept."""
        await asyncio.sleep(TIMEOUT_SECONDS)
        self.suspect(shard)
        await asyncio.sleep(self.rng.uniform(*ELECTED_SECONDS))
        self.replace(shard, kept=kept)

    def replace(self, shard: Shard, *, kept: bool) -> None:
        """Its replica takes the primary's place."""
        if kept:
            self.lose()
        former, chosen = shard.primary, shard.replica
        chosen.take_place_of(former, kept=kept)
        shard.primary, shard.replica = chosen, former
        former.on_lost_write = self.lose
        self.promote(shard)

    def lose(self) -> None:
        """Something is lost."""
        self.steps.forget()
        self.on_loss()

    def suspect(self, shard: Shard) -> None:
        """Its primary is silent for long."""

    def promote(self, shard: Shard) -> None:
        """Its primary is one now; say so to who is to know."""
        raise NotImplementedError

    def demote(self, shard: Shard) -> None:
        """Its replica, which was its primary, hears that it is one."""
        shard.replica.on_lost_write = None

    def rejoin(self, shard: Shard) -> None:
        """The same, of one that was killed: it is back."""
        shard.replica.restart()
        self.demote(shard)


# ── Sentinel ──


class Watched(Servers):
    """A pair, and three Sentinels that say which of the two is the primary."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, ports: tuple[int, int], sentinels: Sequence[int]
    ) -> None:
        super().__init__(loop, rng)
        primary, replica = (SimulatedBroker(loop, rng, port, self.steps) for port in ports)
        self.shards = (Shard(primary, replica),)
        self.sentinels = [Sentinel(loop, port, primary.port) for port in sentinels]
        self._follow(self.shards[0])

    @property
    def url(self) -> str:
        """The Sentinels'."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/{NAME}"

    @property
    def port(self) -> int:
        """The primary's."""
        return self.shards[0].primary.port

    def start(self) -> None:
        """Start all."""
        super().start()
        for each in self.sentinels:
            each.start()

    def item(self, key: bytes) -> Any:
        """What a key holds now."""
        return self.shards[0].primary.item(key)

    def suspect(self, shard: Shard) -> None:
        """The Sentinels say so."""
        for each in self.sentinels:
            each.down = True

    def promote(self, shard: Shard) -> None:
        """The Sentinels come to know one after the other."""
        shard.primary.replica = False
        for each in self.sentinels:
            self.loop.call_later(self.rng.uniform(*KNOWN_SECONDS), each.learn, shard.primary.port)

    def demote(self, shard: Shard) -> None:
        """Its clients' connections are closed, as Sentinels have it done."""
        super().demote(shard)
        self._follow(shard)
        self._cut(shard.replica)

    def mistake(self, shard: Shard, *, believes: bool) -> None:
        """The Sentinels take the replica for the primary; it ``believes`` it, and loses what it takes, or it does not."""
        if believes:
            shard.replica.begin_anew()
            shard.replica.replica = False
            shard.replica.on_lost_write = self.lose
        self._name(shard.primary, shard.replica)

    def correct(self, shard: Shard) -> None:
        """They know better."""
        shard.replica.on_lost_write = None
        self._follow(shard)
        self._name(shard.replica, shard.primary)

    def _name(self, former: SimulatedBroker, primary: SimulatedBroker) -> None:
        # Many clients do not hear of it, and stay where they are; a replica keeps none.
        self.lagged = True
        for sentinel in self.sentinels:
            sentinel.learn(primary.port)
        self._cut(former, share=1.0 if former.replica else 0.5)

    def _cut(self, broker: SimulatedBroker, share: float = 1.0) -> None:
        ours = f"broker-{broker.port}>"
        for _, far in list(self.loop.network.connections.values()):
            if far.name.startswith(ours) and self.rng.random() < share:
                far.cut()

    def _follow(self, shard: Shard) -> None:
        shard.replica.replica = True
        shard.replica.name = shard.primary.name


class Sentinel:
    """One of those that know where the primary is.

    Attributes:
        primary: the port.
        down: whether it says that this does not answer.
    """

    def __init__(self, loop: SimulatedLoop, port: int, primary: int) -> None:
        self._loop = loop
        self.port = port
        self.primary = primary
        self.down = False
        self._process: Process | None = None

    def start(self) -> None:
        """Take connections."""
        self._process, _ = self._loop.begin(f"sentinel-{self.port}", self._listen)

    @property
    def runs(self) -> bool:
        """Whether it answers."""
        return self._process is not None

    def stop(self) -> None:
        """End at once."""
        if self._process is not None:
            self._loop.kill(self._process)
            self._process = None

    async def _listen(self) -> None:
        self._loop.network.listen(lambda: _Asked(self), ("127.0.0.1", self.port))

    def learn(self, primary: int) -> None:
        """Another server is the primary."""
        self.primary, self.down = primary, False

    def answer(self, words: list[bytes]) -> bytes:
        """The reply to a command."""
        if [each.upper() for each in words[:2]] != [b"SENTINEL", b"MASTERS"]:
            return b"+PONG\r\n" if words[0].upper() == b"PING" else _OK
        told = {
            "name": NAME,
            "ip": "127.0.0.1",
            "port": str(self.primary),
            "flags": "master,s_down,o_down" if self.down else "master",
            "num-slaves": "1",
            "num-other-sentinels": "2",
        }
        return encoded([[word.encode() for pair in told.items() for word in pair]])


class _Asked(asyncio.Protocol):
    """A Sentinel's connection."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._reader = hiredis.Reader()
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            self._transport.write(self._sentinel.answer(words))


# ── a cluster ──


class SlotMap:
    """Which node has which slot.

    Attributes:
        number: of a newer one it is greater.
        owners: a node for each slot.
    """

    def __init__(self, number: int, owners: list[Node]) -> None:
        self.number = number
        self.owners = owners

    def with_owner(self, slots: Iterable[int], owner: Node) -> SlotMap:
        """The next map, in which a node has these slots, too."""
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = owner
        return SlotMap(self.number + 1, owners)

    def slots(self, owner: Node) -> list[int]:
        """Those that a node has."""
        return [slot for slot, each in enumerate(self.owners) if each is owner]

    @cached_property
    def told(self) -> bytes:
        """As ``CLUSTER SLOTS`` tells it."""
        ranges: list[Any] = []
        first = 0
        for slot in range(1, len(self.owners) + 1):
            if slot == len(self.owners) or self.owners[slot] is not self.owners[first]:
                owner = self.owners[first]
                ranges.append([first, slot - 1, [b"127.0.0.1", owner.port, owner.id]])
                first = slot
        return encoded(ranges)


class Node(SimulatedBroker):
    """One of a cluster.

    Attributes:
        view: the slots, as it knows them.
        follows: whose replica it takes itself for.
        leaving, coming: slots that are moved to another node, or from one, key by key.
        alone: nothing passes between it and the other nodes.
        down: it has long not heard from most of the others.
    """

    view: SlotMap

    def __init__(self, loop: SimulatedLoop, rng: random.Random, port: int, steps: Steps) -> None:
        super().__init__(loop, rng, port, steps)
        self.id = b"%040x" % port
        self.follows: Node | None = None
        self.leaving: dict[int, Node] = {}
        self.coming: dict[int, Node] = {}
        self.alone = self.down = False
        # Its replica, which has subscribers' messages passed on.
        self.copies: Node | None = None

    def replication(self) -> bytes:
        """What it says of its role; a replica has its primary's data, by that one's name."""
        if self.follows is None:
            return super().replication()
        return b"role:slave\r\nmaster_replid:%b\r\n" % self.follows.name.encode()

    @property
    def hears(self) -> bool:
        """Whether other nodes reach it."""
        return self.runs and not self.alone

    def has(self, slot: int) -> bool:
        """Whether a channel of that slot may be subscribed here."""
        return self.view.owners[slot] in (self, self.follows)

    def refusal(self, name: bytes, words: list[bytes], *, asking: bool) -> bytes:
        """The error with which a command is sent elsewhere; empty when it is carried out here."""
        keys = _keys_of(name, words)
        if not keys:
            return b""
        slot = slot_of(keys[0])
        if any(slot_of(each) != slot for each in keys):
            return b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
        if name in _CHANNELS:
            return b"" if self.has(slot) else self._moved(slot)
        if self.down:
            return _DOWN
        open_here = slot in self.leaving or slot in self.coming
        missing = sum(self.item(key) is None for key in keys) if open_here else 0
        if slot in self.leaving and self.view.owners[slot] is self and missing:
            if missing < len(keys):
                return _TRY_AGAIN
            return b"-ASK %d 127.0.0.1:%d\r\n" % (slot, self.leaving[slot].port)
        if slot in self.coming and asking:
            return _TRY_AGAIN if missing and len(keys) > 1 else b""
        return b"" if self.view.owners[slot] is self else self._moved(slot)

    def _moved(self, slot: int) -> bytes:
        return b"-MOVED %d 127.0.0.1:%d\r\n" % (slot, self.view.owners[slot].port)

    def sent_on(self, who: str, error: bytes) -> None:
        """Note where somebody is sent: who is sent to a node that a slot comes to, is to say ``ASKING`` there."""
        if not error.startswith((b"-ASK ", b"-MOVED ")):
            return
        slot = int(error.split()[1])
        sent = self.steps.sent.get((who, slot), [])
        if slot in self.coming and sent[-1:] == [b"-ASK"]:
            sent.append(b"-MOVED")
        else:
            sent = [*sent, b"-ASK"] if slot in self.leaving and sent[-1:] != [b"-ASK"] else []
        self.steps.sent[who, slot] = sent
        if len(sent) > MOST_SENT:
            self.steps.wrong.append(f"who_is_sent_asks: {who}: slot {slot}, at {self.port}")

    def asked(self, who: str, name: bytes, words: list[bytes]) -> None:
        """Note that a client says ``ASKING``, as is right: what it was sent before is done with."""
        for key in _keys_of(name, words)[:1]:
            self.steps.sent.pop((who, slot_of(key)), None)

    def hear(self, newest: SlotMap) -> None:
        """Hear who has which slot."""
        if newest.number > self.view.number:
            self.view = newest
            self.withdraw()

    def withdraw(self, *, all_of_them: bool = False) -> None:
        """Tell subscribers of what is not here any more."""
        subscribers: Any = self.server.ssubscribers
        for channel in list(subscribers):
            if all_of_them or not self.has(slot_of(channel)):
                for each in list(subscribers.pop(channel)):
                    self.note(each.number, [b"SUNSUBSCRIBE", channel])
                    each.withdrawn(channel)

    def pass_on(self, replica: Node, channel: bytes, message: bytes) -> None:
        """Have a message be at the replica, too."""
        seconds = self._rng.uniform(*PASSED_ON_SECONDS)
        self._loop.call_later(seconds, replica.deliver, channel, message, context=replica.context)

    def deliver(self, channel: bytes, message: bytes) -> None:
        """Give a message of its primary's to its own subscribers."""
        if self.runs:
            self.note(0, [b"SPUBLISH", channel, message])
            for each in list(self.server.ssubscribers.get(channel, ())):
                each.put_response([b"smessage", channel, message])


_TRY_AGAIN = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"


def _keys_of(name: bytes, words: list[bytes]) -> list[bytes]:
    if name in _WITHOUT_KEY:
        return []
    if name in (b"EVAL", b"EVALSHA"):
        return words[3 : 3 + int(words[2])]
    return words[1:] if name in _MANY_KEYS else words[1:2]


class NodeSocket(Socket):
    """A connection to a node."""

    _broker: Node
    _asking = False

    def _process_command(self, fields: list[bytes]) -> None:
        node, name = self._broker, fields[0].upper()
        asking, self._asking = self._asking, name == b"ASKING"
        if asking:
            node.asked(self._transport.asked_by, name, fields)
        if name == b"ASKING":
            self._transport.write(_OK)
        elif name == b"CLUSTER":
            self._transport.write(node.view.told)
        elif error := node.refusal(name, fields, asking=asking):
            node.note(self.number, fields, elsewhere=not error.startswith(b"-CROSSSLOT"))
            node.sent_on(self._transport.asked_by, error)
            self._transport.write(error)
        else:
            super()._process_command(fields)

    def spublish(self, channel: bytes, message: bytes) -> int:
        """As the base does; the replica's subscribers get it, too."""
        node = self._broker
        if node.copies is not None and node.hears and node.copies.hears:
            node.pass_on(node.copies, channel, message)
        count: int = super().spublish(channel, message)
        return count

    def withdrawn(self, channel: bytes) -> None:
        """Say that a channel is not subscribed any more."""
        self._pubsub -= 1
        self.put_response([b"sunsubscribe", channel, self._pubsub])


Node.socket = NodeSocket


class ClusterOfNodes(Servers):
    """Three primaries, each with a replica."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, ports: Sequence[int], gathered: int) -> None:
        """``ports``: those of primaries and replicas in turn; ``gathered``: of the one that is read at the end."""
        super().__init__(loop, rng)
        self._gathered = gathered
        # Where slots were before.
        self._former: dict[int, Node] = {}
        # Nodes that something is yet to be said to.
        self._unheard: set[Node] = set()
        nodes = [Node(loop, rng, port, self.steps) for port in ports]
        self._nodes = nodes
        self.shards = [Shard(*pair) for pair in zip(nodes[::2], nodes[1::2], strict=True)]
        primaries = nodes[::2]
        each_has = -(-REDIS_CLUSTER_HASH_SLOTS // len(primaries))
        self.map = SlotMap(1, [primaries[slot // each_has] for slot in range(REDIS_CLUSTER_HASH_SLOTS)])
        for node in nodes:
            node.view = self.map
        for shard in self.shards:
            self._follow(shard)

    @property
    def url(self) -> str:
        """That of two nodes: they know the others."""
        return f"redis+cluster://127.0.0.1:{self._nodes[1].port},127.0.0.1:{self._nodes[2].port}"

    @property
    def port(self) -> int:
        """That of a server which has a copy of all; made when it is asked for."""
        copy = SimulatedBroker(self.loop, self.rng, self._gathered)
        for key, item in self.items():
            copy.server.dbs[0][key] = item
        copy.start()
        return self._gathered

    def at(self, key: bytes) -> Node:
        """The node that has a key, or would."""
        slot = slot_of(key)
        node = self.map.owners[slot]
        if slot in node.leaving and node.item(key) is None:
            return node.leaving[slot]
        return node

    def item(self, key: bytes) -> Any:
        """What a key holds now."""
        return self.at(key).item(key)

    def promote(self, shard: Shard) -> None:
        """It has the slots of the one that it followed; the others come to know."""
        chosen, former = self._pair(shard)
        chosen.follows = None
        chosen.copies, former.copies = None, None
        self._change(self.map.slots(former), chosen, chosen)

    def demote(self, shard: Shard) -> None:
        """It follows, and its subscribers are sent away."""
        super().demote(shard)
        self._follow(shard)
        _, former = self._pair(shard)
        former.down = former.alone = False
        former.hear(self.map)
        former.withdraw(all_of_them=True)

    def _pair(self, shard: Shard) -> tuple[Node, Node]:
        primary, replica = shard.primary, shard.replica
        assert isinstance(primary, Node)
        assert isinstance(replica, Node)
        return primary, replica

    def _follow(self, shard: Shard) -> None:
        primary, replica = self._pair(shard)
        primary.copies, replica.follows = replica, primary

    def _change(self, slots: Iterable[int], owner: Node, *knowing: Node) -> None:
        """A node has other slots; some nodes know it at once, the others soon."""
        self.map = self.map.with_owner(slots, owner)
        for node in knowing:
            node.hear(self.map)
        for node in self._nodes:
            if node not in knowing:
                self.loop.call_later(self.rng.uniform(*KNOWN_SECONDS), self._hear, node)

    def _hear(self, node: Node) -> None:
        if node.hears:
            node.hear(self.map)
        elif node not in self._unheard:
            # It stands still, or restarts.
            self._unheard.add(node)
            self.loop.call_later(KNOWN_SECONDS[1], self._hear_again, node)

    def _hear_again(self, node: Node) -> None:
        self._unheard.discard(node)
        self._hear(node)

    # ── slots that move ──

    def some_slots(self, source: Node) -> list[int]:
        """Some that hold sessions, or all, if there are any; those in which something happens rather than others."""
        with source.server.lock:
            held = sorted({slot_of(key) for key in source.server.dbs[0]})
            live = sorted({slot_of(key) for key in source.server.dbs[0] if key.endswith(b"}:live")})
        few = live if live and self.rng.random() < LIVE_SHARE else held
        return held if self.rng.random() < WHOLE_SHARE else self.rng.sample(few, min(len(few), 2))

    def give_back(self, node: SimulatedBroker, takers: Iterable[SimulatedBroker]) -> None:
        """Move what has come to a node to where it came from, if that is one of these, in one moment."""
        assert isinstance(node, Node)
        for taker in takers:
            assert isinstance(taker, Node)
            slots = [slot for slot, former in self._former.items() if former is taker]
            if slots := [slot for slot in slots if self.map.owners[slot] is node]:
                self.move_at_once(slots, node, taker)

    def move_at_once(self, slots: Sequence[int], source: Node, target: Node) -> None:
        """As Valkey 9 does it by itself: there is no ASK."""
        self._former.update(dict.fromkeys(slots, source))
        self.move_keys(slots, source, target)
        self._change(slots, target, target, source)

    async def move(self, slots: Sequence[int], source: Node, target: Node) -> None:
        """Key by key, as a program does it that gives one command after the other."""
        self._former.update(dict.fromkeys(slots, source))
        self.begin_move(slots, source, target)
        await self._pause()
        while self.move_keys(slots, source, target, self.rng.randint(1, MOST_KEYS)):
            await self._pause()
        self.end_move(slots, target)
        await self._pause()
        self.forget_move(slots, source)

    def begin_move(self, slots: Sequence[int], source: Node, target: Node) -> None:
        """From now on what the source does not have is asked of the target."""
        for slot in slots:
            source.leaving[slot], target.coming[slot] = target, source

    def end_move(self, slots: Sequence[int], target: Node) -> None:
        """The target has the slots, and says so."""
        for slot in slots:
            del target.coming[slot]
        self._change(slots, target, target)

    def forget_move(self, slots: Sequence[int], source: Node) -> None:
        """The source knows it, too."""
        for slot in slots:
            del source.leaving[slot]
        source.hear(self.map)

    def move_keys(self, slots: Sequence[int], source: Node, target: Node, most: int | None = None) -> int:
        """Move some keys of the slots, or all; how many."""
        wanted, here, there = set(slots), source.server.dbs[0], target.server.dbs[0]
        keys = [key for key in here if slot_of(key) in wanted][:most]
        for key in keys:
            there[key] = here[key]
            del here[key]
        source.record(Moved(source.port, keys, target.port))
        return len(keys)

    async def _pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(*self.rng.choice(PAUSES_SECONDS)))
