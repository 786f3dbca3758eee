"""The publisher: batches that grow by themselves, in order, each once, and a log that refuses."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import orjson
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, closed, delta, opened, ref
from turnstream.shared.broker.retry import limited, whole
from turnstream.shared.offload import ThreadOffload
from turnstream.shared.protocol import ContentBuilder, ResponseBuilder
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.outcomes import Ended, Fenced
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.worker.flush_window import FlushWindow
from turnstream.worker.publisher import MOST_GATHERED, MOST_GATHERED_BYTES, LostAttempt, Publisher
from turnstream.worker.worker import TURN_RETRY_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.outcomes import Appended, Attempt, Refusal, Writer


class Gate(Tasks):
    """Appends are counted, and wait in flight while the gate is shut."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.redis, desk.settings)
        self.sizes: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Append when the gate is open."""
        self.sizes.append(batch.count)
        await self.open.wait()
        return await super().append(ref, attempt, batch, op)

    async def in_flight(self, count: int) -> None:
        """Wait until that many appends were sent."""
        await wait_until(lambda: len(self.sizes) >= count, f"append number {count}")


class Lossy(Tasks):
    """The first reply of an append is lost after the broker did it."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(limited(desk.redis, math.inf), desk.settings)
        self.lost: list[str] = []

    @whole
    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Append, and lose the first reply."""
        outcome = await super().append(ref, attempt, batch, op)
        if not self.lost:
            self.lost.append(op)
            raise RedisConnectionError("the reply was lost")
        return outcome


class Broken(Tasks):
    """The broker refuses the batch itself."""

    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Never append."""
        raise ValueError("no such batch")


class Away(Tasks):
    """The broker is away for some tries."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(limited(desk.redis, TURN_RETRY_SECONDS), desk.settings)
        self.tries = list(range(6))

    @whole
    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Answer the last one."""
        if self.tries:
            self.tries.pop()
            raise RedisConnectionError("away")
        return await super().append(ref, attempt, batch, op)


@asynccontextmanager
async def _publisher(
    tasks: Tasks,
    attempt: Attempt,
    refusals: list[Refusal] | None = None,
    window: FlushWindow | None = None,
) -> AsyncIterator[Publisher]:
    found = refusals if refusals is not None else []
    publisher = Publisher(
        tasks, attempt, found.append, ThreadOffload(), window or FlushWindow(0), most_bytes=2**20
    )
    try:
        yield publisher
    finally:
        await publisher.close()


def text_part() -> ContentBuilder:
    """A part of a message of the log."""
    responses = ResponseBuilder(numbered=False, status="in_progress")
    return responses.create_message_builder(message_id="m1").create_content_builder()


def _say(publisher: Publisher, *texts: str) -> None:
    for text in texts:
        delta("m1", text, publisher.batch)
        publisher.kick()


async def _texts(desk: Desk) -> list[str]:
    events = [orjson.loads(entry.event) for entry in await desk.sound()]
    return [event["text"] for event in events if event["object"] == "content"]


async def test_an_idle_publisher_appends_at_once(place: Place) -> None:
    """What is said is on its way without a flush."""
    desk = Desk(place)
    attempt = await desk.running()
    async with desk.tails() as tail, _publisher(desk.tasks, attempt) as publisher:
        _say(publisher, "a")
        assert (await tail()).last == 3
    assert await _texts(desk) == ["a"]


async def test_what_is_said_meanwhile_goes_in_one_batch(place: Place) -> None:
    """While an append is in flight events gather, and the next append takes all of them, in order."""
    desk = Desk(place)
    gate = Gate(desk)
    async with _publisher(gate, await desk.running()) as publisher:
        gate.open.clear()
        _say(publisher, "0")
        await gate.in_flight(1)
        _say(publisher, *map(str, range(1, 50)))
        gate.open.set()
        await publisher.flush()
        _say(publisher, "50")
        await publisher.flush()
    assert gate.sizes == [1, 49, 1]
    assert await _texts(desk) == [str(number) for number in range(51)]


class Busy(FlushWindow):
    """As of a busy process, for as long as a test takes: it sets when text need wait no longer."""

    def __init__(self) -> None:
        super().__init__(0)
        self.window = 3600.0

    def seconds(self) -> float:
        """The present window."""
        return self.window


async def test_a_busy_publisher_lets_text_wait_for_more(place: Place) -> None:
    """Of a text that comes in pieces the first is sent at once, those that follow as one event."""
    desk = Desk(place)
    gate = Gate(desk)
    busy = Busy()
    async with _publisher(gate, await desk.running(), window=busy) as publisher:
        part = text_part()

        async def say(*texts: str) -> None:
            for text in texts:
                publisher.batch.delta("message", *part.text_delta_json(text))
                publisher.kick(text=True)

        busy.window = 0
        await say("a")
        await gate.in_flight(1)
        await publisher.flush()
        busy.window = 3600
        await say("b", "c")
        await desk.now()
        assert gate.sizes == [1]
        busy.window = 0
        await say("d")
        await gate.in_flight(2)
        await publisher.flush()
    assert gate.sizes == [1, 1]
    assert await _texts(desk) == ["a", "bcd"]


async def test_what_is_no_text_takes_waiting_text_along_at_once(place: Place) -> None:
    """An end, a call or a checkpoint waits for nothing, and neither does what was said before it."""
    desk = Desk(place)
    gate = Gate(desk)
    async with _publisher(gate, await desk.running(), window=Busy()) as publisher:
        part = text_part()
        # What comes first waits for nothing.
        publisher.batch.keep("usage", b"{}")
        await publisher.flush()
        publisher.batch.delta("message", *part.text_delta_json("a"))
        publisher.kick(text=True)
        publisher.batch.keep("messages", b"[1]")
        publisher.kick()
        await gate.in_flight(2)
        publisher.batch.delta("message", *part.text_delta_json("b"))
        publisher.kick(text=True)
        await publisher.flush()
    assert await _texts(desk) == ["a", "b"]


async def test_flush_waits_until_all_is_in_the_log(place: Place) -> None:
    """A flush returns when what was gathered before it is in the log, and at once when nothing is."""
    desk = Desk(place)
    gate = Gate(desk)
    async with _publisher(gate, await desk.running()) as publisher:
        await publisher.flush()
        gate.open.clear()
        _say(publisher, "a")
        await gate.in_flight(1)
        _say(publisher, "b")
        flushing = asyncio.create_task(publisher.flush())
        # The second batch is not even sent yet.
        await desk.now()
        assert not flushing.done()
        gate.open.set()
        await flushing
        assert await _texts(desk) == ["a", "b"]


class Chatty(Tasks):
    """While an append is in flight more is said, as beside a sub-agent that speaks."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.redis, desk.settings)
        self.publisher: Publisher | None = None
        self.more = 20

    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Append, and have something to append again."""
        if self.publisher is not None and self.more:
            self.more -= 1
            _say(self.publisher, "more")
        return await super().append(ref, attempt, batch, op)


async def test_flush_does_not_wait_for_what_is_said_meanwhile(place: Place) -> None:
    """Else a tool would not begin before everybody beside it is silent."""
    desk = Desk(place)
    chatty = Chatty(desk)
    async with _publisher(chatty, await desk.running()) as publisher:
        chatty.publisher = publisher
        _say(publisher, "a")
        await publisher.flush()
        assert chatty.more
        assert "a" in await _texts(desk)


async def test_a_seal_waits_for_what_gathered_while_an_append_was_in_flight(place: Place) -> None:
    """All that was said before the seal is in the log when it returns, and nothing of what is said after it."""
    desk = Desk(place)
    gate = Gate(desk)
    async with _publisher(gate, await desk.running()) as publisher:
        gate.open.clear()
        _say(publisher, "a")
        await gate.in_flight(1)
        _say(publisher, "b")
        sealing = asyncio.create_task(publisher.seal())
        await desk.now()
        gate.open.set()
        await gate.in_flight(2)
        _say(publisher, "c")
        await sealing
        assert await _texts(desk) == ["a", "b"]


async def test_checkpoints_alone_are_appended_too(place: Place) -> None:
    """A batch without events but with a checkpoint is flushed like any other."""
    desk = Desk(place)
    attempt = await desk.running()
    async with _publisher(desk.tasks, attempt) as publisher:
        publisher.batch.keep("messages", b"[1]")
        await publisher.flush()
    assert await desk.redis.hgetall(ref().keys.state("t1")) == {b"messages": b"[1]"}


async def test_a_lost_reply_does_not_double(place: Place) -> None:
    """A batch that was appended before the connection broke is in the log once, and what follows after it."""
    desk = Desk(place)
    lossy = Lossy(desk)
    async with _publisher(lossy, await desk.running()) as publisher:
        opened("m1", publisher.batch)
        _say(publisher, "a", "b")
        await publisher.flush()
        _say(publisher, "c")
        await publisher.flush()
        assert publisher.open == {"m1": 3}
    assert len(lossy.lost) == 1
    assert await _texts(desk) == ["a", "b", "c"]


async def test_a_refusal_is_told_once_and_nothing_is_accepted_after_it(place: Place) -> None:
    """When the log refuses, the turn is told why, and whoever goes on speaking learns that it is over."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.tasks.release(ref(), 1, operation())
    refusals: list[Refusal] = []
    async with _publisher(desk.tasks, attempt, refusals) as publisher:
        _say(publisher, "a")
        with pytest.raises(LostAttempt):
            await publisher.flush()
        with pytest.raises(LostAttempt):
            await publisher.room()
        _say(publisher, "b")
        for refused in (publisher.flush, publisher.room, publisher.settle, publisher.flush):
            with pytest.raises(LostAttempt):
                async with asyncio.timeout(5):
                    await refused()
    assert refusals == [Fenced()]
    assert await _texts(desk) == []


async def test_an_ended_task_is_told_apart_from_a_lost_one(place: Place) -> None:
    """The refusal says whether the task ended or another attempt has it."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.finish(attempt, "canceled")
    refusals: list[Refusal] = []
    async with _publisher(desk.tasks, attempt, refusals) as publisher:
        _say(publisher, "a")
        with pytest.raises(LostAttempt):
            await publisher.flush()
    assert refusals == [Ended()]


async def test_a_batch_the_broker_cannot_take_ends_the_attempt(place: Place) -> None:
    """Going on without a batch would leave a hole, so the attempt is given up."""
    desk = Desk(place)
    refusals: list[Refusal] = []
    broken = Broken(desk.redis, desk.settings)
    async with _publisher(broken, await desk.running(), refusals) as publisher:
        _say(publisher, "a")
        with pytest.raises(LostAttempt):
            await publisher.flush()
    assert refusals == [Fenced()]


async def test_no_absence_of_the_broker_costs_the_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away for ten minutes; then the batch goes into the log as if nothing had been."""
    desk = Desk(place)
    refusals: list[Refusal] = []
    away = Away(desk)
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + 120 * (6 - len(away.tries)))
    async with _publisher(away, await desk.running(), refusals) as publisher:
        _say(publisher, "a")
        await publisher.flush()
    assert refusals == []
    assert not away.tries
    assert b"a" in (await desk.entries())[-1].event


@pytest.mark.parametrize("by", ["count", "bytes"])
async def test_what_gathers_is_bounded(place: Place, by: str) -> None:
    """With so much gathered the agent has to wait, until the append in flight is done."""
    desk = Desk(place)
    gate = Gate(desk)
    async with _publisher(gate, await desk.running()) as publisher:
        gate.open.clear()
        _say(publisher, "first")
        await gate.in_flight(1)
        await publisher.room()
        if by == "count":
            _say(publisher, *["x"] * MOST_GATHERED)
        else:
            _say(publisher, "x" * MOST_GATHERED_BYTES)
        waiting = asyncio.create_task(publisher.room())
        await desk.now()
        assert not waiting.done()
        gate.open.set()
        await waiting
        await publisher.room()
        await publisher.flush()
    assert gate.sizes == [1, MOST_GATHERED if by == "count" else 1]


async def test_an_agent_that_waits_for_room_learns_of_a_refusal(place: Place) -> None:
    """A refused append does not leave the agent waiting."""
    desk = Desk(place)
    gate = Gate(desk)
    attempt = await desk.running()
    async with _publisher(gate, attempt) as publisher:
        gate.open.clear()
        _say(publisher, "first")
        await gate.in_flight(1)
        _say(publisher, *["x"] * MOST_GATHERED)
        waiting = asyncio.create_task(publisher.room())
        await desk.finish(attempt, "canceled")
        gate.open.set()
        with pytest.raises(LostAttempt):
            await waiting


async def test_it_knows_what_is_open_in_the_log(place: Place) -> None:
    """Open messages are known with the seq of their first event, as the next attempt would find them."""
    desk = Desk(place)
    attempt = await desk.running()
    async with _publisher(desk.tasks, attempt) as publisher:
        opened("m2", delta("m1", "a", opened("m1", publisher.batch)))
        await publisher.flush()
        assert publisher.open == {"m1": 3, "m2": 5}
        closed("m1", "a", publisher.batch)
        await publisher.flush()
        assert publisher.open == {"m2": 5}
    taken = await desk.tasks.take(ref(), "api", "canceled stop", operation())
    assert getattr(taken, "open", None) == publisher.open


async def test_settle_holds_back_what_gathered(place: Place) -> None:
    """After settling nothing is in flight, and what gathered goes along with another script."""
    desk = Desk(place)
    gate = Gate(desk)
    attempt = await desk.running()
    async with _publisher(gate, attempt) as publisher:
        gate.open.clear()
        _say(publisher, "a")
        await gate.in_flight(1)
        _say(publisher, "b")
        settling = asyncio.create_task(publisher.settle())
        await desk.now()
        assert not settling.done()
        gate.open.set()
        await settling
        assert await _texts(desk) == ["a"]
        batch = publisher.take()
        assert (batch.count, publisher.batch.count) == (1, 0)
        await desk.append(attempt, batch)
    assert gate.sizes == [1]
    assert await _texts(desk) == ["a", "b"]


async def test_a_turn_that_was_settled_can_still_be_flushed(place: Place) -> None:
    """A turn cancelled while it parks goes on to be released: what it says then is appended, without a wait."""
    desk = Desk(place)
    async with _publisher(desk.tasks, await desk.running()) as publisher:
        _say(publisher, "a")
        await publisher.settle()
        held = publisher.take()
        async with asyncio.timeout(5):
            await publisher.flush()
            _say(publisher, "b")
            await publisher.flush()
    assert await _texts(desk) == (["b"] if held else ["a", "b"])
