"""What MCP servers write to their standard error: each line is a log line of ours, in bounds."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from typing import TextIO

log = structlog.get_logger(__name__)

# What is shown of a line, in bytes, and how many lines of a server are shown in a second: a traceback fits.
LINE_BYTES = 2000
LINES_A_SECOND = 100

# The server's process has ended when this is waited for; what it wrote last is read in no time, unless a process that it
# left behind has its standard error too.
LAST_SECONDS = 0.5


class Said(asyncio.Protocol):
    """One server's standard error.

    Duties:
        1. give the server a pipe to write to, whose other end the loop reads for as long as anybody may write;
        2. log ``mcp.said`` for each line, without what is over `LINE_BYTES` (``cut`` tells how many bytes);
        3. read all, however much comes, so that the server never waits: of more than `LINES_A_SECOND`, log only how
           many (``mcp.said_more``).
    """

    def __init__(self, server: str) -> None:
        """Nothing is opened yet. ``server`` is the label that its lines have."""
        self._server = server
        self._writing: TextIO | None = None
        self._reading: asyncio.ReadTransport | None = None
        self._ended = asyncio.Event()
        self._line = bytearray()
        self._cut = 0
        self._told = 0
        self._dropped = 0
        self._second: asyncio.TimerHandle | None = None

    async def open(self) -> TextIO:
        """The file that the server is to have as its standard error.

        Raises:
            OSError: the process has too many files open.
        """
        ours, theirs = os.pipe()
        self._writing = os.fdopen(theirs, "w")
        reading = os.fdopen(ours, "rb", buffering=0)
        try:
            self._reading, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, reading)
        except BaseException:
            reading.close()
            raise
        return self._writing

    def handed_over(self) -> None:
        """The server has its end, or never will: with ours closed, its end is the pipe's end."""
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    async def close(self) -> None:
        """Read what the server wrote last, and let go of the pipe; to be called when its process has ended."""
        self.handed_over()
        if self._reading is None:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self._reading.close()

    # ── as the loop's protocol ──

    def data_received(self, data: bytes) -> None:
        """Log the lines that end in it, as far as they are to be shown."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            if self._told >= LINES_A_SECOND:
                # All at once: there may be tens of thousands.
                self._dropped += data.count(b"\n", begin)
                begin = data.rfind(b"\n") + 1
                self._line.clear()
                self._cut = 0
                break
            self._take(data[begin:end])
            self._tell()
            begin = end + 1
        self._take(data[begin:])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a protocol's signature
        """Log what no end of line followed, and what was not told yet."""
        if self._line:
            self._tell()
        if self._second is not None:
            self._second.cancel()
            self._begin_second()
        self._ended.set()

    def _take(self, piece: bytes) -> None:
        room = LINE_BYTES - len(self._line)
        self._line += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _tell(self) -> None:
        """Log the line that is there, and begin the next one."""
        text, cut = self._line.decode(errors="replace").rstrip(), self._cut
        self._line.clear()
        self._cut = 0
        if self._second is None:
            self._second = asyncio.get_running_loop().call_later(1.0, self._begin_second)
        self._told += 1
        if text:
            log.info("mcp.said", server=self._server, text=text, **({"cut": cut} if cut else {}))

    def _begin_second(self) -> None:
        if self._dropped:
            log.info("mcp.said_more", server=self._server, lines=self._dropped)
        self._second = None
        self._told = self._dropped = 0
