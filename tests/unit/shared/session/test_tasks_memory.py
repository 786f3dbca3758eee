"""What a session remembers for its agent: bounded in turns and in bytes, counted as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.shared.session.support import Desk, keys_of, ref
from turnstream.shared.session.outcomes import Cleared

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.session.outcomes import Attempt

BOUND = 10_000


async def test_memory_is_bounded_in_bytes(place: Place) -> None:
    """Sixty turns, each a tenth of the bound: the newest that fit are kept, and counted to the byte."""
    desk = Desk(place, memory_max_bytes=BOUND)
    for number in range(60):
        attempt = await _turn(desk, number, b"%d" % number * 500)
        assert sum(map(len, attempt.memory)) <= BOUND
        kept = await _kept(desk)
        assert sum(map(len, kept)) <= BOUND
        assert await _counted(desk) == sum(map(len, kept))
    assert kept == [b"%d" % number * 500 for number in range(50, 60)]


async def test_sizes_that_differ_are_no_averages(place: Place) -> None:
    """One large turn pushes out as many small ones as it needs the room of, and is pushed out by the next large one."""
    desk = Desk(place, memory_max_bytes=BOUND)
    for number in range(20):
        await _turn(desk, number, b"s" * 100)
    await _turn(desk, 20, b"L" * 9_000)
    assert [len(each) for each in await _kept(desk)] == [*[100] * 10, 9_000]
    await _turn(desk, 21, b"M" * 9_500)
    assert [len(each) for each in await _kept(desk)] == [9_500]
    assert await _counted(desk) == 9_500


async def test_a_turn_above_the_bound_is_not_remembered(place: Place) -> None:
    """Nothing is left of it, and the next one is remembered again."""
    desk = Desk(place, memory_max_bytes=BOUND)
    await _turn(desk, 0, b"x" * (BOUND + 1))
    assert await _kept(desk) == []
    assert await _counted(desk) == 0
    await _turn(desk, 1, b"y")
    assert await _kept(desk) == [b"y"]
    assert await _counted(desk) == 1


async def test_what_was_kept_without_a_count_is_bounded_too(place: Place) -> None:
    """An earlier release kept any number of bytes: a turn is given what is allowed, and its end cuts the rest off."""
    desk = Desk(place, memory_max_bytes=BOUND)
    await _turn(desk, 0, b"0" * 10)
    await desk.redis.rpush(keys_of().memory, *[b"%d" % number * 1_000 for number in range(10)] * 5)
    await desk.redis.hdel(keys_of().meta, "memory")
    attempt = await _turn(desk, 1, b"new")
    assert attempt.memory == [b"%d" % number * 1_000 for number in range(10)]
    kept = await _kept(desk)
    assert [each[:1] for each in kept] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"n"]
    assert await _counted(desk) == sum(map(len, kept))


async def test_a_turn_is_given_no_more_than_its_agent_wants(place: Place) -> None:
    """The limit in turns holds when a turn begins, too."""
    desk = Desk(place)
    for number in range(5):
        await _turn(desk, number, b"%d" % number)
    attempt = await desk.running(ref("last"), memory_turns=2)
    assert attempt.memory == [b"3", b"4"]


async def test_a_cleared_session_counts_from_nothing(place: Place) -> None:
    """Its memory is gone, and so are its bytes."""
    desk = Desk(place)
    await _turn(desk, 0, b"first")
    assert isinstance(await desk.tasks.clear(keys_of(), await desk.epoch()), Cleared)
    assert await _counted(desk) == 0
    await _turn(desk, 1, b"second")
    assert await _counted(desk) == 6


async def _turn(desk: Desk, number: int, memory: bytes) -> Attempt:
    attempt = await desk.running(ref(f"t{number}"))
    await desk.finish(attempt, memory=memory)
    return attempt


async def _kept(desk: Desk) -> list[bytes]:
    elements: list[bytes] = await desk.redis.lrange(keys_of().memory, 0, -1)
    return elements


async def _counted(desk: Desk) -> int:
    return int(await desk.redis.hget(keys_of().meta, "memory"))
