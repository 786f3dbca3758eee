"""What stands in the log, and what is published: places, numbers, history, open messages, groups, tails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.unit.shared.session.support import (
    HOUR_MS,
    Desk,
    answer,
    asking,
    closed,
    delta,
    keys_of,
    numbers,
    opened,
    ref,
    settled,
)
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import END, Cursor
from turnstream.shared.session.event_log import PAGE_BYTES, Log
from turnstream.shared.session.outcomes import Parked
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Page


async def test_places_and_numbers_are_dense_over_attempts_and_parking(place: Place) -> None:
    """``sequence_number`` counts from 0 without a gap through a release, a parking and a second attempt."""
    desk = Desk(place)
    first = await desk.running()
    await desk.append(first, opened("m1"))
    await desk.tasks.release(ref(), 1, operation())
    second = await desk.begin(ref(), 2)
    await desk.append(second, delta("m1", "a", closed("m2", batch=opened("m2"))))
    assert (
        await desk.tasks.park(ref(), 2, asking("c1"), operation(), wait_ms=HOUR_MS, policy="block")
        == Parked()
    )
    await desk.tasks.callback(ref(), "c1", b"1", answer("c1"), operation())
    await desk.finish(await desk.begin(ref(), 3))
    entries = await desk.sound()
    assert [entry.seq for entry in entries] == list(range(1, 11))
    # The user's message and the park have none.
    assert numbers(entries) == [None, *range(6), None, 6, 7]
    assert entries[-1].kind == END


async def test_each_task_counts_for_itself(place: Place) -> None:
    """Two turns of a parallel session share the log's places, and number their events each from 0."""
    desk = Desk(place)
    one = await desk.running(busy="parallel")
    two = await desk.running(ref("t2"), busy="parallel")
    for attempt in (one, two, one):
        await desk.append(attempt, opened(f"m_{attempt.ref.task}"))
    entries = await desk.sound()
    assert [entry.seq for entry in entries] == list(range(1, 8))
    assert numbers([entry for entry in entries if entry.task == "t1"]) == [None, 0, 1, 2]
    assert numbers([entry for entry in entries if entry.task == "t2"]) == [None, 0, 1]


async def test_an_entry_keeps_what_was_said_of_it(place: Place) -> None:
    """Path, type, extra and the event's JSON come back as they were given, with the broker's time."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = Batch()
    body = '{"object":"message","id":"m1","text":"tab\\tline\\n{}[] é🙂","content":[]}'.encode()
    batch.opening("m1", "reasoning", body, path="researcher/reader", extra=b'{"agent":{"id":"x"}}')
    await desk.append(attempt, batch)
    entry = (await desk.entries())[-1]
    assert (entry.path, entry.kind, entry.extra) == (
        "researcher/reader",
        "reasoning",
        b'{"agent":{"id":"x"}}',
    )
    assert entry.event == b'{"sequence_number":1,' + body[1:]
    assert abs(entry.created - await desk.now()) < 60_000


async def test_an_entrys_time_is_read_in_both_forms(place: Place) -> None:
    """It stands as milliseconds since its epoch, which takes a third of the memory, or as an earlier release wrote it."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, opened("m1"))
    written = (await desk.entries())[-1]
    (_, fields), *_ = await desk.redis.xrevrange(keys_of().log, count=1)
    assert int(fields[b"c"]) == written.created - attempt.epoch // 1000
    await desk.redis.xadd(
        keys_of().log, {**fields, b"c": written.created}, id=f"{attempt.epoch}-{written.seq + 1}"
    )
    await desk.redis.hincrby(keys_of().meta, "seq", 1)
    earlier = (await desk.entries())[-1]
    assert (earlier.seq, earlier.created) == (written.seq + 1, written.created)
    for entry in (written, earlier):
        page = await desk.log.page(keys_of(), Cursor(attempt.epoch, entry.seq))
        assert page is not None
        assert page.written == written.created


async def test_history_holds_what_is_whole_at_the_place_where_it_was_completed(place: Place) -> None:
    """User messages, completed messages and ends are in the history under their cursor, and nothing else."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, opened("m2", delta("m1", "Hi", opened("m1"))))
    await desk.append(attempt, closed("m1", "Hi", closed("m2")))
    await desk.finish(attempt)
    entries = {entry.seq: entry for entry in await desk.sound()}
    history = await desk.log.history(keys_of())
    assert [entry.seq for entry in history] == [1, 6, 7, 8]
    assert all(entries[entry.seq] == entry for entry in history)
    epoch = attempt.epoch
    between = await desk.log.kept(keys_of(), Cursor(epoch, 1), Cursor(epoch, 7))
    assert between is not None
    assert (between.meta.epoch, [entry.seq for entry in between.entries]) == (epoch, [6])


async def test_a_message_is_open_from_its_first_event_to_its_last(place: Place) -> None:
    """The task's hash names the open messages with the seq of their first event."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, opened("m2", opened("m1")))
    assert (await desk.field(ref(), "open:m1"), await desk.field(ref(), "open:m2")) == ("3", "4")
    await desk.append(attempt, closed("m1"))
    assert (await desk.field(ref(), "open:m1"), await desk.field(ref(), "open:m2")) == (None, "4")


async def test_a_message_may_begin_and_end_in_one_batch(place: Place) -> None:
    """What was opened and closed in one append is not open."""
    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "Hi", delta("m1", "Hi", opened("m1"))))
    assert await desk.field(ref(), "open:m1") is None
    assert numbers(await desk.sound()) == [None, 0, 1, 2, 3]


async def test_a_groups_last_result_says_so(place: Place) -> None:
    """Of several calls made by one answer, the result that comes last completes the group, and no other."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = Batch()
    batch.group("g", 3)
    await desk.append(attempt, batch)
    await desk.append(attempt, settled("r1", "g"))
    await desk.append(attempt, settled("r3", "g", settled("r2", "g")))
    results = [entry for entry in await desk.log.history(keys_of()) if entry.kind == "plugin_call_output"]
    assert [orjson.loads(entry.extra)["last"] for entry in results] == [False, False, True]
    assert [entry for entry in await desk.sound() if entry.extra == b'{"last":true}'] == results[-1:]


async def test_groups_outlive_an_attempt_and_count_the_clients_answers(place: Place) -> None:
    """A group that one attempt opened is completed by a client's answer after the task parked."""
    desk = Desk(place)
    attempt = await desk.running()
    batch = asking("c1")
    batch.group("g", 2)
    await desk.append(attempt, batch)
    await desk.append(attempt, settled("r1", "g"))
    await desk.tasks.park(ref(), 1, Batch(), operation(), wait_ms=HOUR_MS, policy="block")
    await desk.tasks.callback(ref(), "c1", b"1", settled("r2", "g"), operation())
    extras = [entry.extra for entry in await desk.log.history(keys_of()) if b"last" in entry.extra]
    assert extras == [b'{"last":false}', b'{"last":true}']


async def test_each_batch_is_published_as_it_stands_in_the_log(place: Place) -> None:
    """A follower that hears the tail has the very entries that a reader of the log gets."""
    desk = Desk(place)
    async with desk.tails() as tail:
        attempt = await desk.running()
        await desk.append(attempt, delta("m1", "a\tb\nc", opened("m1")))
        await desk.finish(attempt)
        entries = await desk.sound()
        for first, last in ((1, 2), (3, 4), (5, 5)):
            message = await tail()
            assert (message.epoch, message.first, message.last) == (attempt.epoch, first, last)
            assert message.entries == entries[first - 1 : last]


async def test_a_large_batch_publishes_its_place_alone(place: Place) -> None:
    """Above 64 KiB the tail names the batch's seqs, and its entries are read from the log."""
    desk = Desk(place)
    attempt = await desk.running()
    async with desk.tails() as tail:
        await desk.append(attempt, delta("m1", "x" * 40_000, opened("m1")))
        small = await tail()
        assert (small.first, small.last, len(small.entries)) == (3, 4, 2)
        await desk.append(attempt, delta("m1", "y" * 40_000, delta("m1", "x" * 40_000)))
        large = await tail()
        assert (large.first, large.last, large.entries) == (5, 6, [])
    entries = await desk.log.read(keys_of(), Cursor(attempt.epoch, 4))
    assert [entry.seq for entry in entries] == [5, 6]


async def test_what_writes_nothing_publishes_nothing(place: Place) -> None:
    """A refused or repeated append, and one of checkpoints alone, does not reach the followers."""
    desk = Desk(place)
    attempt = await desk.running()
    kept = Batch()
    kept.keep("messages", b"[]")
    op = operation()
    await desk.tasks.append(ref(), 1, opened("m1"), op)
    async with desk.tails() as tail:
        await desk.tasks.append(ref(), 1, opened("m1"), op)
        await desk.tasks.append(ref(), 7, opened("m2"), operation())
        await desk.append(attempt, kept)
        await desk.append(attempt, closed("m1"))
        assert (await tail()).first == 4


async def test_what_fits_into_one_page_is_read_once(place: Place) -> None:
    """Who reads all of a log or a history asks again only where a page did not have all of it."""

    class Counting(Log):
        reads = 0

        async def page(
            self, keys: SessionKeys, after: Cursor, most: int = PAGE_BYTES, written: Cursor | None = None
        ) -> Page | None:
            self.reads += 1
            return await super().page(keys, after, min(most, self.most), written)

        most = PAGE_BYTES

    desk = Desk(place)
    attempt = await desk.running()
    await desk.append(attempt, closed("m1", "Hi", delta("m1", "Hi", opened("m1"))))
    log, start = Counting(desk.tasks.redis), Cursor(attempt.epoch, 0)
    seqs = [entry.seq async for entry in log.all_after(keys_of(), start)]
    assert (seqs, log.reads) == ([1, 2, 3, 4, 5], 1)
    log.reads, log.most = 0, 1
    assert [entry.seq async for entry in log.all_after(keys_of(), start)] == seqs
    assert log.reads == len(seqs)
