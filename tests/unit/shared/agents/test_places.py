"""Where code stands: the lines of an agent's author, and the innermost place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until
from turnstream.shared.agents.places import MOST, NOT_THEIRS, chosen, of_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def pieces(never: asyncio.Event) -> AsyncIterator[int]:
    """A generator that gives one piece, then waits."""
    yield 1
    await never.wait()


async def author(never: asyncio.Event, got: list[int]) -> None:
    """An agent's code."""
    async for piece in pieces(never):
        got.append(piece)


async def test_a_tasks_whole_chain_is_found() -> None:
    """Through coroutines and async generators, from the outermost call to the innermost."""
    got: list[int] = []
    task = asyncio.create_task(author(asyncio.Event(), got))
    await wait_until(lambda: bool(got), "the generator to give its piece")
    await wait_until(lambda: len(of_task(task)) == 3, "it to wait")
    places = of_task(task)
    assert [place.rpartition(" ")[2] for place in places] == ["author", "pieces", "wait"]
    assert [place.startswith(f"{__file__}:") for place in places] == [True, True, False]
    task.cancel()
    await asyncio.wait([task])


def test_libraries_are_left_out() -> None:
    """All of the author's lines are told, but of the others only the innermost; and not more than some."""
    ours = f"{NOT_THEIRS[-1]}/asyncio/tasks.py"
    assert chosen([(ours, 1, "a"), ("/x/agent.py", 2, "b"), (ours, 3, "c"), (ours, 4, "d")]) == [
        "/x/agent.py:2 b",
        f"{ours}:4 d",
    ]
    assert chosen([("/x/agent.py", line, "f") for line in range(20)])[0] == f"/x/agent.py:{20 - MOST} f"
    assert chosen([]) == []
