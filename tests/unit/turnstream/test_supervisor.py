"""The supervisor's sum of what processes counted, some of which end while it asks."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.waiting import wait_until
from turnstream.shared.settings import load
from turnstream.shared.siblings import Question, Siblings
from turnstream.supervisor import Child, Supervisor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

QUESTION = Question.WORKER_METRICS
NAME = "turnstream_turns_ended_total"


class Started:
    """A process of the supervisor, as far as it is asked; it ends when the test says so."""

    def __init__(self, supervisor: Supervisor, answer: Callable[[], Awaitable[str]]) -> None:
        ours, theirs = socket.socketpair()
        self.ended = asyncio.Event()
        process: Any = SimpleNamespace(pid=1, wait=self._wait)
        self.child = Child(process, ours)
        self.child.begin(supervisor._collect)
        supervisor._children.add(self.child)
        self.siblings = Siblings(theirs)
        self.siblings.answer(QUESTION, answer)

    async def _wait(self) -> int:
        await self.ended.wait()
        return -9

    async def end(self) -> None:
        """End it, as a kill does."""
        self.ended.set()
        self.child.reading.cancel()
        await asyncio.wait([self.child.reading])


async def _one() -> str:
    return f"# TYPE {NAME} counter\n{NAME} 1.0\n"


async def test_a_process_that_ends_while_others_are_asked_is_counted_once() -> None:
    """It had answered, and its count was added to those of the ended ones before the last answer came."""
    supervisor = Supervisor(load(redis_url="redis://127.0.0.1/0"), "worker", 3)
    go = asyncio.Event()

    async def late() -> str:
        await go.wait()
        return await _one()

    slow, short, asker = (Started(supervisor, answer) for answer in (late, _one, _one))
    async with AsyncExitStack() as stack:
        for each in (slow, short, asker):
            await stack.enter_async_context(each.siblings.linked(lambda: None))
            await wait_until(lambda each=each: each.child.linked, "the link")  # type: ignore[misc]
        asking = asyncio.create_task(asker.siblings.ask(QUESTION))
        await wait_until(lambda: QUESTION in short.child.counted, "the answer of one")
        await short.end()
        await supervisor._has_ended(short.child)
        go.set()
        answers = await asking
    found = [line for text in answers.texts for line in text.splitlines() if line.startswith(NAME)]
    assert found == [f"{NAME} 1.0"] * 3
    for each in (slow, asker):
        await each.end()
