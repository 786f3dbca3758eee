"""Waiting for a named condition: the tests' only way to wait."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Between two looks. It bounds how much a test may be late, not what it waits for.
LOOK_SECONDS = 0.01


async def wait_until(condition: Callable[[], T | Awaitable[T]], what: str, seconds: float = 20) -> T:
    """Return the condition's first true value.

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
            return value  # type: ignore[return-value]
        if loop.time() > end:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(LOOK_SECONDS)
