"""What is between two processes of this machine: bytes are passed on, slowly, up to a point, or for a while not at all."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"

# What is read at once: much, or little on a narrow link, which is no store.
PIECE, SMALL_PIECE = 64 * 1024, 32 * 1024

UP, DOWN = 0, 1

# Who is cut off: a process, those that come from one address, or all.
Who = int | str | None


@dataclass(eq=False)
class _Connection:
    """One that was accepted: it passes while nobody is cut off whose it is."""

    host: str
    port: int
    held_for: set[Who] = field(default_factory=set)
    passes: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self, who: Who) -> None:
        self.held_for.add(who)
        self.passes.clear()

    def release(self, who: Who) -> None:
        self.held_for.discard(who)
        if not self.held_for:
            self.passes.set()


class _Frames:
    """Lets so many frames of an event stream through; with None, all."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        # A line's end that may be the first half of a frame's.
        self._half = b""

    def of(self, piece: bytes) -> bytes:
        """What comes through of it."""
        if self.left is None:
            return piece
        text, at = self._half + piece, 0
        while self.left and (found := text.find(b"\n\n", at)) >= 0:
            at = found + 2
            self.left -= 1
        if not self.left:
            return text[len(self._half) : at]
        self._half = b"\n" if at < len(text) and text.endswith(b"\n") else b""
        return piece


class Link:
    """Passes on what is sent to its port, to one server or, when the test says so, to another.

    Attributes:
        port: where it listens, from the beginning; connections wait until it has been started.
        upstream: the server's port; for new connections.
        cuts: for each new connection, after how many bytes of the answer it is cut; when they run out,
            or with None, it is not.
        behind: the same, behind how many frames of an event stream; heartbeats are frames, too.
        sent: bytes of the answer that each connection let through.
        requests: the head of each HTTP request.
        bytes_a_second: what all connections together may send in each direction, where they take turns; 0: any.
    """

    def __init__(self, upstream: int, bytes_a_second: float = 0.0) -> None:
        self._socket = socket.create_server((HOST, 0))
        self._piece = SMALL_PIECE if bytes_a_second else PIECE
        if bytes_a_second:
            # What is not through waits on the other side.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_PIECE)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_PIECE)
        self.port: int = self._socket.getsockname()[1]
        self.upstream = upstream
        self.cuts: Iterator[int | None] = iter(())
        self.behind: Iterator[int | None] = iter(())
        self.sent: list[int] = []
        self.requests: list[bytes] = []
        self.bytes_a_second = bytes_a_second
        self._wires = (asyncio.Lock(), asyncio.Lock())
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._parted: set[Who] = set()
        self._connections: set[_Connection] = set()

    @property
    def url(self) -> str:
        """Its address, as a front end's."""
        return f"http://{HOST}:{self.port}"

    async def start(self) -> Self:
        """Pass on what comes; again, it changes nothing."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._socket, limit=self._piece)
        return self

    async def close(self) -> None:
        """Cut everything, listen no more."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def end(self) -> None:
        """`close`, without waiting for it."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self.cut_all()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def cut_all(self) -> None:
        """Cut the connections that are open."""
        for task in self._tasks:
            task.cancel()

    # ── partition: nothing comes through and nothing is told, as where a network loses all packets ──

    def part(self, who: Who = None) -> None:
        """Until `join`, nothing passes of a process, of an address, or of any: what is sent waits, as do new connections."""
        self._parted.add(who)
        for each in _whose(who, self._connections):
            each.hold(who)

    def join(self, who: Who = None) -> None:
        """What waited goes on, as what was sent again would."""
        self._parted.discard(who)
        for each in self._connections:
            each.release(who)

    # ── connections ──

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection(*writer.get_extra_info("peername"))
        connection.passes.set()
        self._connections.add(connection)
        try:
            for who in self._parted:
                if _whose(who, {connection}):
                    connection.hold(who)
            await connection.passes.wait()
            frames = _Frames(next(self.behind, None))
            await self._forward(reader, writer, connection.passes, next(self.cuts, None), frames)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._connections.discard(connection)
            writer.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: asyncio.Event,
        most: int | None,
        frames: _Frames,
    ) -> None:
        there, here = await asyncio.open_connection(HOST, self.upstream, limit=self._piece)
        sent = len(self.sent)
        self.sent.append(0)
        try:
            up = asyncio.create_task(self._up(reader, here, opened))
            try:
                while frames.left != 0 and (most is None or self.sent[sent] < most):
                    piece = await there.read(self._piece if most is None else most - self.sent[sent])
                    piece = frames.of(piece)
                    await self._through(piece, opened, DOWN)
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
                    self.sent[sent] += len(piece)
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)
        finally:
            here.transport.abort()
            if not writer.transport.is_closing():
                # What was written before still arrives: a cut that loses bytes would be another one.
                writer.close()
                await writer.wait_closed()

    async def _up(
        self, reader: asyncio.StreamReader, here: asyncio.StreamWriter, opened: asyncio.Event
    ) -> None:
        try:
            while piece := await reader.read(self._piece):
                if piece.startswith((b"POST ", b"GET ")):
                    self.requests.append(piece.partition(b"\r\n\r\n")[0])
                await self._through(piece, opened, UP)
                here.write(piece)
                await here.drain()
        except ConnectionError:
            pass
        # That it has left comes as late as what it said.
        await opened.wait()
        if not here.transport.is_closing():
            here.write_eof()

    async def _through(self, piece: bytes, opened: asyncio.Event, way: int) -> None:
        if self.bytes_a_second:
            async with self._wires[way]:
                await asyncio.sleep(len(piece) / self.bytes_a_second)
        await opened.wait()


def _whose(who: Who, connections: set[_Connection]) -> list[_Connection]:
    """Those of them that are that one's."""
    if not isinstance(who, int):
        return [each for each in connections if who in (None, each.host)]
    try:
        # Costly: all sockets of the machine are looked through.
        ports = {each.laddr.port for each in psutil.Process(who).net_connections("tcp")}
    except psutil.NoSuchProcess:
        return []
    return [each for each in connections if each.port in ports]
