"""A proxy between client and front end that cuts connections where a test says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class CuttingProxy:
    """Forwards bytes to one front end, or to another when the test says so.

    Attributes:
        port: where it listens.
        upstream: the front end's port; for new connections.
        cuts: for each new connection, after how many bytes of the answer it is cut; when they run out,
            or with None, it is not.
        sent: bytes of the answer that each connection let through.
        requests: the head of each request.
    """

    def __init__(self, upstream: int) -> None:
        self.port = 0
        self.upstream = upstream
        self.cuts: Iterator[int | None] = iter(())
        self.sent: list[int] = []
        self.requests: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """Cut everything, listen no more."""
        if self._server is not None:
            self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        """Cut the connections that are open."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer, next(self.cuts, None))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None
    ) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self.upstream)
        sent = len(self.sent)
        self.sent.append(0)
        try:
            up = asyncio.create_task(self._up(reader, here))
            try:
                while most is None or self.sent[sent] < most:
                    piece = await there.read(65536 if most is None else most - self.sent[sent])
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

    async def _up(self, reader: asyncio.StreamReader, here: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if piece.startswith((b"POST ", b"GET ")):
                self.requests.append(piece.partition(b"\r\n\r\n")[0])
            here.write(piece)
            await here.drain()
