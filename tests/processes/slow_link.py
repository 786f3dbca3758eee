"""A link to the broker of so many bytes a second, for all its connections together."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

PIECE = 32 * 1024


class SlowLink:
    """Passes bytes on in pieces, each in its time; connections take turns."""

    def __init__(self, port: int, bytes_a_second: float) -> None:
        self._to = port
        self._rate = bytes_a_second
        # One for each direction.
        self._wires = (asyncio.Lock(), asyncio.Lock())
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        ours = socket.create_server(("127.0.0.1", 0))
        # A narrow link is no store: what is not through waits on the other side.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        self._server = await asyncio.start_server(self._connected, sock=ours, limit=PIECE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._to, limit=PIECE)
        for wire, source, target in ((0, reader, to_there), (1, there, writer)):
            task = asyncio.create_task(self._carry(self._wires[wire], source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, wire: asyncio.Lock, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        try:
            while piece := await source.read(PIECE):
                async with wire:
                    await asyncio.sleep(len(piece) / self._rate)
                target.write(piece)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.transport.abort()
