"""Followers in turn: what many followers of one owner are shown does not hold up another's few."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Steps in one round of the event loop. A step shows one follower what there is, some 32 KiB at most: fewer, and
# rounds cost more than what is done in them; more, and whoever waits for the loop waits for all of these.
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
            owner = next(iter(self._waiting))
            steps = self._waiting.pop(owner)
            step = steps.popleft()
            if steps:
                # Behind the others.
                self._waiting[owner] = steps
            step()
        self._goes = bool(self._waiting)
        if self._goes:
            asyncio.get_running_loop().call_soon(self._run)
