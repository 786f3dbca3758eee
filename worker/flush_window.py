"""How long text waits for more of it: not at all, unless this process is busy: the thread that runs its event loop."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

# For how long what was measured is taken for the present.
MEASURED_SECONDS = 0.1

# Shares of a core: up to the first a process is idle enough to send each piece of text by itself; from the second on
# text waits as long as it may. Well below a whole core: what a frame costs here it costs the broker and the front
# ends again, and those are shared with other workers.
IDLE_SHARE = 0.1
BUSY_SHARE = 0.25


class FlushWindow:
    """Of one process: the least time between two appends of a turn's text, by the CPU time it takes of late."""

    def __init__(self, longest: float) -> None:
        """``longest``: seconds that text may wait when the process is busy."""
        self._longest = longest
        self._seconds = 0.0
        self._measured = time.monotonic()
        self._wanted = cpu_wanted()

    def seconds(self) -> float:
        """The present window: from 0 when idle to the longest when busy."""
        now = time.monotonic()
        passed = now - self._measured
        if passed >= MEASURED_SECONDS:
            wanted = cpu_wanted()
            share = (wanted - self._wanted) / passed
            self._measured, self._wanted = now, wanted
            self._seconds = self._longest * min(
                1.0, max(0.0, (share - IDLE_SHARE) / (BUSY_SHARE - IDLE_SHARE))
            )
        return self._seconds


def cpu_wanted() -> float:
    """Seconds for which this thread has run, or was ready to and had no core; where a system does not count that, has run."""
    with suppress(OSError, ValueError):
        # Of Linux, since 2.6: nanoseconds on a core, nanoseconds in a queue for one, and how often.
        on_core, in_queue, _ = map(int, Path("/proc/thread-self/schedstat").read_bytes().split())
        # A kernel that was built or started without these statistics has the file, with zeros.
        if on_core:
            return (on_core + in_queue) / 1e9
    return time.thread_time()
