"""Where code stands: the places in it that an operator, or an agent's author, looks for."""

from __future__ import annotations

import gc
import inspect
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator
    from types import FrameType

MOST = 5

# The folder of the installed package; in a checkout, the folders that its links lead to.
_PACKAGE = Path(__file__).parents[2]

# Code that no agent's author wrote: ours, the libraries', Python's.
NOT_THEIRS = (
    *{
        f"{folder}/"
        for ours in ("", "api", "shared", "worker")
        for folder in (_PACKAGE / ours, (_PACKAGE / ours).resolve())
    },
    sysconfig.get_path("purelib"),
    sysconfig.get_path("stdlib"),
)


def chosen(places: Iterable[tuple[str, int | None, str]]) -> list[str]:
    """The innermost of these places (file, line, function), and those in the code that agents' authors wrote."""
    all_of_them = list(places)
    last = len(all_of_them) - 1
    return [
        f"{file}:{line} {function}"
        for at, (file, line, function) in enumerate(all_of_them)
        if at == last or not file.startswith(NOT_THEIRS)
    ][-MOST:]


def of_task(task: asyncio.Task[Any]) -> list[str]:
    """Where a task waits that has not ended, from the outermost call to the innermost."""
    return chosen((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in _frames(task))


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames of everything that the task awaits; the task itself tells only of the outermost."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = next((found for name in _FRAMES if (found := getattr(awaited, name, None)) is not None), None)
        if frame is not None:
            yield frame
        following = next(
            (found for name in _AWAITED if (found := getattr(awaited, name, None)) is not None), None
        )
        if following is None and frame is None:
            # A step of an async generator, which does not tell of which.
            following = next((each for each in gc.get_referents(awaited) if inspect.isasyncgen(each)), None)
        awaited = following


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")
