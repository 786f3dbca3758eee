"""One owner with more turns than there are slots, and another one who just says hello."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.admin.test_limits import ask, limited
from tests.support.client import text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.stack import Stack


async def test_slow_turns_of_one_owner_leave_slots_to_another(stack: Stack) -> None:
    """Eve has twice as many slow turns as there are slots: Alice's turns run while all of Eve's still do."""
    worker = await stack.worker(max_jobs=20)
    front_end = await stack.front_end()
    (eve,) = await limited(stack, front_end)
    asking = [asyncio.create_task(ask(eve, f"s{number}", "/slow 60")) for number in range(40)]

    async def waiting() -> bool:
        return bool(await stack.broker.primary.zcard("ts:queue") == 24)

    try:
        await wait_until(waiting, "eve's share of the slots to be taken")
        await wait_until(lambda: len(worker.leases) == 16, "these turns to run")
        for number in range(3):
            async with asyncio.timeout(10):
                assert text_of(await front_end.turn(f"s{number}", "hello")) == "You said: hello"
        await wait_until(lambda: len(worker.leases) == 16, "only eve's turns to be left")
    finally:
        await asyncio.gather(
            *(eve.http.post("/liteAgent/v1/stop", params={"sessionId": f"s{number}"}) for number in range(40))
        )
        await asyncio.gather(*asking)
