"""An owner's counts are by the broker's clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shared import keys
from shared.api_keys import Limits
from shared.caps import YOUNG_MS, Admitted, Caps, Room
from shared.tasks import operation
from tests.shared.support import Desk, ref
from worker.live_list import LiveList

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Place

ROOM = Room(most=1_000_000, bytes=5_000, ms=60_000)


async def test_a_front_ends_wrong_clock_takes_nothing_out_of_the_count(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was let in a moment ago by the broker's clock is young, though this host's clock is an hour ahead."""
    desk = Desk(real)
    caps = Caps(desk.primary, desk.redis)
    await caps.admit(ref(), operation(), Limits(concurrency=1), ROOM)
    _an_hour_ahead(monkeypatch)
    await caps.recount("o1")
    assert await desk.primary.zcard(keys.owner_turns("o1")) == 1
    ((name, since),) = await desk.primary.zrange(keys.owner_turns("o1"), 0, -1, withscores=True)
    await desk.primary.zadd(keys.owner_turns("o1"), {name: since - YOUNG_MS - 1})
    await caps.recount("o1")
    assert await desk.primary.zcard(keys.owner_turns("o1")) == 0


async def test_a_workers_wrong_clock_takes_no_young_task_off_the_list(
    real: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is listed a moment before it is made stays on the operators' list."""
    desk = Desk(real)
    await desk.launches.note(ref())
    _an_hour_ahead(monkeypatch)
    await LiveList(desk.broker).look()
    assert await desk.primary.zcard(keys.LIVE) == 1


def _an_hour_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    now: Any = time.time
    monkeypatch.setattr("time.time", lambda: now() + 3600)
