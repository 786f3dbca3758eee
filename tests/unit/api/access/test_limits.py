"""Followers who come together are let in together; limits as clients see them are in tests/behaviour."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from turnstream.api.access.limits import Limiter
from turnstream.shared.errors import TooMany
from turnstream.shared.session.owner_limits import OwnerLimits
from turnstream.shared.session.queue import LaunchQueue

if TYPE_CHECKING:
    from tests.conftest import Place


async def test_who_leaves_while_waiting_takes_no_place(place: Place) -> None:
    """Of clients that come at once some have gone when they are counted: the others have the room."""
    broker, settings = place.connect(), place.settings()
    caps = OwnerLimits(broker.primary, broker.sessions)
    hub: Any = SimpleNamespace(followers_of=lambda _: 0)
    limiter = Limiter(settings, caps, LaunchQueue(broker.primary), hub, [], "f1")
    caller: Any = SimpleNamespace(owner="o1", limits=SimpleNamespace(followers=2))
    async with limiter._telling("o1"):
        came = [asyncio.create_task(limiter.admit_follower(caller)) for _ in range(5)]
        await asyncio.sleep(0)
        for each in came[:2]:
            each.cancel()
        await asyncio.gather(*came[:2], return_exceptions=True)
    let_in = await asyncio.gather(*came[2:], return_exceptions=True)
    assert let_in[:2] == [None, None]
    assert isinstance(let_in[2], TooMany)
