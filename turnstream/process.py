"""A process's life: it runs until a signal, ends at once at the second one, and nothing that is left keeps it alive."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from turnstream.shared.agents import places
from turnstream.shared.errors import TurnstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = structlog.get_logger(__name__)

# How long what is left may take to end, once the program has come to its end. Whatever could be waited for has been.
LAST_SECONDS = 2.0


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run the program; what it leaves behind is cancelled, named if that does not end it, and ended with the process."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    failure: BaseException | None = None
    try:
        runner.run(program)
    except BaseException as error:
        failure = error
    left = runner.run(_end_tasks())
    for task in left:
        log.error("process.left", task=task.get_name(), at=places.of_task(task))
    if left:
        _end_now(_code(failure))
    # Threads that hang are found out only by waiting for them, which closing and Python's own end both do.
    watch = threading.Timer(LAST_SECONDS, _end_by_threads, [failure])
    watch.daemon = True
    watch.start()
    runner.close()
    # Python's last collection would look at all that was ever imported: up to a second, for nothing.
    gc.freeze()
    if failure is not None:
        raise failure


def on_signals(stop: Callable[[], None], at_once: Callable[[], None] = lambda: None) -> None:
    """At SIGTERM or SIGINT call ``stop``; the second one calls ``at_once`` and ends the process at once."""
    loop = asyncio.get_running_loop()
    heard = False

    def hear(number: signal.Signals) -> None:
        nonlocal heard
        if heard:
            log.warning("process.ended_at_once", signal=number.name)
            at_once()
            _end_now(128 + number)
        heard = True
        log.info("process.stopping", signal=number.name, todo="the same again ends it at once")
        stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, hear, each)


async def _end_tasks() -> set[asyncio.Task[Any]]:
    """Cancel every task; those that do not end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return set()
    _, left = await asyncio.wait(tasks, timeout=LAST_SECONDS)
    return left


def _end_by_threads(failure: BaseException | None) -> None:
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way to ask
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if not thread.daemon and thread is not threading.main_thread() and frame is not None:
            at = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            log.error("process.left", thread=thread.name, at=[at])
    _end_now(_code(failure))


def _end_now(code: int) -> NoReturn:
    """End the process, whatever runs in it; what was printed and logged is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code(failure: BaseException | None) -> int:
    """The exit code of a process that cannot end by itself; what would have been its last words are said here."""
    if failure is None:
        return 0
    if isinstance(failure, TurnstreamError):
        sys.stderr.write(f"turnstream: {failure.public_text}\n")
        return 2
    log.error("process.failed", exc_info=failure)
    return 1


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
