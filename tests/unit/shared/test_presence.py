"""A process's sign of life."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.presence import Presence

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_it_ends_at_once_wherever_it_is_told_to(place: Place) -> None:
    """A cancellation is never swallowed, or a process that shuts down would hang: tried at every step of it."""
    broker = place.connect()
    for steps in range(150):
        presence = Presence(broker.primary, keys.WORKERS, "host-1-abc", dict, lambda: None)
        metrics.events_appended.n += 1
        showing = asyncio.create_task(presence.show())
        for _ in range(steps):
            await asyncio.sleep(0)
        showing.cancel()
        await asyncio.wait([showing], timeout=10)
        assert showing.done(), f"still there after {steps} steps"
        await presence.end()
    assert not await broker.primary.exists(keys.WORKERS)
