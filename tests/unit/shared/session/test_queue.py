"""The launch queue and the hints: who is claimed when, and when a rescuer looks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.unit.shared.session.support import HOUR_MS, Desk, ref
from turnstream.shared.broker import keys
from turnstream.shared.session.queue import ALL, ENOUGH_RUNG, QUEUED_LOOK_MS, Job

if TYPE_CHECKING:
    from tests.conftest import Place


def _job(task: str, owner: str) -> str:
    return Job(ref(task, owner=owner), 1).id


async def _queue(desk: Desk, owner: str, count: int) -> list[str]:
    for number in range(count):
        await desk.launches.launch(ref(f"t{number}", owner=owner), 1)
    return [_job(f"t{number}", owner) for number in range(count)]


async def _settled(place: Place) -> Desk:
    """A desk whose broker has lost nothing, as far as rescuers can tell."""
    desk = Desk(place)
    assert (await desk.launches.due(1, 10 * HOUR_MS))[1] == [ALL.encode()]
    return desk


async def _due_at(desk: Desk, task: str = "t1") -> int | None:
    score = await desk.primary.zscore(keys.DUE, str(ref(task)))
    return None if score is None else int(score)


async def test_owners_are_claimed_in_turn(place: Place) -> None:
    """An owner with a backlog does not keep another one waiting; each owner's launches stay in order."""
    desk = Desk(place)
    many = await _queue(desk, "many", 20)
    few = await _queue(desk, "few", 3)
    claimed = [job for _ in range(23) for job in await desk.launches.claim(1)]
    assert set(claimed[:6]) == {*many[:3], *few}
    assert [job for job in claimed if job in many] == many
    assert [job for job in claimed if job in few] == few


async def test_a_newcomer_does_not_wait_behind_a_backlog_nor_pass_everybody(place: Place) -> None:
    """An owner that comes when others were served already starts where they are."""
    desk = Desk(place)
    many = await _queue(desk, "many", 20)
    assert list(await desk.launches.claim(10)) == many[:10]
    late = await _queue(desk, "late", 3)
    for theirs, own in zip(many[10:13], late, strict=True):
        assert set(await desk.launches.claim(2)) == {theirs, own}


async def test_a_repeated_launch_keeps_its_place(place: Place) -> None:
    """A launch that still waits is not queued twice, and does not go to the end."""
    desk = Desk(place)
    first, second = await _queue(desk, "o1", 2)
    await desk.launches.launch(ref("t0", owner="o1"), 1)
    assert await desk.launches.depth() == 2
    assert list(await desk.launches.claim(10)) == [first, second]


async def test_a_claimed_launch_is_in_no_queue(place: Place) -> None:
    """After the last claim nothing of the queue is left, nor of the jobs."""
    desk = Desk(place)
    await _queue(desk, "a", 2)
    await _queue(desk, "b", 1)
    assert await desk.launches.depth() == 3
    assert len(await desk.launches.claim(2)) == 2
    assert await desk.primary.exists(keys.QUEUE_TAGS) == 1
    assert len(await desk.launches.claim(2)) == 1
    left = set(await desk.primary.keys("*"))
    assert left == {name.encode() for name in (keys.RECENT, keys.LIVE, keys.DUE)}
    assert list(await desk.launches.claim(2)) == []


async def test_a_claimed_launch_may_be_launched_again(place: Place) -> None:
    """A launch that was lost after its claim is queued anew."""
    desk = Desk(place)
    jobs = await _queue(desk, "o1", 1)
    assert list(await desk.launches.claim(1)) == jobs
    assert await _queue(desk, "o1", 1) == jobs
    assert list(await desk.launches.claim(1)) == jobs


async def test_two_claims_never_get_the_same_launch(place: Place) -> None:
    """Each launch goes to one worker."""
    one, two = Desk(place), Desk(place)
    jobs = await _queue(one, "o1", 10)
    claimed = [*await one.launches.claim(6), *await two.launches.claim(6)]
    assert claimed == jobs


async def test_a_launch_rings_the_doorbell_once(place: Place) -> None:
    """Idle workers are woken by a new launch, and not by one that waits already."""
    desk = Desk(place)
    pubsub = desk.primary.pubsub()
    await pubsub.subscribe(keys.DOORBELL)
    await desk.launches.launch(ref(), 1)
    await desk.launches.launch(ref(), 1)
    await desk.launches.launch(ref("t2"), 1)
    await desk.primary.publish(keys.DOORBELL, "done")
    heard: list[bytes] = []
    while b"done" not in heard:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
        heard += [message["data"]] if message else []
    assert heard == [b"1", b"1", b"done"]
    await pubsub.aclose()


async def test_where_there_are_many_workers_a_launch_rings_some(place: Place) -> None:
    """What a launch costs the broker does not grow with their number; enough of them hear of it."""
    desk = Desk(place)
    await desk.primary.hset(keys.WORKERS, mapping={f"host-{number}-abc": "{}" for number in range(40)})
    workers = [desk.primary.pubsub() for _ in range(40)]
    for worker, bell in zip(workers, itertools.cycle(keys.BELLS)):
        await worker.subscribe(keys.DOORBELL, bell)
    for number in range(4):
        await desk.launches.launch(ref(f"t{number}"), 1)
    await desk.primary.publish(keys.DOORBELL, "done")
    rung = [await _heard(worker) for worker in workers]
    assert sum(rung) == 4 * ENOUGH_RUNG
    for worker in workers:
        await worker.aclose()
    await desk.primary.delete(keys.WORKERS)


async def _heard(worker: Any) -> int:
    """How often a worker was rung for before "done"."""
    heard = 0
    while True:
        message = await worker.get_message(ignore_subscribe_messages=True, timeout=5)
        if message and message["data"] == b"done":
            return heard
        heard += message is not None


async def test_a_job_holds_ids_only(place: Place) -> None:
    """What is queued names the task and the launch; everything else is in the task's hash."""
    desk = Desk(place)
    await desk.launches.launch(ref(), 3)
    claimed = await desk.launches.claim(1)
    job = orjson.loads(claimed["o1/s1/t1:3"])
    assert (job["f"], job["a"], job["k"], job["t"]) == ("run_task", ["o1/s1/t1", 3], {}, None)


async def test_a_hint_moves_only_earlier(place: Place) -> None:
    """A later reminder never puts off an earlier one; it moves it a little, so that a rescuer sees it was here."""
    desk = Desk(place)
    await desk.launches.remind(ref(), HOUR_MS)
    far = await _due_at(desk)
    assert far is not None
    await desk.launches.remind(ref(), 2 * HOUR_MS)
    assert await _due_at(desk) == far - 1
    await desk.launches.remind(ref(), 1_000)
    near = await _due_at(desk)
    assert near is not None
    assert near < far


async def test_what_is_due_is_given_out_once(place: Place) -> None:
    """Taken refs are due again later, so two rescuers never have the same one, and none is lost."""
    desk = await _settled(place)
    for task in ("t1", "t2", "t3"):
        await desk.launches.remind(ref(task), -1_000)
    await desk.launches.remind(ref("later"), HOUR_MS)
    again, first = await desk.launches.due(2, HOUR_MS)
    _, rest = await desk.launches.due(10, HOUR_MS)
    assert sorted(first + rest) == [str(ref(task)).encode() for task in ("t1", "t2", "t3")]
    assert (await desk.launches.due(10, HOUR_MS))[1] == []
    assert await _due_at(desk) == again
    assert 0 < again - await desk.now() <= HOUR_MS


async def test_another_server_has_every_task_looked_at(place: Place) -> None:
    """It may lack the newest hints. One that was known before shows no loss, nor does one without a name."""
    desk = await _settled(place)
    everything = [ALL.encode()]
    for servers, due in (
        (["a", "b"], everything), (["a", "b"], []), (["c", "b"], everything), (["a", "b"], []), (["c", "d"], everything),
        (["", "b"], []),
    ):  # fmt: skip
        assert (await desk.launches.due(1, HOUR_MS, servers))[1] == due, servers


async def test_a_rescuer_dates_a_task_anew(place: Place) -> None:
    """What the task's hash says replaces the hint that was taken; below zero there is no next look."""
    desk = await _settled(place)
    await desk.launches.remind(ref(), 0)
    taken, _ = await desk.launches.due(1, 1_000)
    before = await desk.now()
    assert await desk.launches.redate(ref(), HOUR_MS, taken)
    date = await _due_at(desk)
    assert date is not None
    assert before + HOUR_MS <= date <= await desk.now() + HOUR_MS
    assert await desk.launches.redate(ref(), 0, date)
    taken, due = await desk.launches.due(10, HOUR_MS)
    assert due == [str(ref()).encode()]
    assert await desk.launches.redate(ref(), -1, taken)
    assert await _due_at(desk) is None


@pytest.mark.parametrize("ms", [1_000, HOUR_MS])
@pytest.mark.parametrize("act", ["remind", "note", "claim"])
async def test_a_rescuer_does_not_put_off_what_somebody_asked_for_meanwhile(
    place: Place, act: str, ms: int
) -> None:
    """A callback that came between a rescuer's look and its new date keeps its hint, sooner or later than that."""
    desk = await _settled(place)
    await desk.launches.launch(ref(), 1)
    await desk.launches.remind(ref(), 0)
    taken, _ = await desk.launches.due(1, 10_000)
    if act == "claim":
        assert len(await desk.launches.claim(1, ms)) == 1
    else:
        await (desk.launches.note(ref()) if act == "note" else desk.launches.remind(ref(), ms))
    hint = await _due_at(desk)
    assert not await desk.launches.redate(ref(), HOUR_MS, taken)
    assert not await desk.launches.redate(ref(), -1, taken)
    assert await _due_at(desk) == hint


async def test_a_claimed_launch_is_looked_at_soon(place: Place) -> None:
    """Who claims may die, or never hear of it: each claimed task has its hint, whether it had one or not."""
    desk = Desk(place)
    await desk.launches.remind(ref("t0", owner="o1"), HOUR_MS)
    await _queue(desk, "o1", 2)
    await desk.primary.zrem(keys.DUE, str(ref("t1", owner="o1")))
    before = await desk.now()
    assert len(await desk.launches.claim(8, 2_000)) == 2
    for task in ("t0", "t1"):
        hint = await _due_at(desk, task)
        assert hint is not None
        assert before + 2_000 <= hint <= await desk.now() + 2_000


async def test_a_launch_has_its_hint(place: Place) -> None:
    """Whatever became of the hint before the submit, what is launched, or noted as waiting, is looked at."""
    desk = Desk(place)
    await desk.launches.launch(ref(), 1)
    await desk.launches.note(ref("t2"))
    for task in ("t1", "t2"):
        hint = await _due_at(desk, task)
        assert hint is not None
        assert hint <= await desk.now() + QUEUED_LOOK_MS
    # One that waits is looked at again and again, not each time it is launched anew.
    await desk.primary.zadd(keys.DUE, {str(ref()): await desk.now() + HOUR_MS})
    far = await _due_at(desk)
    await desk.launches.launch(ref(), 1)
    assert await _due_at(desk) == far


async def test_new_tasks_are_listed_for_the_operator(place: Place) -> None:
    """A task is remembered from its first launch, or its note; later launches and reminders do not change that."""
    desk = Desk(place)
    await desk.launches.launch(ref(), 1)
    await desk.launches.remind(ref("t2"), 0)
    first = await desk.primary.zrange(keys.RECENT, 0, -1, withscores=True)
    assert [member for member, _ in first] == [str(ref()).encode()]
    await desk.launches.launch(ref(), 2)
    await desk.launches.note(ref())
    assert await desk.primary.zrange(keys.RECENT, 0, -1, withscores=True) == first


async def test_the_operators_list_is_bounded(place: Place) -> None:
    """Only the most recent tasks are remembered."""
    desk = Desk(place)
    await desk.primary.zadd(keys.RECENT, {f"o/s/t{number}": number for number in range(10_000)})
    await desk.launches.launch(ref(), 1)
    assert await desk.primary.zcard(keys.RECENT) == 10_000
    assert await desk.primary.zscore(keys.RECENT, "o/s/t0") is None
    assert await desk.primary.zscore(keys.RECENT, str(ref())) is not None
