"""An event loop in which no time passes: for tests that run on the embedded broker alone."""

from __future__ import annotations

import asyncio
import selectors


class _Jump(selectors.DefaultSelector):
    """Never waits: its clock goes on by as much as it was to wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; nothing outside this process is waited for."""
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for somebody else"
            self.now += max(0.0, timeout)
        return ready


class InstantLoop(asyncio.SelectorEventLoop):
    """Runs what is ready; where nothing is, its clock jumps to the next timer.

    So timers fire in the same order in each run, however busy the machine is.
    """

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """The clock of the loop, in seconds."""
        return self._jump.now
