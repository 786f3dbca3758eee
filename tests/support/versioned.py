"""Two versions of one agent: each asks its client something, or hangs first, and says which one it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from turnstream import ClientCall, Turn, agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@agent
async def first(turn: Turn) -> AsyncIterator[Any]:
    """The old one."""
    async for each in _answer(turn, "first"):
        yield each


@agent
async def second(turn: Turn) -> AsyncIterator[Any]:
    """The new one."""
    async for each in _answer(turn, "second"):
        yield each


async def _answer(turn: Turn, name: str) -> AsyncIterator[Any]:
    if turn.text == "hang" and turn.attempt == 1:
        yield "I begin. "
        await asyncio.Event().wait()
    if turn.text == "ask" and "where" not in turn.results:
        yield ClientCall("where")
    else:
        yield f"{name} heard {turn.results.get('where')}"
