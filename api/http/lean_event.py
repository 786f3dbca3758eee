"""A lean event: `asyncio.Event` without a queue, which takes 760 bytes, until something waits for it."""

from __future__ import annotations

import asyncio


class LeanEvent:
    """As `asyncio.Event`. A connection has two, and few of them are ever awaited."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Let go on what waits, and what will wait until it is cleared."""
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Have the next wait wait."""
        self._is_set = False

    async def wait(self) -> bool:
        """Wait until it is set; True."""
        if not self._is_set:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if self._waiters is not None and waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True
