"""Forks of sessions: what is copied, and what happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.names import names_of
from tests.unit.shared.session.support import Desk, closed, keys_of, opened, ref
from tests.unit.shared.session.test_sums import FILES, Truth
from turnstream.shared.broker.client import command
from turnstream.shared.errors import BrokerAway, CursorGone, IdempotencyMismatch, NoSession, SessionBusy
from turnstream.shared.session import fork
from turnstream.shared.session.endings import named
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.fork import Forks
from turnstream.shared.session.outcomes import Behind, Cleared
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Place

TARGET = keys_of("s2")


async def anything(_size: int) -> None:
    """There is room for it."""


async def turn(desk: Desk, task: str, text: str = "", memory: bytes | None = None) -> None:
    """A whole turn that says this."""
    attempt = await desk.running(ref(task))
    batch = closed(f"m_{task}", text, opened(f"m_{task}"))
    await desk.append(attempt, batch)
    element = named(task, orjson.dumps({"said": text})) if memory is None else memory
    await desk.finish(attempt, memory=element)


async def make(desk: Desk, task: str = "t1", admit: Callable[[int], Awaitable[None]] = anything) -> bool:
    """Fork the session at the end of a turn."""
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    return await Forks(desk.tasks, desk.log).make(keys_of(), meta, task, TARGET, admit)


async def told(desk: Desk, keys: Any) -> list[tuple[Any, ...]]:
    """The session's history, but for the epoch."""
    return [
        (entry.seq, entry.task, entry.kind, entry.created, entry.event, entry.extra, entry.opened)
        async for entry in desk.log.all_kept(keys)
    ]


async def test_what_is_counted_is_what_is_there(place: Place) -> None:
    """With files, some of them twice, some in the history only: in pieces, too; a later turn counts on from there."""
    desk = Desk(place)
    large = "x" * 200_000
    for number, said in enumerate((FILES[0], FILES[0], large, FILES[3], large, FILES[4])):
        text = said if said is large else f"data:;base64,{said}"
        element = named(f"t{number}", orjson.dumps({"said": text if number != 1 else ""}))
        await turn(desk, f"t{number}", text, element)
    sizes: list[int] = []

    async def admit(size: int) -> None:
        sizes.append(size)

    assert await make(desk, "t4", admit)
    assert await told(desk, TARGET) == [each for each in await told(desk, keys_of()) if each[1] != "t5"]
    truth = Truth(desk, TARGET)
    await truth.check()
    assert 400_000 < sizes[0] < 2_000_000
    after = await desk.running(ref("t9", "s2"))
    await desk.finish(after, memory=b'{"task":"t9"}')
    await truth.check()
    assert len(after.memory) == 5
    assert not await make(desk, "t4")


async def test_a_turn_that_went_on_is_no_part_of_it(place: Place) -> None:
    """Of several at once, those that had ended are copied, whatever the others had said by then."""
    desk = Desk(place)
    first = await desk.running(ref("t1"), busy="parallel")
    second = await desk.running(ref("t2"), busy="parallel")
    await desk.append(second, closed("m2", "meanwhile", opened("m2")))
    await desk.finish(first, memory=b'{"task":"t1","said":"one"}')
    await desk.finish(second, memory=b'{"task":"t2","said":"two"}')
    assert await make(desk, "t1")
    assert {each[1] for each in await told(desk, TARGET)} == {"t1"}
    assert await desk.redis.lrange(TARGET.memory, 0, -1) == [b'{"task":"t1","said":"one"}']


async def test_two_that_are_made_at_once_are_one(place: Place) -> None:
    """Two front ends, one name: one of them makes it, whole."""
    desk, other = Desk(place), Desk(place)
    await turn(desk, "t1", "one")
    assert sorted(await asyncio.gather(make(desk), make(other))) == [False, True]
    assert await told(desk, TARGET) == await told(desk, keys_of())
    await Truth(desk, TARGET).check()
    await turn(desk, "t2", "two")
    with pytest.raises(IdempotencyMismatch):
        await make(desk, "t2")
    # What waited for the second one goes by itself.
    names = await names_of(desk.redis, f"{TARGET.prefix}*")
    assert all([await command(desk.redis, "PTTL", name) > 0 for name in names])


@pytest.mark.parametrize("end", ["clear", "delete", "refuse", "away"])
async def test_what_fails_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The source is cleared or deleted while it is read, there is no room, or the copy waited too long."""
    desk = Desk(place)
    await turn(desk, "t1", "one")
    meta = await desk.log.meta(keys_of())
    assert meta is not None
    read = fork._remembered

    async def meanwhile(*given: Any) -> list[bytes]:
        memory = await read(*given)
        if end in ("clear", "delete"):
            assert isinstance(
                await desk.tasks.clear(keys_of(), meta.epoch if end == "clear" else None), Cleared
            )
        return memory

    async def admit(_size: int) -> None:
        if end == "refuse":
            raise SessionBusy

    monkeypatch.setattr(fork, "_remembered", meanwhile)
    if end == "away":
        monkeypatch.setattr(fork, "STAGED_MS", 1)
        grafted = fork._graft

        async def slowly(*given: Any, **more: Any) -> Any:
            reply = await grafted(*given, **more)
            await desk.redis.delete(more["history"])
            return reply

        monkeypatch.setattr(fork, "_graft", slowly)
    errors = {"clear": CursorGone, "delete": NoSession, "refuse": SessionBusy, "away": BrokerAway}
    with pytest.raises(errors[end]):
        await make(desk, "t1", admit)
    assert await desk.log.meta(TARGET) is None
    assert not await desk.redis.exists(TARGET.memory, TARGET.history)


async def test_an_epoch_that_begins_meanwhile_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's log may have lost its end, but not what the turn left."""
    desk = Desk(place)
    await turn(desk, "t1", "one")
    read, times = fork._remembered, 0

    async def meanwhile(*given: Any) -> list[bytes]:
        nonlocal times
        times += 1
        if times == 1:
            # Somebody has seen more than there is.
            attempt = await desk.running(ref("t2"))
            attempt.claim.saw(attempt.claim.epoch, attempt.claim.seq + 10)
            outcome = await desk.tasks.append(attempt.ref, attempt.claim, opened("m2"), operation())
            assert isinstance(outcome, Behind)
        return await read(*given)

    monkeypatch.setattr(fork, "_remembered", meanwhile)
    assert await make(desk, "t1")
    assert times == 2
    assert {each[1] for each in await told(desk, TARGET)} == {"t1"}
    created = [each[3] for each in await told(desk, TARGET)]
    assert created == [each[3] for each in await told(desk, keys_of()) if each[1] == "t1"]


async def test_what_is_no_longer_remembered_is_not_made_up(place: Place) -> None:
    """A turn that fell out of the memory, or that an earlier release ended, whose elements have no names."""
    desk = Desk(place)
    await turn(desk, "t1", "one", b'{"said":"one"}')
    await turn(desk, "t2", "two")
    with pytest.raises(CursorGone, match="remembers"):
        await make(desk, "t1")
    assert await make(desk, "t2")
    assert len(await desk.redis.lrange(TARGET.memory, 0, -1)) == 2


async def test_who_follows_it_is_told_what_comes(place: Place) -> None:
    """Its log begins where the copy ends; what is before comes from the history."""
    desk = Desk(place)
    await turn(desk, "t1", "one")
    await make(desk)
    meta = await desk.log.meta(TARGET)
    assert meta is not None
    assert meta.head == meta.seq + 1
    assert await desk.log.reaches_back(TARGET, Cursor(meta.epoch, 0))
    assert await desk.redis.pttl(TARGET.history) <= 15 * 60_000
    after = await desk.running(ref("t9", "s2"))
    await desk.finish(after)
    (first, *_) = await desk.log.read(TARGET, Cursor(meta.epoch, meta.seq))
    assert first.seq == meta.seq + 1
    assert await desk.redis.pttl(TARGET.history) > 15 * 60_000
