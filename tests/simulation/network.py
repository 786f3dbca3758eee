"""Simulated TCP: connections with delay, backpressure and segments, which can be cut, held up, and half closed."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import itertools
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from tests.simulation.loop import current

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.loop import Process, SimulatedLoop

Address = tuple[str, int]

# Bytes on their way in one direction, or waiting there to be read; what is more waits at the sender.
WINDOW_BYTES = 64 * 1024

_SILENT, _ = os.pipe()
_READABLE, _written = os.pipe()
os.write(_written, b"x")

# Of what is written to one that reads slowly, or whom nothing reaches, more than so many bytes that wait are told to who writes
# them: turns are short here.
SLOW_BYTES = 512

# Until a system notices that nothing passes, whose programs do not: so long it sends again what is not acknowledged, and asks for no
# sign of life meanwhile.
NOTICED_SECONDS = 900.0

# Seconds that bytes take.
LATENCY_SECONDS = (20e-6, 400e-6)

# Between two arrivals: the loop's timers for one moment are in no order.
APART_SECONDS = 1e-9

# The share of writes that arrive in two parts.
SPLIT_SHARE = 0.1


class Network:
    """Who listens where, and all connections.

    Attributes:
        trace: a digest of all that arrived, when and where: the same for the same seed.
        lost: both processes' names, in order → number of each connection between them that was lost → when.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self._loop = loop
        self.rng = rng
        self._listening: dict[Address, Listener] = {}
        self._numbers = itertools.count(1)
        self.connections: dict[int, tuple[Endpoint, Endpoint]] = {}
        self.trace = hashlib.sha256()
        self.lost: dict[tuple[str, ...], dict[int, float]] = {}
        # Two processes → until when nothing passes between them.
        self._parted: dict[frozenset[str], float] = {}
        loop.network = self

    def listen(self, factory: Callable[[], Any], address: Address) -> Listener:
        """Take connections at an address, in the process that runs."""
        listener = Listener(self, factory, address)
        self._listening[address] = listener
        current().at_death.append(listener.close)
        return listener

    def closed(self, listener: Listener) -> None:
        """Nobody listens there any more."""
        if self._listening.get(listener.address) is listener:
            del self._listening[listener.address]

    async def connect(self, factory: Callable[[], Any], address: Address) -> tuple[Endpoint, Any]:
        """Connect from the process that runs.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        await asyncio.sleep(self.latency())
        listener = self._listening.get(("127.0.0.1", address[1]))
        if listener is not None and self._parted:
            parted = self._parted.get(frozenset((str(current()), str(listener.process))), 0.0)
            if parted > self.now():
                await asyncio.sleep(parted - self.now())
                listener = self._listening.get(("127.0.0.1", address[1]))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        number = next(self._numbers)
        near = Endpoint(self, number, f"{current()}>{listener.process}", contextvars.copy_context(), address)
        far = Endpoint(self, number, f"{listener.process}>{current()}", listener.context.copy(), address)
        near.peer, far.peer = far, near
        self.connections[number] = (near, far)
        for endpoint, process in ((near, current()), (far, listener.process)):
            process.at_death.append(endpoint.vanish)
        protocol = factory()
        near.set_protocol(protocol)
        protocol.connection_made(near)
        self._loop.call_soon(listener.accept, far, context=far.context)
        return near, protocol

    def lost_between(self, one: str, other: str) -> list[float]:
        """When two processes have lost connections."""
        return list(self.lost.get(tuple(sorted((one, other))), {}).values())

    def part(self, one: str, other: str, seconds: float) -> None:
        """Let nothing pass between two processes for a while; what was sent, is sent again by their systems then."""
        self._parted[frozenset((one, other))] = self.now() + seconds
        for pair in self.connections.values():
            if set(pair[0].name.split(">")) == {one, other}:
                for side in pair:
                    side.hold(seconds)

    def latency(self) -> float:
        """How long the next bytes take, seconds."""
        return self.rng.uniform(*LATENCY_SECONDS)

    def note(self, who: str, data: bytes) -> None:
        """Add an arrival to the trace."""
        self.trace.update(b"%.6f %b %d\n%b" % (self._loop.time(), who.encode(), len(data), data))

    def at(self, when: float, endpoint: Endpoint, callback: Callable[..., None], *args: Any) -> None:
        """Call something in an endpoint's process."""
        self._loop.call_at(when, callback, *args, context=endpoint.context)

    def now(self) -> float:
        """Virtual time."""
        return self._loop.time()


class Listener:
    """As asyncio's servers."""

    def __init__(self, network: Network, factory: Callable[[], Any], address: Address) -> None:
        self._network = network
        self._factory = factory
        self.address = address
        self.process: Process = current()
        self.context = contextvars.copy_context()
        self.sockets = (Socket(address),)

    def accept(self, endpoint: Endpoint) -> None:
        """A client has connected."""
        if endpoint.lost:
            return
        protocol = self._factory()
        endpoint.set_protocol(protocol)
        protocol.connection_made(endpoint)
        endpoint.read_what_came()

    def close(self) -> None:
        """Take no more connections."""
        self._network.closed(self)

    async def wait_closed(self) -> None:
        """It is closed at once."""

    def is_serving(self) -> bool:
        """Whether it takes connections."""
        return True


class Socket:
    """What libraries ask of a connection's socket."""

    family = 2
    type = 1

    def __init__(self, address: Address, endpoint: Endpoint | None = None) -> None:
        self._address = address
        self._endpoint = endpoint

    def getsockname(self) -> Address:
        """Where it listens, or is connected."""
        return self._address

    def getpeername(self) -> Address:
        """Whom it is connected to."""
        return self._address

    def setsockopt(self, *_: Any) -> None:
        """Nothing is to be set."""

    def fileno(self) -> int:
        """A file that has something to read where this has: clients look whether a pooled connection was closed."""
        return _READABLE if self._endpoint is not None and self._endpoint.is_readable() else _SILENT

    def close(self) -> None:
        """Nothing is to be closed."""


class Endpoint(asyncio.Transport):
    """One side of a connection.

    Attributes:
        silent: whether nothing that it sends arrives, and nobody knows.
        lost: whether it is there no more.
    """

    peer: Endpoint

    def __init__(
        self, network: Network, number: int, name: str, context: contextvars.Context, address: Address
    ) -> None:
        super().__init__({"socket": Socket(address, self), "peername": address, "sockname": address})
        self._network = network
        self._number = number
        self.name = name
        self.context = context
        self._protocol: Any = None
        self._out: deque[bytes] = deque()
        self._size = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._full = False
        # Bytes on their way to the peer, or not read by it.
        self._under_way = 0
        self._arrives = 0.0
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        # Whether it reads nothing now, and its system takes next to nothing; and whether nothing that it sends arrives.
        self._slow = self.silent = False
        self._closing = self._said_eof = self._told_eof = self.lost = False
        # Called with what is written, from within: what it returns is sent.
        self.on_write: Callable[[bytes], bytes] | None = None

    # ── as a transport ──

    @override
    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    @override
    def get_protocol(self) -> Any:
        return self._protocol

    @override
    def is_closing(self) -> bool:
        return self._closing

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    @override
    def get_write_buffer_size(self) -> int:
        return self._size

    @override
    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    @override
    def pause_reading(self) -> None:
        self._reading = False

    @override
    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._network.at(self._network.now(), self, self.read_what_came)

    @override
    def is_reading(self) -> bool:
        return self._reading

    def is_readable(self) -> bool:
        """Whether something came that was not read: bytes, or the end."""
        return self.lost or bool(self._inbox)

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._closing or self._said_eof:
            return
        data = bytes(data)
        if self.on_write is not None:
            data = self.on_write(data)
        self._out.append(data)
        self._size += len(data)
        self._send()
        if self._size > (SLOW_BYTES if self._is_stuck() else self._high) and not self._full:
            self._full = True
            self._protocol.pause_writing()

    @override
    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        if not self._said_eof and not self._closing:
            self._said_eof = True
            self._send()

    @override
    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send()

    @override
    def abort(self) -> None:
        self._lose(None)
        self._tell(self.peer.reset)

    @property
    def asked_by(self) -> str:
        """The name of the process at the other side."""
        return self.name.partition(">")[2]

    # ── on the way ──

    def _send(self) -> None:
        window = 1 if self._is_stuck() else WINDOW_BYTES
        while self._out and self._under_way < window and not self.lost:
            data = self._out.popleft()
            if len(data) > 1 and self._network.rng.random() < SPLIT_SHARE:
                at = self._network.rng.randrange(1, len(data))
                self._out.appendleft(data[at:])
                data = data[:at]
            self._size -= len(data)
            self._under_way += len(data)
            self._tell(self.peer.arrive, data)
        if self._full and self._size <= (0 if self._is_stuck() else self._low):
            self._full = False
            self._protocol.resume_writing()
        if not self._out and (self._closing or self._said_eof):
            if not self._told_eof:
                self._told_eof = True
                self._tell(self.peer.arrive, None)
            if self._closing and not self.lost:
                self._network.at(self._network.now(), self, self._lose, None)

    def _is_stuck(self) -> bool:
        return self.peer._slow or self.silent

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        """Have something happen at the other side, after all that was told before."""
        if self.silent:
            return
        self._arrives = max(self._arrives + APART_SECONDS, self._network.now() + self._network.latency())
        self._network.at(self._arrives, self.peer, what, *args)

    def hold(self, seconds: float) -> None:
        """Let nothing that is sent from now on arrive before so many seconds have passed."""
        self._arrives = max(self._arrives, self._network.now() + seconds)

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or their end, came from the other side."""
        if self.lost:
            return
        self._inbox.append(data)
        self.read_what_came()

    def read_what_came(self) -> None:
        """Hand it to the protocol, unless that has paused."""
        while self._inbox and self._reading and not (self._slow or self.lost) and self._protocol is not None:
            data = self._inbox.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                continue
            self._network.note(self.name, data)
            self.peer.taken(len(data))
            self._protocol.data_received(data)

    def taken(self, size: int) -> None:
        """The other side has read some."""
        self._under_way -= size
        if not self.lost and (self._out or self._full):
            self._network.at(self._network.now(), self, self._send)

    def read_slowly(self, seconds: float) -> None:
        """Read nothing for a while: what is sent here waits at the other side."""
        if not self._slow:
            self._slow = True
            self._network.at(self._network.now() + seconds, self, self._read_again)

    def _read_again(self) -> None:
        self._slow = False
        self.read_what_came()

    # ── its end ──

    def reset(self) -> None:
        """The other side is gone."""
        self._lose(ConnectionResetError("reset by the other side"))

    def cut(self) -> None:
        """Lose the connection at both sides, with what is under way."""
        for side in (self, self.peer):
            self._network.at(self._network.now() + self._network.latency(), side, side.reset)

    def silence(self) -> None:
        """Let nothing that is sent from now on arrive, and tell neither side, until its system notices."""
        for side in (self, self.peer):
            side.silent = True
            self._network.at(self._network.now() + NOTICED_SECONDS, side, side.reset)

    def part(self) -> None:
        """Lose the connection at this side; what is under way to the other side still arrives there, and then the end."""
        if not self.lost:
            self._tell(self.peer.reset)
            self._lose(ConnectionResetError("lost"))

    def vanish(self) -> None:
        """Its process was killed: nothing more happens here, and the other side is told by the system."""
        if not self.lost:
            self.lost = True
            self._note_loss()
            self._tell(self.peer.reset)

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self._closing = True
        self._note_loss()
        if self._slow:
            # What was not read: its system resets.
            self._tell(self.peer.reset)
        self._out.clear()
        self._size = 0
        if self._protocol is not None:
            self._network.at(self._network.now(), self, self._protocol.connection_lost, error)

    def _note_loss(self) -> None:
        self._network.connections.pop(self._number, None)
        between = tuple(sorted(self.name.split(">")))
        self._network.lost.setdefault(between, {})[self._number] = self._network.now()
