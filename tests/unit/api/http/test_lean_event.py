"""A lean event: what waits goes on when it is set, and an event that nothing waits for is small."""

from __future__ import annotations

import asyncio
import sys

from tests.support.waiting import wait_until
from turnstream.api.http.lean_event import LeanEvent


async def test_what_waits_goes_on_when_it_is_set() -> None:
    """All of it, also if it is cleared at once; what comes later waits for the next time."""
    event = LeanEvent()
    waiting = [asyncio.create_task(event.wait()) for _ in range(3)]
    await wait_until(lambda: len(event._waiters or ()) == 3, "three to wait")
    assert not event.is_set()
    event.set()
    event.clear()
    assert await asyncio.gather(*waiting) == [True, True, True]
    later = asyncio.create_task(event.wait())
    await wait_until(lambda: len(event._waiters or ()) == 1, "another one to wait")
    assert not later.done()
    event.set()
    assert await later
    assert event.is_set()
    assert await event.wait()


async def test_who_gives_up_takes_nothing_from_the_others() -> None:
    """One that is cancelled leaves; the others are woken."""
    event = LeanEvent()
    leaves, stays = (asyncio.create_task(event.wait()) for _ in range(2))
    await wait_until(lambda: len(event._waiters or ()) == 2, "both to wait")
    leaves.cancel()
    await asyncio.wait([leaves])
    event.set()
    assert await stays
    assert leaves.cancelled()


async def test_it_is_small_unless_something_waits() -> None:
    """Each of ten thousand connections has two."""
    event = LeanEvent(is_set=True)
    await event.wait()
    assert sys.getsizeof(event) + sum(sys.getsizeof(each) for each in (event._waiters,)) < 100
