"""The connection to the broker: how what is large goes over it."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from tests.conftest import Place


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
