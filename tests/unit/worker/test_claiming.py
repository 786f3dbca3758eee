"""What claiming costs, and who is claimed: however much runs, and however much waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, ref
from tests.unit.worker.test_arq_worker import Turns, working
from turnstream.shared.session.queue import Job, Slots

if TYPE_CHECKING:
    from tests.conftest import Place

# Commands that are counted by the way, not part of a claim.
_ASIDE = {"info", "config|resetstat", "ping"}


async def _cost_of_a_claim(desk: Desk, task: str) -> Counter[str]:
    """The commands that one launch's claim makes the broker do, its script's own included."""
    await desk.launches.launch(ref(task), 1)
    await desk.primary.config_resetstat()
    assert list(await desk.launches.claim(8)) == [f"o1/s1/{task}:1"]
    stats: dict[str, Any] = await desk.primary.info("commandstats")
    counted = {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}
    return Counter({name: calls for name, calls in counted.items() if name not in _ASIDE})


async def test_a_claim_costs_the_same_however_many_turns_run(real: Place) -> None:
    """With 1,000 turns running on 10 workers of 100 slots, the broker does for a claim what it does with none."""
    desk = Desk(real)
    # The first one of all sends the script whole.
    await _cost_of_a_claim(desk, "first")
    alone = await _cost_of_a_claim(desk, "before")
    turns = Turns(free=False)
    async with AsyncExitStack() as workers:
        for _ in range(10):
            await workers.enter_async_context(working(Desk(real), turns, max_jobs=100))
        for number in range(1_000):
            await desk.launches.launch(ref(f"t{number}"), 1)
        await wait_until(lambda: turns.running == 1_000, "1,000 turns to run", 60)
        assert await desk.launches.depth() == 0
        assert await _cost_of_a_claim(desk, "among") == alone
        assert sum(alone.values()) < 12
        turns.let_go(2_000)


async def test_every_slot_is_used(place: Place) -> None:
    """14 workers of 10 slots run 130 turns at once: there is no ceiling over all workers."""
    desk = Desk(place)
    turns = Turns(free=False)
    async with AsyncExitStack() as workers:
        for _ in range(14):
            await workers.enter_async_context(working(Desk(place), turns, max_jobs=10))
        for number in range(130):
            await desk.launches.launch(ref(f"t{number}"), 1)
        await wait_until(lambda: turns.running == 130, "130 turns to run at once", 60)
        turns.let_go(200)


async def test_a_backlog_of_one_owner_does_not_delay_another(place: Place) -> None:
    """While one owner's 1,000 turns wait and 4 workers are busy with them, another's first is among the next."""
    desk = Desk(place)
    turns = Turns(free=False)
    async with AsyncExitStack() as workers:
        await asyncio.gather(
            *(desk.launches.launch(ref(f"t{number}", owner="many"), 1) for number in range(1_000))
        )
        for _ in range(4):
            await workers.enter_async_context(working(Desk(place), turns, max_jobs=5))
        await wait_until(lambda: turns.running == 20, "every slot to be taken", 60)
        await desk.launches.launch(ref("first", owner="few"), 1)
        for done in range(20, 28):
            turns.gate.release()
            await wait_until(lambda done=done: len(turns.started) == done + 1, "the next turn", 60)  # type: ignore[misc]
        assert str(ref("first", owner="few")) in [text for text, _ in turns.started[20:28]]
        # What waits still is nobody's any more: the workers would run it all.
        await desk.primary.delete("ts:queue", "ts:queue:tags")
        turns.let_go(100)


async def test_an_owner_leaves_slots_to_others(place: Place) -> None:
    """One holds 80 of 100 slots whatever it has waiting; a second one 16 of the others; a third one runs at once, too."""
    desk = Desk(place)
    turns = Turns(free=False)

    async def launched(owner: str, count: int) -> None:
        for number in range(count):
            await desk.launches.launch(ref(f"t{number}", owner=owner), 1)

    async with working(Desk(place), turns, max_jobs=100, owner_share=0.8):
        await launched("eve", 150)
        await wait_until(lambda: turns.running == 80, "the first owner's share to be taken")
        await launched("alice", 30)
        await wait_until(lambda: turns.running == 96, "the second owner's share to be taken")
        await launched("bob", 1)
        await wait_until(lambda: turns.running == 97, "the third owner's turn")
        began = [text for text, _ in turns.started]
        assert Counter(text.split("/")[0] for text in began) == {"eve": 80, "alice": 16, "bob": 1}
        # In the order in which they were launched, whoever was passed over.
        assert began[:80] == [str(ref(f"t{number}", owner="eve")) for number in range(80)]
        await desk.primary.delete("ts:queue", "ts:queue:tags")
        turns.let_go(300)


async def test_what_is_offered_takes_slots_as_what_is_claimed(place: Place) -> None:
    """An owner gets no more than its share of them, nothing runs twice, and a retiring worker claims nothing."""
    desk = Desk(place)
    turns = Turns(free=False)
    await desk.launches.launch(ref("queued"), 1)
    async with working(desk, turns, max_jobs=10, owner_share=0.8, retiring=True) as (worker, doorbell):
        for number in (*range(12), *range(12)):
            worker.take(Job(ref(f"t{number}", owner="eve"), 1))
        for number in range(12):
            worker.take(Job(ref(f"t{number}", owner="bob"), 1))
        await turns.all_started(10)
        doorbell.set()
        await wait_until(lambda: not doorbell.is_set(), "the doorbell to be heard")
        assert Counter(text.split("/")[0] for text, _ in turns.started) == {"eve": 8, "bob": 2}
        assert await desk.launches.depth() == 1
        worker.pause()
        worker.take(Job(ref("t1", owner="carol"), 1))
        turns.let_go(100)
        await worker.idle.wait()
    assert len(turns.started) == 10
    await desk.primary.delete("ts:queue", "ts:queue:tags")


async def test_others_are_found_behind_a_backlog_that_is_passed_over(place: Place) -> None:
    """However often another owner's turns were claimed past one that holds its share, the next one is found."""
    desk = Desk(place)
    full = Slots(2, 0.8, {"eve": 8})
    for number in range(300):
        await desk.launches.launch(ref(f"t{number}", owner="eve"), 1)
    assert await desk.launches.claim(2, 2_000, full) == {}
    for number in range(100):
        await desk.launches.launch(ref(f"t{number}", owner="alice"), 1)
        assert list(await desk.launches.claim(2, 2_000, full)) == [f"alice/s1/t{number}:1"]
    # Eve's keep their order, and newcomers are not put behind all of them.
    assert list(await desk.launches.claim(2)) == ["eve/s1/t0:1", "eve/s1/t1:1"]
    await desk.launches.launch(ref("new", owner="alice"), 1)
    assert list(await desk.launches.claim(2, 2_000, full)) == ["alice/s1/new:1"]
    assert await desk.launches.depth() == 298
    assert not await desk.launches.lost()
