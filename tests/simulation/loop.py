"""An event loop with virtual time on which several simulated processes take turns, in an order that a seed decides.

Within a process callbacks run in the order in which they were scheduled, as asyncio promises; between processes
nothing is promised, and the seed decides. Time passes when nothing is ready, and a little with each callback.

A simulated process is a `Process`, known by a context variable: whatever is scheduled in its context belongs to it. One
that is killed runs no further instruction: its callbacks, timers and tasks are put aside, with all that they hold, so
that not even a ``finally`` runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# Virtual seconds that a callback takes.
CALLBACK_SECONDS = 20e-6

# Callbacks that one process runs at most before another may.
MOST_AT_ONCE = 16

_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Process:
    """Callbacks and tasks that live and die together.

    Attributes:
        name: as traces show it.
        began: virtual seconds.
        alive: whether it runs; never again once it does not.
        frozen: whether it stands still; it goes on where it was.
        ahead: seconds that its clock of the day is ahead of the others'.
        context: in which to call what belongs to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ahead = 0.0
        self.began = 0.0
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self.alive = True
        self.frozen = False
        self.ready: deque[asyncio.Handle] = deque()
        # Called when it is killed: its connections.
        self.at_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name


_nobody = Process("nobody")


def current() -> Process:
    """The process that runs; that of the simulation itself where none does."""
    return _process.get(_nobody)


class _Handle(asyncio.Handle):
    """A callback, without what only a loop in debug mode asks for."""

    __slots__ = ()

    def __init__(
        self, callback: Any, args: Any, loop: SimulatedLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """The same, for later."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: SimulatedLoop, context: contextvars.Context | None
    ) -> None:
        self._when = when
        self._scheduled = True
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


# What killed processes had in hand. Nothing of it may be freed: a coroutine that is freed runs its ``finally``.
_graveyard: list[object] = []


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the head of this file."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._rng = rng
        self.outside = Process("outside")
        self._processes = [self.outside]
        self.callbacks = 0
        self._tasks_made = 0
        # Time, number and handle: what is due at one moment is called in the order in which it was scheduled.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = itertools.count()
        self.set_task_factory(self._make_task)
        self.network: Any = None

    # ── processes ──

    def begin(self, name: str, main: Callable[[], Coroutine[Any, Any, T]]) -> tuple[Process, asyncio.Task[T]]:
        """Start a process that runs ``main()``; its task is done when that is, and never once the process was killed."""
        process = Process(name)
        process.began = self.time()
        self._processes.append(process)
        return process, process.context.copy().run(self.create_task, main())

    def call_in(self, process: Process, callback: Callable[..., Any], *args: Any) -> None:
        """Call something in a process, as a signal would."""
        self.call_soon(callback, *args, context=process.context.copy())

    def kill(self, process: Process) -> None:
        """End a process at once; its connections are reset."""
        process.alive = False
        self._processes.remove(process)
        _graveyard.append(list(process.ready))
        process.ready.clear()
        _graveyard.append(
            [task for task in asyncio.all_tasks(self) if getattr(task, "process", None) is process]
        )
        for cut in process.at_death:
            cut()
        process.at_death.clear()

    def end(self, process: Process) -> None:
        """Forget a process that has ended by itself."""
        if process in self._processes:
            self.kill(process)

    # ── what BaseEventLoop leaves to others ──

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    @override
    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timers_made), timer))
        return timer

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_process, self.outside)  # type: ignore[attr-defined]
        (process.ready if process.alive else _graveyard).append(handle)

    def _run_once(self) -> None:
        runnable = [each for each in self._processes if each.ready and not each.frozen]
        if not runnable:
            self._skip_to_next_timer()
            return
        number = self._rng.random
        process = runnable[int(number() * len(runnable))]
        ready = process.ready
        for _ in range(1 + int(number() * min(len(ready), MOST_AT_ONCE))):
            handle: Any = ready.popleft()
            if not handle._cancelled:
                self.callbacks += 1
                self._now += CALLBACK_SECONDS
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    said = {"message": f"Exception in {handle!r}", "exception": error, "handle": handle}
                    self.call_exception_handler(said)
            if not process.alive or process.frozen or not ready:
                break
        self._take_due()

    def _skip_to_next_timer(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if timers:
            self._now = max(self._now, timers[0][0])
            self._take_due()
        elif not self._stopping:  # type: ignore[attr-defined]
            raise RuntimeError("Nothing is left that could happen: everybody waits for something.")

    def _take_due(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                self._enqueue(timer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time comes."""

    def _make_task(self, _: object, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
        self._tasks_made += 1
        return _Task(coroutine, loop=self, number=self._tasks_made, context=context)

    @override
    def create_future(self) -> asyncio.Future[Any]:
        self._tasks_made += 1
        return _Future(loop=self, number=self._tasks_made)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Threads take a while, and nothing else of theirs matters here."""
        outcome = self.create_future()

        def run() -> None:
            if outcome.cancelled():
                return
            try:
                outcome.set_result(func(*args))
            except Exception as error:
                outcome.set_exception(error)

        self.call_later(self._rng.uniform(0, 2e-3), run)
        return outcome

    @override
    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, (host, port))

    @override
    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        return self.network.listen(protocol_factory, sock.getsockname() if sock else (host, port))

    async def shutdown_default_executor(self) -> None:
        """There is none."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """It does not sleep."""


# Sets of these are gone through in the same order in each run: not by where they lie in memory.


class _Task(asyncio.Task[Any]):
    def __init__(self, coroutine: Any, *, loop: SimulatedLoop, number: int, context: Any) -> None:
        self._number = number
        self.began = loop.time()
        self.process = current() if context is None else context.get(_process)
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: SimulatedLoop, number: int) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number
