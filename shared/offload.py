"""Work that would hold up the event loop: in threads of its own, for each owner one at a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# The interpreter runs one at a time, and the event loop waits a little for each: more would gain nothing but delay.
# With two, an owner's long work does not hold up another's.
THREADS = 2

# To read or write fewer bytes takes less than to have a thread do it.
LARGE_BYTES = 256 * 1024


class ThreadOffload:
    """Runs functions beside the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="offload")
        # A lock is kept for as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, owner: str, work: Callable[..., T], *given: object) -> T:
        """What ``work(*given)`` returns or raises, once the owner's earlier work is done."""
        async with self._locks.setdefault(owner, asyncio.Lock()):
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))

    async def run_large(self, owner: str, size: int, work: Callable[..., T], *given: object) -> T:
        """As `run`; on the event loop when ``size`` is at most `LARGE_BYTES`, which takes less than a thread does."""
        return await self.run(owner, work, *given) if size > LARGE_BYTES else work(*given)

    def close(self) -> None:
        """Take no more work; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
