"""One connection to the broker without a layer between: bytes in, replies out.

The redis client opens it (TLS, credentials, database) and hands over its socket. From then on hiredis
alone packs and parses, and nothing waits per command: that is a third of what a command through the
client costs. Commands sent in one round of the event loop leave in one write, since each write costs a system call
here, a wakeup and a read at the broker.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
from redis.asyncio import BlockingConnectionPool
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from turnstream.shared.broker.retry import is_transient
from turnstream.shared.broker.sentinels import SentinelPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import ConnectionPool
    from redis.asyncio.connection import AbstractConnection

# About what is written in one round of the event loop. To pack and write a command of thirty megabytes at once would
# hold it up for tens of milliseconds.
PIECE_BYTES = 256 * 1024

_ERRORS: dict[str, type[ResponseError | RedisConnectionError]] = {
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}

# These read where to go.
_REDIRECTIONS: dict[str, type[AskError]] = {"ASK": AskError, "MOVED": MovedError}


def error_reply(text: str) -> Exception:
    """What the redis client would raise for an error reply."""
    code, _, rest = text.partition(" ")
    if rest == "max number of clients reached":
        return RedisConnectionError(rest)
    if code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return _ERRORS.get(code, ResponseError)(rest if code == "ERR" else text)


class NodePool(BlockingConnectionPool):
    """Connections to a node of a cluster, which itself says where to go."""


class Line(Protocol):
    """An open connection. Replies come in the order of the commands, to who opened it.

    Attributes:
        heard: when bytes came for the last time, by the event loop's clock.
    """

    heard: float

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not acknowledged yet."""

    def send(self, *words: str | bytes | float) -> None:
        """Send one command, with others of this round of the event loop."""

    def flush(self) -> None:
        """Send now what was given."""

    def send_in_pieces(self, *words: str | bytes | float) -> None:
        """Send one command that may be large, without packing it as a whole."""

    def close(self) -> None:
        """Cut the connection at once."""


async def open_line(
    pool: ConnectionPool, receive: Callable[[Any], None], lost: Callable[[BaseException | None], None]
) -> Line:
    """Connect to the pool's server; the pool itself does not count this connection.

    ``receive`` is called with each reply, an error reply being an exception instance; ``lost`` once, when the
    connection is gone, whoever closed it.

    Raises:
        redis.exceptions.RedisError, OSError: it cannot be reached, or refuses us; or it is a replica, which would answer
            reads with less than was written.
    """
    connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
    await _connect(connection)
    writer = connection._writer  # noqa: SLF001
    if isinstance(writer, asyncio.StreamWriter):
        # The socket is ours now; the client would close it, with a warning, when it drops the connection.
        connection._writer = connection._reader = None  # noqa: SLF001
        line = _SocketLine(writer, receive, lost)
        if not isinstance(pool, NodePool):
            # Sentinels, or a name, may lead to a replica for a while where a failover goes on. A user who may not ask learns
            # it, or what else is wrong, by the first command.
            told = await line.begin("INFO", "replication", seconds=connection.socket_timeout)
            if isinstance(told, bytes) and b"role:slave" in told:
                line.drop()
                raise ReadOnlyError("connected to a replica")
            if isinstance(told, Exception) and is_transient(told) and not isinstance(told, NoPermissionError):
                line.drop()
                raise told
        if isinstance(pool, SentinelPool):
            if not pool.leads_there((connection.host, connection.port)):  # type: ignore[attr-defined]
                line.drop()
                raise RedisConnectionError("the primary is another one meanwhile")
            pool.keep(line)
        return line
    return _EmbeddedLine(connection, receive, lost)


async def _connect(connection: AbstractConnection) -> None:
    """Connect, unless the task is cancelled meanwhile.

    The client library waits by `asyncio.wait_for`. Before Python 3.12 that loses a cancellation which comes as the wait is over, and
    a task that is cancelled once, at its process's end, would go on for ever.
    """
    cancelling = asyncio.current_task().cancelling  # type: ignore[union-attr]
    before = cancelling()
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
    finally:
        if cancelling() > before:
            await connection.disconnect(nowait=True)
            raise asyncio.CancelledError


class _SocketLine(asyncio.Protocol):
    """Over the socket that the client opened."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        receive: Callable[[Any], None],
        lost: Callable[[BaseException | None], None],
    ) -> None:
        # Kept, since a writer that nobody has closes its socket.
        self._writer = writer
        self._transport = writer.transport
        self._receive = receive
        self._lost = lost
        self._reader = hiredis.Reader(replyError=error_reply)
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self.heard = self._time()
        # What waits to be written, whether a round is to come, and whether the transport is full.
        self._packed: deque[bytes | memoryview] = deque()
        self._writing = self._full = False
        # Every reply of the handshake was read, so no byte is left behind in the client's own reader.
        self._transport.set_protocol(self)

    async def begin(self, *words: str, seconds: float | None) -> Any:
        """Send a command before any other; its reply, which may be an error.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: the connection was lost meanwhile; or no reply came in so many seconds,
                and it is cut.
        """
        reply, gone = self._loop.create_future(), self._loop.create_future()
        receive, lost = self._receive, self._lost
        self._receive = lambda told: None if reply.done() else reply.set_result(told)
        self._lost = gone.set_result
        try:
            self.send(*words)
            self.flush()
            async with asyncio.timeout(seconds):
                await asyncio.wait((reply, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise RedisConnectionError(str(gone.result() or "the connection was closed"))
        except TimeoutError:
            self.drop()
            raise RedisTimeoutError("no reply") from None
        except BaseException:
            self.drop()
            raise
        self._receive, self._lost = receive, lost
        return reply.result()

    def drop(self) -> None:
        """Cut a connection that whoever opened it never had."""
        self._lost = lambda _: None
        self.close()

    @property
    def unsent(self) -> int:
        waiting = self._transport.get_write_buffer_size() + sum(map(len, self._packed))
        try:
            # The kernel takes megabytes at once, and has them for long when the way is narrow.
            kept = fcntl.ioctl(
                self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0"
            )
        except OSError:
            # A kernel that does not tell.
            return waiting
        return waiting + int(struct.unpack("i", kept)[0])

    def send(self, *words: str | bytes | float) -> None:
        self._packed.append(hiredis.pack_command(words))  # type: ignore[arg-type]
        if not self._writing:
            self._write_soon()

    def flush(self) -> None:
        if not self._full:
            self._write()

    def send_in_pieces(self, *words: str | bytes | float) -> None:
        self._packed.extend(_pieces(words))
        if not self._writing:
            self._write_soon()

    def _write_soon(self) -> None:
        self._writing = bool(self._packed) and not self._full and not self._transport.is_closing()
        if self._writing:
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        packed = self._packed
        if packed and not self._transport.is_closing():
            first = packed.popleft()
            size = len(first)
            together = [first]
            while packed and size < PIECE_BYTES:
                together.append(packed.popleft())
                size += len(together[-1])
            self._transport.write(b"".join(together) if len(together) > 1 else first)
        self._write_soon()

    def pause_writing(self) -> None:
        """The transport holds enough."""
        self._full = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._full = False
        if not self._writing:
            self._write_soon()

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what came in."""
        reader = self._reader
        self.heard = self._time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self._receive(reply)
        except hiredis.ProtocolError:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is closed."""
        self._packed.clear()
        self._lost(exc)


def _pieces(words: tuple[str | bytes | float, ...]) -> Iterator[bytes | memoryview]:
    """A command in the broker's protocol. What is large is not copied."""
    small = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        small.append(b"$%d\r\n" % len(data))
        if len(data) > PIECE_BYTES:
            yield b"".join(small)
            small.clear()
            view = memoryview(data)
            for at in range(0, len(data), PIECE_BYTES):
                yield view[at : at + PIECE_BYTES]
        else:
            small.append(data)
        small.append(b"\r\n")
    yield b"".join(small)


class _EmbeddedLine:
    """To the embedded broker, which has no socket."""

    heard = 0.0
    unsent = 0

    def __init__(
        self,
        connection: AbstractConnection,
        receive: Callable[[Any], None],
        lost: Callable[[BaseException | None], None],
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._lost: Callable[[BaseException | None], None] | None = lost
        self._unsent: asyncio.Queue[tuple[str | bytes | float, ...]] = asyncio.Queue()
        self._parts = [asyncio.create_task(part()) for part in (self._write, self._read)]
        for part in self._parts:
            part.add_done_callback(self._ended)

    def send(self, *words: str | bytes | float) -> None:
        self._unsent.put_nowait(words)

    def flush(self) -> None:
        """Nothing waits for the round's end."""

    def send_in_pieces(self, *words: str | bytes | float) -> None:
        self.send(*words)

    def close(self) -> None:
        for part in self._parts:
            part.cancel()

    async def _write(self) -> None:
        while True:
            await self._connection.send_command(*await self._unsent.get(), check_health=False)

    async def _read(self) -> None:
        while True:
            try:
                reply = await self._connection.read_response(disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            self._receive(reply)

    def _ended(self, part: asyncio.Task[None]) -> None:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            lost(None if part.cancelled() else part.exception())
            self.close()
