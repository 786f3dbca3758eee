"""The bounds of a session: log and history to the byte, live turns in number, and what a script costs among many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.unit.shared.session.support import (
    HOUR_MS,
    Desk,
    answer,
    asking,
    closed,
    delta,
    ended,
    keys_of,
    opened,
    ref,
)
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.endings import end_all
from turnstream.shared.session.outcomes import Cleared, Finished, Full, Launch, Live, Parked
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place
    from turnstream.shared.broker.keys import TaskRef

# The smallest limit that a session may have.
LIMIT = 65_536

# As lua/_session.lua counts an entry: what its line on the tail has (five separators, the time), and what it costs beside.
BESIDE = 5 + 13 + 96


async def there(desk: Desk, stream: str) -> int:
    """What a stream holds, counted entry by entry."""
    rows = await desk.redis.xrange(stream)
    return sum(
        sum(len(fields[name]) for name in (b"t", b"a", b"y", b"e", b"x")) + BESIDE for _, fields in rows
    )


async def believed(desk: Desk, name: str) -> int:
    """What the session believes that it holds."""
    return int(await desk.redis.hget(keys_of().meta, name))


async def check(desk: Desk) -> int:
    """Log and history are within their bounds, and counted as they are; the log's bytes."""
    for stream, name in ((keys_of().log, "bytes"), (keys_of().history, "kept")):
        holds = await there(desk, stream)
        assert holds <= 1.1 * LIMIT, name
        assert abs(await believed(desk, name) - holds) <= holds / 100, name
    return await there(desk, keys_of().log)


async def test_log_and_history_are_bounded_whatever_the_sizes(place: Place) -> None:
    """Many small events, then large messages, then small ones: never more than a tenth above, and no less than there is."""
    desk = Desk(place, log_max_bytes=LIMIT)
    number = 0

    async def turns(count: int, events: int, text: str) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            attempt = await desk.running(ref(f"t{number}"))
            batch = opened(f"m{number}")
            for _ in range(events):
                delta(f"m{number}", text, batch)
            await desk.append(attempt, closed(f"m{number}", text, batch))
            await desk.finish(attempt)
            there = await check(desk)
            if number > 5:
                assert there > LIMIT / 2

    await turns(5, 60, "tok")
    await turns(25, 1, "x" * 5_000)
    await turns(10, 30, "tok")
    await desk.sound()


async def test_a_turn_that_waits_long_holds_the_log_to_four_times_its_bound(place: Place) -> None:
    """Beside a parked turn others go on for days: its first entries are kept for long, not for ever."""
    desk = Desk(place, log_max_bytes=LIMIT)
    parked = await desk.parked("c1", busy="parallel")
    for number in range(2, 100):
        attempt = await desk.running(ref(f"t{number}"), busy="parallel")
        await desk.append(attempt, closed("m", "x" * 5_000, opened("m")))
        await desk.finish(attempt)
        holds = await there(desk, keys_of().log)
        assert holds <= 4.2 * LIMIT
        assert holds == await believed(desk, "bytes")
        assert await there(desk, keys_of().history) <= 4.2 * LIMIT
    assert (await desk.sound())[0].seq > parked.first
    assert await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation()) == Launch(2)
    await desk.finish(await desk.begin(ref(), 2))
    await check(desk)


async def test_what_an_earlier_release_wrote_is_counted_from_its_first_cut(place: Place) -> None:
    """Entries that do not say what was before them go first; from then on the count is exact."""
    desk = Desk(place, log_max_bytes=LIMIT)
    await desk.finish(await desk.running())
    epoch = await desk.epoch()
    for seq in range(5, 200):
        fields = {"t": "old", "a": "", "y": "message", "c": "1", "e": '{"a":"' + "x" * 500 + '"}', "x": ""}
        await desk.redis.xadd(keys_of().log, fields, id=f"{epoch}-{seq}")
    await desk.redis.hset(keys_of().meta, mapping={"seq": 199, "bytes": 120_000, "live:t2": 150})
    await desk.redis.hdel(keys_of().meta, "dropped", "forgotten")
    await desk.put(ref("t2"), status="parked", first=150)
    attempt = await desk.running(ref("t3"), busy="parallel")
    assert (await desk.entries())[0].seq == 150
    assert await desk.log.live(keys_of()) == ["t3", "t2"]
    await desk.put(ref("t2"), status="completed")
    await desk.append(attempt, closed("m", "x" * 9_000, opened("m")))
    await desk.finish(attempt)
    assert await check(desk) > 0
    await desk.redis.delete(ref("t2").keys.task("t2"))


async def test_live_turns_of_a_session_are_capped(place: Place) -> None:
    """Whatever `busy` is; an ended turn makes room."""
    desk = Desk(place, max_live=3)
    first = await desk.running(busy="parallel")
    await desk.running(ref("t2"), busy="parallel")
    await desk.running(ref("t3"), busy="parallel")
    assert await desk.nothing_written(lambda: desk.submit(ref("t4"), busy="parallel")) == Full()
    assert await desk.nothing_written(lambda: desk.submit(ref("t4"))) == Full()
    await desk.finish(first)
    assert isinstance(await desk.submit(ref("t4"), busy="parallel"), Launch)


async def test_no_script_costs_more_for_its_siblings(place: Place) -> None:
    """A thousand live turns of the session or ten: a submit, park, callback or end runs as many commands."""
    if not place.real:
        pytest.skip("only a real broker counts the commands that scripts run")
    desk = Desk(place, max_live=2_000)
    few = await _costs(desk, 10)
    many = await _costs(desk, 1_000)
    assert all(many[step] <= 1.5 * few[step] for step in few), (few, many)


async def test_a_turn_costs_the_broker_so_many_commands(real: Place) -> None:
    """Each script of a turn runs exactly so many: who adds one changes these numbers, and knows it."""
    desk = Desk(real)
    # Once before, so that the broker knows the scripts.
    await _turn_costs(desk, ref("t0", "s0"))
    first, second = [await _turn_costs(desk, ref(name)) for name in ("t1", "t2")]
    # Each script is one of them itself.
    assert first == {"submit": 28, "begin": 11, "open": 9, "append": 8, "renew": 5, "finish": 23}
    assert second == {"submit": 23, "begin": 11, "open": 9, "append": 8, "renew": 5, "finish": 22}


async def _turn_costs(desk: Desk, task: TaskRef) -> dict[str, int]:
    """Step of a turn of one message → commands that it ran at the broker."""
    number = 0

    def piece() -> Batch:
        nonlocal number
        number += 1
        return delta(f"m_{task.task}", f"tok{number} ")

    def end() -> Awaitable[Any]:
        batch = ended(batch=closed(f"m_{task.task}", "x"))
        return desk.tasks.finish(task, 1, batch, operation(), status="completed", why="", memory=b"{}")

    return await _measured(
        desk,
        {
            "submit": lambda: desk.submit(task),
            "begin": lambda: desk.begin(task),
            "open": lambda: desk.tasks.append(task, 1, opened(f"m_{task.task}"), operation()),
            "append": lambda: desk.tasks.append(task, 1, piece(), operation()),
            "renew": lambda: desk.tasks.renew(task, 1),
            "finish": end,
        },
    )


async def _measured(desk: Desk, steps: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, int]:
    """Step → commands that it ran at the broker."""
    costs = {}
    for name, step in steps.items():
        before = await _commands(desk)
        await step()
        costs[name] = await _commands(desk) - before
    return costs


async def _costs(desk: Desk, siblings: int) -> dict[str, int]:
    """Step of a turn → commands that it ran at the broker, while so many of its session are parked."""
    live = len(await desk.log.live(keys_of()))
    for number in range(live, siblings):
        await _park(desk, f"s{number}")
    task = ref(f"t{siblings}")
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "submit": lambda: desk.submit(task, busy="parallel"),
        "begin": lambda: desk.begin(task),
        "append": lambda: desk.tasks.append(task, 1, delta("m", "x"), operation()),
        "park": lambda: desk.tasks.park(
            task, 1, asking(f"c{siblings}"), operation(), wait_ms=HOUR_MS, policy=""
        ),
        "callback": lambda: desk.tasks.callback(task, f"c{siblings}", b"1", answer("c"), operation()),
        "begin again": lambda: desk.begin(task, 2),
        "finish": lambda: desk.tasks.finish(
            task, 2, ended(), operation(), status="completed", why="", memory=b"{}"
        ),
    }
    return await _measured(desk, steps)


async def _park(desk: Desk, name: str) -> None:
    attempt = await desk.running(ref(name), busy="parallel")
    outcome = await desk.tasks.park(
        ref(name), attempt.number, asking(f"c_{name}"), operation(), wait_ms=HOUR_MS, policy=""
    )
    assert outcome == Parked()


async def _commands(desk: Desk, *names: str) -> int:
    stats = await desk.redis.info("commandstats")
    return sum(
        each["calls"]
        for name, each in stats.items()
        if name != "cmdstat_info" and (not names or name in names)
    )


async def test_a_whole_session_is_ended_page_by_page(place: Place) -> None:
    """Two hundred parked turns end with their own output each, and the history is read once for many of them."""
    desk = Desk(place)
    names = [f"t{number}" for number in range(200)]
    for name in names:
        await _park(desk, name)
    await desk.submit(ref("waits"), busy="serial")
    before = await _commands(desk, "cmdstat_xrange") if place.real else 0
    tasks = await desk.log.live(keys_of())
    await end_all(desk.ender, [ref(task) for task in tasks], "canceled", "stop", who="test")
    if place.real:
        assert await _commands(desk, "cmdstat_xrange") - before < 100
    assert await desk.log.live(keys_of()) == []
    ends = {entry.task: entry.event for entry in await desk.log.history(keys_of()) if entry.kind == "end"}
    assert set(ends) == {*names, "waits"}
    for name in names:
        assert f'"id":"m_c_{name}"'.encode() in ends[name]
        assert ends[name].count(b'"object":"message"') == 1
    assert await desk.field(ref("waits"), "attempt") == "1"
    assert isinstance(await desk.tasks.clear(keys_of(), await desk.epoch()), Cleared)


async def test_many_turns_that_speak_are_ended_with_what_they_said(place: Place) -> None:
    """A hundred messages are open at once: each end has its own, whole, and the log is read once for many of them."""
    desk = Desk(place)
    attempts = [await desk.running(ref(f"t{number}"), busy="parallel") for number in range(100)]
    for attempt in attempts:
        await desk.append(attempt, opened(f"m_{attempt.ref.task}"))
    for text in ("one ", "two"):
        for attempt in attempts:
            await desk.append(attempt, delta(f"m_{attempt.ref.task}", f"{text}{attempt.ref.task} "))
    before = await _commands(desk, "cmdstat_xrange") if place.real else 0
    tasks = await desk.log.live(keys_of())
    await end_all(desk.ender, [ref(task) for task in tasks], "canceled", "stop", who="test")
    if place.real:
        assert await _commands(desk, "cmdstat_xrange") - before < len(attempts)
    ends = {entry.task: orjson.loads(entry.event) for entry in await desk.sound() if entry.kind == "end"}
    told = {
        task: [(message["id"], message["content"][0]["text"]) for message in end["output"]]
        for task, end in ends.items()
    }
    assert told == {
        attempt.ref.task: [(f"m_{attempt.ref.task}", f"one {attempt.ref.task} two{attempt.ref.task} ")]
        for attempt in attempts
    }


async def test_a_clear_names_what_lives_the_newest_first(place: Place) -> None:
    """So it can be ended without a waiting turn beginning in between."""
    desk = Desk(place)
    await desk.running()
    await desk.submit(ref("t2"))
    assert await desk.tasks.clear(keys_of(), await desk.epoch()) == Live(("t2", "t1"))


async def test_a_turn_with_very_many_open_messages_ends(place: Place) -> None:
    """Nine thousand of them are dropped with its end."""
    desk = Desk(place)
    attempt = await desk.running()
    for start in range(0, 9_000, 500):
        batch = Batch()
        for number in range(start, start + 500):
            opened(f"m{number}", batch)
        await desk.append(attempt, batch)
    assert isinstance(await desk.finish(attempt), Finished)
    assert not [name for name in await desk.redis.hkeys(ref().keys.task("t1")) if name.startswith(b"open:")]


async def test_a_call_is_known_as_long_as_its_turn(place: Place) -> None:
    """A turn that runs for longer than a session lives still takes the answer to a call it made at its start."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, asking("c1"))
    await desk.redis.pexpire(keys_of().call("c1"), 60_000)
    await desk.put(ref(), fresh=await desk.past())
    await desk.tasks.renew(ref(), 1)
    lives = await desk.lives()
    assert lives[keys_of().call("c1").encode()] > HOUR_MS, lives
