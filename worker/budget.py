"""The budget of bytes that a worker's turns may hold together: one heavy tenant must not cost its neighbours the process.

A turn's bytes are its request, the memory it is given, and what it called and checkpointed before. Parsed, they are
several times as many.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections import deque
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

log = structlog.get_logger(__name__)

# A turn of no more bytes is not counted: all slots full of such turns are a small part of a process.
LIGHT = 256 * 1024

# Bytes of ended turns after which their memory is collected: full collections are rare otherwise (turnstream/roles.py),
# and what an agent library leaves behind is cyclic.
COLLECT_AFTER = 4 * 2**20

# How long after a turn's end its task and frames are gone, too.
SETTLE_SECONDS = 0.1


# Turns that wait for room in one worker. Others are launched again later, here or elsewhere.
MOST_WAITING = 100


class NoRoom(Exception):  # noqa: N818 - it says what there is not
    """The worker drains, or too many turns wait for room already."""


class Budget:
    """What heavy turns hold of a worker's memory.

    Duties:
        1. let turns wait, first come first served, until they fit; one that is larger than all of it runs alone;
        2. collect what heavy turns leave behind.
    """

    def __init__(self, limit: int, on_wait: Callable[[], None] = lambda: None) -> None:
        """``on_wait`` is called when a turn begins to wait: its slot is free."""
        self._limit = limit
        self._on_wait = on_wait
        self._taken = 0
        self._holders = 0
        self._ended = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.closed = False

    @property
    def waiting(self) -> int:
        """Turns that wait for room; they need no slot meanwhile."""
        return len(self._queue)

    @property
    def taken(self) -> int:
        """Bytes of the heavy turns that run."""
        return self._taken

    def share(self) -> Share:
        """A turn's share, empty at first."""
        return Share(self)

    def close(self) -> None:
        """Let nobody wait any more; to be called when the worker drains."""
        self.closed = True
        for _, waits in self._queue:
            if not waits.done():
                waits.set_exception(NoRoom())
        self._queue.clear()

    async def take(self, size: int) -> None:
        """Take so many bytes, when there is room for them.

        Raises:
            NoRoom: the worker drains, or too many wait already.
        """
        if self.closed or len(self._queue) >= MOST_WAITING:
            raise NoRoom
        if self._queue or not self._fits(size):
            waits = asyncio.get_running_loop().create_future()
            self._queue.append((size, waits))
            self._on_wait()
            log.info("budget.full", bytes=size, taken=self._taken, waiting=len(self._queue))
            try:
                await waits
            except asyncio.CancelledError:
                if waits.done() and not waits.cancelled() and waits.exception() is None:
                    self.give(size)
                elif (size, waits) in self._queue:
                    self._queue.remove((size, waits))
                raise
            return
        self._count(size)

    def give(self, size: int) -> None:
        """Give bytes back, to whoever waits for them."""
        self._taken -= size
        self._holders -= 1
        while self._queue and self._fits(self._queue[0][0]):
            following, waits = self._queue.popleft()
            if not waits.done():
                self._count(following)
                waits.set_result(None)
        before, self._ended = self._ended, self._ended + size
        if before < COLLECT_AFTER <= self._ended:
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._collect)

    def _fits(self, size: int) -> bool:
        return not self._holders or self._taken + size <= self._limit

    def _count(self, size: int) -> None:
        self._taken += size
        self._holders += 1

    def _collect(self) -> None:
        self._ended = 0
        gc.collect()
        # The system takes its time, for which the event loop need not wait.
        asyncio.get_running_loop().run_in_executor(None, _give_back)


class Share:
    """What one turn holds of the budget, until the end of a ``with`` block."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = LIGHT

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    async def take(self, size: int) -> None:
        """Hold so many bytes instead of those held so far, when there is room.

        Raises:
            NoRoom: the worker drains, or too many wait already.
        """
        self._drop()
        await self._budget.take(size)
        self.size = size

    def _drop(self) -> None:
        if self.size > LIGHT:
            self.size, size = LIGHT, self.size
            self._budget.give(size)


def _give_back() -> None:
    """Give freed memory back to the system; glibc keeps what large blocks left between small ones."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
