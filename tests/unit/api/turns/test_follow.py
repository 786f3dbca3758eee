"""Following a session: admission and the count that it is compared with are one step."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from turnstream.api.access.auth import Caller
from turnstream.api.turns.follow import following
from turnstream.shared.agents import config
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

API = Path(__file__).parents[4] / "api"
CALLER = Caller("acme", config.load(None)[config.DEMO])


async def test_an_admitted_follower_follows_before_anything_else_runs() -> None:
    """Else a second one of the same owner is admitted against a count without the first."""
    done: list[str] = []

    async def admit_follower(_: Caller) -> None:
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(done.append, "another request")

    @contextmanager
    def hub_following(_: SessionKeys, *, operator: bool) -> Iterator[str]:
        done.append(f"follows, operator={operator}")
        yield "feed"

    services: Any = SimpleNamespace(
        limiter=SimpleNamespace(admit_follower=admit_follower),
        hub=SimpleNamespace(following=hub_following),
    )
    async with following(services, SessionKeys("acme", "s1"), CALLER) as feed:
        await asyncio.sleep(0)
        assert cast("Any", feed) == "feed"
    assert done == ["follows, operator=False", "another request"]


def test_nothing_else_admits_followers_or_follows() -> None:
    """The rule holds as long as there is one place that has to keep it."""
    called = re.compile(r"\.(admit_follower|hub\.following|hub\.follow)\(")
    places = {
        str(path.relative_to(API)) for path in API.rglob("*.py") if called.search(path.read_text("utf-8"))
    }
    assert places == {"turns/follow.py"}
