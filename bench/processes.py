"""The bench's own helper processes: each runs one function, told what to do over a pipe."""

from __future__ import annotations

import multiprocessing
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

# A helper that says nothing for so long will not say anything any more.
ANSWER_SECONDS = 120

_SPAWN = multiprocessing.get_context("spawn")


class HelperFailedError(Exception):
    """A helper raised; the text is its traceback."""


class Helper:
    """A process that answers questions, one at a time."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_run, args=(serve, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        if pid is None:
            raise RuntimeError("the helper was not started")
        return pid

    def tell(self, *question: Any) -> None:
        """Ask, without waiting for the answer: `answer` does."""
        self._pipe.send(question)

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        """Wait for the answer.

        Raises:
            HelperFailedError: it failed, or is silent.
        """
        if not self._pipe.poll(seconds):
            raise HelperFailedError(f"no answer within {seconds} s")
        good, value = self._pipe.recv()
        if not good:
            raise HelperFailedError(value)
        return value

    def ask(self, *question: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            HelperFailedError: as `answer`.
        """
        self.tell(*question)
        return self.answer()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join(10)


@contextmanager
def helper(serve: Callable[..., None], *arguments: Any) -> Iterator[Helper]:
    """A helper for the length of a block; ``serve(pipe, *arguments)`` runs in the new process."""
    started = Helper(serve, *arguments)
    try:
        yield started
    finally:
        started.close()


def _run(serve: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        serve(pipe, *arguments)
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception:
        pipe.send((False, traceback.format_exc()))
