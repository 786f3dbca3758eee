"""Followers in turn: what many followers of one owner are shown, and read, does not hold up another's few."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")

# Steps in one round of the event loop. A step shows one follower what there is, some 32 KiB at most: fewer, and
# rounds cost more than what is done in them; more, and all that waits for the loop waits for these.
AT_ONCE = 8


class Rounds:
    """Runs steps a few at a time, owners in turn, and lets the event loop see to everything else in between."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._goes = False

    def add(self, owner: str, step: Callable[[], None]) -> None:
        """Run a step of the owner's after those that it has waiting. It must not raise."""
        self._waiting.setdefault(owner, deque()).append(step)
        if not self._goes:
            self._goes = True
            asyncio.get_running_loop().call_soon(self._run)

    async def turn(self, owner: str) -> None:
        """Wait for a turn, behind what the owner has waiting."""
        came = asyncio.get_running_loop().create_future()
        self.add(owner, lambda: None if came.done() else came.set_result(None))
        await came

    def _run(self) -> None:
        for _ in range(AT_ONCE):
            if not self._waiting:
                break
            _next(self._waiting)()
        self._goes = bool(self._waiting)
        if self._goes:
            asyncio.get_running_loop().call_soon(self._run)


class Places:
    """So many at once; owners in turn, where more want to."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one(self, owner: str) -> AsyncIterator[None]:
        """A place, when there is one for this owner."""
        if self._free:
            self._free -= 1
        else:
            came = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(came)
            try:
                await came
            except asyncio.CancelledError:
                if not came.cancelled():
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        while self._waiting:
            came = _next(self._waiting)
            # Who gave up is passed over.
            if not came.done():
                came.set_result(None)
                return
        self._free += 1


def _next(waiting: dict[str, deque[T]]) -> T:
    """Take what the first owner has waited for longest; the owner stands behind the others then."""
    owner = next(iter(waiting))
    of_owner = waiting.pop(owner)
    first = of_owner.popleft()
    if of_owner:
        waiting[owner] = of_owner
    return first
