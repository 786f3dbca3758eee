"""Threads for tools that are plain functions: bounded, and none is needed to let the worker go on."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)

# Calls at once in one worker. Fewer, and tools that wait for a database wait for each other; more, and
# a process of one core is busy with switching between them.
MOST = 128

# Threads that hang, of one worker. A thread cannot be ended, and each costs memory: over this many the
# worker begins no further ones, and models are told.
MOST_LOST = 512


class NoThread(RuntimeError):  # noqa: N818 - it says what there is not
    """So many tools hang that no further one is begun."""


class ToolThreads(Executor):
    """Runs functions in threads.

    Duties:
        1. run ``most`` at once; a further call waits for a place, and its caller's deadline runs meanwhile;
        2. give a place away when its caller gave up (deadline, stop): the thread is lost, and runs to its
           end unheard;
        3. refuse calls while ``most_lost`` threads hang;
        4. never keep the process from ending.
    """

    def __init__(self, most: int = MOST, most_lost: int = MOST_LOST) -> None:
        self._most = most
        self._most_lost = most_lost
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = 0
        self.lost = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function; called by the event loop.

        Raises:
            NoThread: too many hang.
        """
        if self.lost >= self._most_lost:
            raise NoThread(f"{self.lost} tools hang")
        call = _Call(self, partial(fn, *args, **kwargs))
        with self._lock:
            self._waiting.append(call)
        self._fill()
        return call

    def give_up(self, call: _Call) -> None:
        """Nobody waits for the call any more: its place is for the next one; called by the event loop."""
        with self._lock:
            if call.lost or call.done():
                return
            call.lost = True
            self.lost += 1
            self._running -= 1
        log.warning("tool.thread_lost", lost=self.lost)
        # Not now: calls whose callers give up at the same moment must not be begun first.
        asyncio.get_running_loop().call_soon(self._fill)

    def _fill(self) -> None:
        """Give free places to those that wait."""
        while True:
            with self._lock:
                if not self._waiting or self._running >= self._most:
                    return
                call = self._waiting.popleft()
                if call.cancelled():
                    continue
                self._running += 1
            # A thread a call: begun quickly, and a daemon, which unlike a pool's is not waited for at exit.
            threading.Thread(target=self._run, args=(call,), name="tool", daemon=True).start()

    def _run(self, call: _Call) -> None:
        call.run()
        with self._lock:
            if call.lost:
                self.lost -= 1
                return
            self._running -= 1
        self._fill()


THREADS = ToolThreads()


class _Call(Future[Any]):
    """One call, which tells when its caller gave up."""

    def __init__(self, threads: ToolThreads, function: Callable[[], Any]) -> None:
        super().__init__()
        self.lost = False
        self._threads = threads
        self._function = function

    def run(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._function()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        if super().cancel():
            return True
        self._threads.give_up(self)
        return False
