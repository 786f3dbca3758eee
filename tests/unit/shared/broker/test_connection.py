"""The connection to the broker: how what is large goes over it."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from typing import TYPE_CHECKING, Any

from turnstream.shared.broker.client import command
from turnstream.shared.broker.connection import open_line

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.broker.connection import Line


async def test_a_large_command_is_sent_whole_without_a_copy(real: Place) -> None:
    """Its bytes are written a few at a time: packing all of them at once would hold up the event loop, and double them."""
    redis = real.connect(real.settings()).sessions
    values = [bytes([letter]) * (16 * 2**20) for letter in b"abc"]
    # Connected before it is measured.
    await command(redis, "PING", large=True)
    tracemalloc.start()
    try:
        setting = [
            command(redis, "SET", f"k{n}", value, "PX", 60_000, large=True) for n, value in enumerate(values)
        ]
        lengths = [command(redis, "STRLEN", f"k{n}", large=True) for n in range(len(values))]
        answers = await asyncio.gather(*setting, *lengths)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answers == [True] * 3 + [16 * 2**20] * 3
    assert most < 4 * 2**20
    assert await command(redis, "GETRANGE", "k1", -3, -1, large=True) == b"bbb"


async def test_commands_sent_together_leave_in_one_write(real: Place) -> None:
    """A write for each costs a system call here, and a wakeup and a read at the broker: half of what a token costs."""
    redis = real.connect(real.settings()).sessions

    async def reads() -> int:
        return int((await command(redis, "INFO", "stats"))["total_reads_processed"])

    before = await reads()
    await asyncio.gather(*(command(redis, "SET", f"k{n}", "v", "PX", 60_000) for n in range(200)))
    assert await reads() - before < 20


class _Cancelling:
    """A factory of tasks that cancels the one that ``opening`` is as so many of what it waits for is done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.made = 0
        self.opening: asyncio.Task[Line]

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if asyncio.current_task() is self.opening:
            self.made += 1
            if self.made == self.number:
                task.add_done_callback(lambda _: self.opening.cancel())
        return task


async def test_who_is_cancelled_while_connecting_is_cancelled(real: Place) -> None:
    """Also as something that the library waits for is done: `asyncio.wait_for` of Python 3.11 forgets it in that moment."""
    pool = real.connect(real.settings(**real.credentials("api"))).sessions.connection_pool
    loop = asyncio.get_running_loop()
    for number in itertools.count(1):
        tasks = _Cancelling(number)
        tasks.opening = asyncio.create_task(open_line(pool, lambda _: None, lambda _: None))
        loop.set_task_factory(tasks)
        try:
            await asyncio.wait([tasks.opening])
        finally:
            loop.set_task_factory(None)
        if tasks.made < number:
            tasks.opening.result().close()
            assert tasks.made, "the library waits otherwise: is this still needed?"
            return
        assert tasks.opening.cancelled(), f"the {number}th part of connecting was done"
