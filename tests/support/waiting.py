"""Waiting for a named condition: the tests' only way to wait."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Between two looks. It bounds how much a test may be late, not what it waits for.
LOOK_SECONDS = 0.01


async def wait_until(condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    """Return the first true value of the condition, a function or a coroutine function.

    Raises:
        AssertionError: it never came; the text names ``what`` was waited for.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() > end:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(LOOK_SECONDS)


def block_until(condition: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    """The same where no event loop runs.

    Raises:
        AssertionError: as `wait_until`.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(LOOK_SECONDS)
    return value
