"""Who comes together is let in together; limits as clients see them are in tests/admin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until
from turnstream.api.access.limits import SLACK_SECONDS, Limiter
from turnstream.shared.api_keys import Limits
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import BrokerAway, TooMany
from turnstream.shared.session.owner_limits import OwnerLimits
from turnstream.shared.session.queue import LaunchQueue

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.session.owner_limits import Admitted, ManyBytes, ManyTurns, TooFast


async def test_who_leaves_while_waiting_takes_no_place(place: Place) -> None:
    """Of clients that come at once some have gone when they are counted: the others have the room."""
    broker, settings = place.connect(), place.settings()
    caps = OwnerLimits(broker.primary, broker.sessions)
    hub: Any = SimpleNamespace(followers_of=lambda _: 0)
    limiter = Limiter(settings, caps, LaunchQueue(broker.primary), hub, [], "f1")
    caller: Any = SimpleNamespace(owner="o1", limits=SimpleNamespace(followers=2))
    async with limiter._telling("o1"):
        came = [asyncio.create_task(limiter.admit_follower(caller)) for _ in range(5)]
        await wait_until(lambda: len(limiter._coming.get(("o1", 2), ())) == len(came), "all to wait")
        for each in came[:2]:
            each.cancel()
        await asyncio.gather(*came[:2], return_exceptions=True)
    let_in = await asyncio.gather(*came[2:], return_exceptions=True)
    assert let_in[:2] == [None, None]
    assert isinstance(let_in[2], TooMany)


class Slow(OwnerLimits):
    """Lets in who knows that some turns do not count when a test says so: the broker takes no writes until then."""

    def __init__(self, *brokers: Any) -> None:
        super().__init__(*brokers)
        self.asked: list[asyncio.Event] = []

    async def admit(
        self, *given: Any, slack: int = 0, **more: Any
    ) -> Admitted | ManyTurns | TooFast | ManyBytes:
        """Count the submit of a turn."""
        if slack:
            may = asyncio.Event()
            self.asked.append(may)
            await may.wait()
        return await super().admit(*given, slack=slack, **more)


async def test_who_waits_for_long_is_not_refused_for_turns_that_wait(place: Place) -> None:
    """Of three that come at once one asks which turns count, and then another for both others; what it heard is old by the time it is let in."""
    broker, settings = place.connect(), place.settings()
    caps = Slow(broker.primary, broker.sessions)
    memory: Any = SimpleNamespace(most=0, servers=1, almost_full=False)
    hub: Any = SimpleNamespace()
    limiter = Limiter(settings, caps, LaunchQueue(broker.primary), hub, [memory], "f1")
    caller: Any = SimpleNamespace(owner="o1", limits=Limits(concurrency=3))
    for number in range(3):
        ref = TaskRef("o1", f"s{number}", "parked")
        await limiter.admit(ref, str(number), caller, 0)
        key = ref.keys.task(ref.task)
        await command(broker.sessions, "HSET", key, "status", "parked", "submit_op", str(number))
        await command(broker.sessions, "EXPIRE", key, 60)
    came = [
        asyncio.create_task(limiter.admit(TaskRef("o1", f"s{number}", "new"), str(number), caller, 0))
        for number in range(3, 6)
    ]
    await wait_until(lambda: limiter._waiting["o1"] == len(came), "all to have come")
    await wait_until(lambda: len(caps.asked) == 1, "the first to know which turns count")
    caps.asked[0].set()
    await wait_until(lambda: len(caps.asked) == 2, "the second to know")
    late = asyncio.get_running_loop().time() + SLACK_SECONDS
    await wait_until(lambda: asyncio.get_running_loop().time() > late, "that to be old")
    caps.asked[1].set()
    await wait_until(lambda: len(caps.asked) == 3 or came[2].done(), "the third to know")
    caps.asked[-1].set()
    assert all(await asyncio.gather(*came))


class Away(OwnerLimits):
    """Asks the turns in vain once a test says so, or lets nobody in whose turns were asked: a broker is away, or takes no writes."""

    def __init__(self, *brokers: Any, reads: bool) -> None:
        super().__init__(*brokers)
        self.found_out = asyncio.Event()
        self.recounts = 0
        self._reads = reads

    async def recount(self, owner: str) -> int:
        """Ask the owner's turns."""
        self.recounts += 1
        await self.found_out.wait()
        if not self._reads:
            raise BrokerAway
        return 1

    async def admit(
        self, *given: Any, slack: int = 0, **more: Any
    ) -> Admitted | ManyTurns | TooFast | ManyBytes:
        """Count the submit of a turn."""
        if slack:
            raise BrokerAway
        return await super().admit(*given, slack=slack, **more)


@pytest.mark.parametrize("reads", [False, True])
async def test_who_wait_find_the_broker_away_together(place: Place, reads: bool) -> None:
    """The first finds it out after some seconds; the others, who came meanwhile, do not each wait for as long again."""
    broker, settings = place.connect(), place.settings()
    caps = Away(broker.primary, broker.sessions, reads=reads)
    memory: Any = SimpleNamespace(most=0, servers=1, almost_full=False)
    hub: Any = SimpleNamespace()
    limiter = Limiter(settings, caps, LaunchQueue(broker.primary), hub, [memory], "f1")
    caller: Any = SimpleNamespace(owner="o1", limits=Limits(concurrency=1))

    async def admit(number: int) -> None:
        await limiter.admit(TaskRef("o1", f"s{number}", "new"), str(number), caller, 0)

    await admit(0)
    first = asyncio.create_task(admit(1))
    await wait_until(lambda: caps.recounts == 1, "the first to ask")
    others = [asyncio.create_task(admit(number)) for number in range(2, 6)]
    await wait_until(lambda: limiter._waiting["o1"] == 5, "the others to have come")
    caps.found_out.set()
    failures = await asyncio.gather(first, *others, return_exceptions=True)
    assert {type(each) for each in failures} == {BrokerAway}
    # The second asks for all who came after the first had asked.
    assert caps.recounts == 2
