"""Coming back when the log has no more of what is asked for: it is told at once, whole or that it is gone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.capture import Capture
from tests.conformance.checker import broken
from tests.support.client import asked, check_whole, terminal
from tests.support.names import names_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.api.streaming import hub
from turnstream.shared.broker.client import at_each
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.outcomes import Claim, Ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.conftest import Place
    from tests.support.client import Client, Frame

KEYS = SessionKeys("dev", "s1")
TOKENS = "".join(f"tok{number} " for number in range(30))

# Where the first piece of a turn's text stands; how many follow depends on how fast they are appended.
PIECE = 4

# A follow that is answered from what is there costs no more commands, however it is asked for.
MOST_COMMANDS = 20


@pytest.fixture
async def after_grace(place: Place) -> AsyncIterator[tuple[Stack, Client, list[Frame]]]:
    """A session whose only turn ended so long ago that its events were cut: the log is empty, the messages are kept."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    await stack.worker()
    client = await stack.front_end()
    frames = await client.turn("s1", "/tokens 30", id="t1")
    await wait_until(lambda: _log_is_empty(stack), "the turn's events to be cut")
    # Another front end has nothing in its ring.
    yield stack, await stack.front_end(), frames
    await stack.close()


async def _log_is_empty(stack: Stack, keys: SessionKeys = KEYS) -> bool:
    meta = await stack.log.meta(keys)
    assert meta is not None
    return not await stack.log.read(keys, Cursor(meta.epoch, 0))


async def _commands(stack: Stack) -> int:
    """What the broker was asked so far, scripts' own commands not counted."""
    told = await at_each(stack.broker.sessions, lambda each: each.info("commandstats"))
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("calls", 0)
        for stats in told
        for name in ("xrange", "hgetall", "hmget", "evalsha")
    )


@asynccontextmanager
async def _few_commands(stack: Stack) -> AsyncIterator[None]:
    """Fails when more is asked of a real broker than an answer takes."""
    if not stack.place.real:
        yield
        return
    before = await _commands(stack)
    yield
    # The scripts' inner commands are counted, too; workers and rescuers ask a little meanwhile.
    assert await _commands(stack) - before < 10 * MOST_COMMANDS


@pytest.mark.parametrize("wire", ["", "java"])
async def test_what_is_told_whole_begins_as_every_turn_does(
    after_grace: tuple[Stack, Client, list[Frame]], wire: str
) -> None:
    """Its beginning was cut, too: it is told as it was, with dense numbers from 0."""
    _, client, frames = after_grace
    async with client.follow("s1", "t1", **({"dialect": wire} if wire else {})) as stream:
        told = await asyncio.wait_for(stream.all(), 10)
    number = "sequenceNumber" if wire else "sequence_number"
    assert [frame.data[number] for frame in told] == list(range(len(told)))
    begun = [(frame.data["object"], frame.data["status"].lower()) for frame in told[:3]]
    assert begun == [("response", "queued"), ("response", "created"), ("response", "in_progress")]
    assert [frame.seq for frame in told] == sorted({frame.seq for frame in told})
    if not wire:
        check_whole(told)
        reads = tuple(frame.raw + b"\n\n" for frame in told)
        assert broken(Capture("agentscope", reads, chosen=frozenset({told[0].data["id"]}))) == set()
        kept = {key: value for key, value in frames[0].data.items() if key != "sequence_number"}
        assert kept.items() <= told[0].data.items()
    # Cut anywhere in it, what is left comes: by the log's own numbers.
    for at in range(len(told) - 1):
        async with client.follow("s1", "t1", told[at].id) as stream:
            assert terminal(await asyncio.wait_for(stream.all(), 10))


async def test_a_beginning_of_which_a_part_is_left_is_told_once(place: Place) -> None:
    """What comes after a turn's first event is there still: one that was sent before it waits for its client."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    try:
        client = await stack.front_end()
        async with (
            client.process("s1", "/tokens 5", id="t1") as first,
            client.process("s1", "/call ask", id="t2"),
        ):
            await first.until(lambda frames: frames)
            await stack.worker()
            whole = await first.all()
            second = await stack.log.task(KEYS, "t2")

            async def is_cut() -> bool:
                meta = await stack.log.meta(KEYS)
                return meta is not None and meta.head == int(second["first"])

            await wait_until(is_cut, "the turn's first event to be cut")
        assert whole[0].seq < int(second["first"]) < whole[1].seq
        other = await stack.front_end()
        async with other.follow("s1", "t1") as stream:
            told = await asyncio.wait_for(stream.all(), 10)
        assert [(frame.id, frame.data) for frame in told[1:]] == [
            (frame.id, frame.data) for frame in whole[1:]
        ]
        assert told[0].data["status"] == "queued"
        # Cut anywhere in it, what is left comes.
        for at in range(len(told) - 1):
            async with other.follow("s1", "t1", told[at].id) as stream:
                rest = await asyncio.wait_for(stream.all(), 10)
            assert [frame.data for frame in rest] == [frame.data for frame in told[at + 1 :]]
    finally:
        await stack.close()


async def test_a_canceled_turn_that_never_began_is_told_so(place: Place) -> None:
    """It was queued, and then it was over: no more is said long after."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    try:
        client = await stack.front_end()
        async with client.process("s1", "hi", id="t1") as stream:
            await stream.until(lambda frames: frames)
            await client.stop("s1", "t1")
            at_once = await stream.all()
        await stack.worker()
        await wait_until(lambda: _log_is_empty(stack), "the turn's events to be cut")
        other = await stack.front_end()
        async with other.follow("s1", "t1") as stream:
            told = await asyncio.wait_for(stream.all(), 10)
        assert [frame.data["status"] for frame in told] == [frame.data["status"] for frame in at_once]
        check_whole(told)
    finally:
        await stack.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_liteagent_is_told_the_start_long_after(place: Place, stream: bool) -> None:
    """Frames begin with ``start`` and the user's words, as always."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1)
    try:
        await stack.worker()
        client = await stack.front_end()
        session = await client.init()
        async with client.chat(session, "/tokens 5", taskId="t1") as chat:
            await chat.all()
        keys = SessionKeys("dev", session)
        await wait_until(lambda: _log_is_empty(stack, keys), "the turn's events to be cut")
        other = await stack.front_end()
        params = {"sessionId": session, "taskId": "t1", "stream": str(stream).lower()}
        async with other.open("GET", "/liteAgent/v1/chat", params=params) as again:
            told = await asyncio.wait_for(again.all(), 10)
        assert [frame.data["type"] for frame in told] == ["taskStatus", "contentList", "text", "taskStatus"]
        assert told[0].data["content"]["status"] == "start"
        capture = Capture("liteagent", tuple(frame.raw + b"\n\n" for frame in told), stream=False)
        assert broken(capture) == set()
    finally:
        await stack.close()


@pytest.mark.parametrize("place_in_it", [None, 2, PIECE])
async def test_a_turn_is_told_long_after_its_end(
    after_grace: tuple[Stack, Client, list[Frame]], place_in_it: int | None
) -> None:
    """From its first event or from the middle: its message whole, its end, and the stream's end."""
    stack, client, frames = after_grace
    cursor = "" if place_in_it is None else frames[place_in_it].id
    async with _few_commands(stack), client.follow("s1", "t1", cursor) as stream:
        told = await asyncio.wait_for(stream.all(), 10)
    assert terminal(told) == frames[-1].data | {"sequence_number": told[-1].data["sequence_number"]}
    (message,) = [frame.data for frame in told if frame.data["object"] == "message"]
    assert message["content"][0]["text"] == TOKENS


async def test_a_session_is_told_long_after_from_an_old_cursor(
    after_grace: tuple[Stack, Client, list[Frame]],
) -> None:
    """Who follows the whole session gets the end, and then what comes next."""
    stack, client, frames = after_grace
    async with _few_commands(stack), client.follow("s1", cursor=frames[PIECE].id) as stream:
        await asyncio.wait_for(stream.until(terminal), 10)
        # Nothing more: not even for the broker.
        await client.turn("s1", "hi", id="t2")
        told = await stream.until(lambda all_: sum(1 for each in all_ if terminal([each])) == 2)
    assert terminal(told) == frames[-1].data


@pytest.mark.parametrize("whole", [False, True])
async def test_a_repeated_request_is_answered_long_after(
    after_grace: tuple[Stack, Client, list[Frame]], whole: bool
) -> None:
    """The same request again, as a stream or as one answer, with the same id, key or cursor."""
    stack, client, frames = after_grace
    for headers in ({}, {"Last-Event-ID": frames[PIECE].id}):
        body = asked("s1", "/tokens 30", id="t1", stream=not whole)
        async with (
            _few_commands(stack),
            client.open("POST", "/process", json=body, headers=headers) as stream,
        ):
            assert stream.response.status_code == 200
            if whole:
                await asyncio.wait_for(stream.response.aread(), 10)
                assert stream.response.json()["output"] == frames[-1].data["output"]
            else:
                assert terminal(await asyncio.wait_for(stream.all(), 10))


async def test_a_piece_leads_to_its_turn_though_it_was_cut(
    after_grace: tuple[Stack, Client, list[Frame]],
) -> None:
    """A POST that names no turn, with the cursor of a piece that was cut since."""
    _, client, frames = after_grace
    headers = {"Last-Event-ID": frames[PIECE].id}
    async with client.process("s1", "/tokens 30", headers=headers) as stream:
        told = await asyncio.wait_for(stream.all(), 10)
    assert terminal(told) == frames[-1].data


def _before_the_history(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], Awaitable[object]]) -> None:
    """Have something happen once, just before somebody reads from a history."""
    kept = Log.kept
    events = [happen]

    async def meanwhile(*arguments: Any, **more: Any) -> Any:
        if events:
            await events.pop()()
        return await kept(*arguments, **more)

    monkeypatch.setattr(Log, "kept", meanwhile)


@pytest.mark.parametrize("how", ["stream", "rest", "session", "whole"])
async def test_a_new_epoch_between_log_and_history_loses_nothing(
    after_grace: tuple[Stack, Client, list[Frame]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The log told where its hole ends; by the time the history is asked for it, every id there is another one."""
    stack, client, frames = after_grace
    before = await stack.log.meta(KEYS)
    assert before is not None

    async def begin_epoch() -> None:
        # A writer comes that has seen more than there is.
        seen = Claim(1, "", before.epoch, before.seq + 1)
        assert isinstance(await stack.tasks.renew(TaskRef("dev", "s1", "t1"), seen), Ended)

    _before_the_history(monkeypatch, begin_epoch)
    if how == "whole":
        answer = await client.http.post("/process", json=asked("s1", "/tokens 30", id="t1", stream=False))
        assert answer.json().get("output") == frames[-1].data["output"], answer.text
    else:
        cursor = "" if how == "stream" else frames[PIECE].id
        async with client.follow("s1", "" if how == "session" else "t1", cursor) as stream:
            told = await asyncio.wait_for(stream.until(terminal), 10)
        (message,) = [frame.data for frame in told if frame.data["object"] == "message"]
        assert message["content"][0]["text"] == TOKENS
        if how == "stream":
            check_whole(told)
    after = await stack.log.meta(KEYS)
    assert after is not None
    assert after.former == {before.epoch: before.seq}


@pytest.mark.parametrize("how", ["stream", "rest", "session", "whole"])
async def test_a_clear_between_log_and_history_is_told(
    after_grace: tuple[Stack, Client, list[Frame]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What the hole held is gone, and so is all that the client followed: nothing of it is told as if it were whole."""
    stack, client, frames = after_grace
    meta = await stack.log.meta(KEYS)
    assert meta is not None
    _before_the_history(monkeypatch, partial(stack.tasks.clear, KEYS, meta.epoch))
    if how == "whole":
        answer = await client.http.post("/process", json=asked("s1", "/tokens 30", id="t1", stream=False))
        assert (answer.status_code, answer.json()["code"]) == (410, "cursor_gone"), answer.text
    else:
        cursor = "" if how == "stream" else frames[PIECE].id
        async with client.follow("s1", "" if how == "session" else "t1", cursor) as stream:
            told = await asyncio.wait_for(stream.all(), 10)
        assert not terminal(told)


@pytest.mark.parametrize("how", ["turn", "session"])
async def test_a_trim_between_log_and_history_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What a follower has missed is cut from the history before it is read: its stream ends, and it comes back to a 410."""
    stack = Stack(place, log_grace_seconds=0, lease_seconds=1, log_max_bytes=65_536)
    try:
        await stack.worker()
        client = await stack.front_end()
        frames = await client.turn("s1", "/tokens 30", id="t1")
        await wait_until(lambda: _log_is_empty(stack), "the turn's events to be cut")

        async def talk() -> None:
            for number in range(2, 9):
                await client.turn("s1", "x" * 12_000, id=f"t{number}")

        _before_the_history(monkeypatch, talk)
        # Another front end has nothing in its ring.
        other = await stack.front_end()
        asked_for = ("s1", "t1" if how == "turn" else "", frames[PIECE].id)
        async with other.follow(*asked_for) as stream:
            assert await asyncio.wait_for(stream.all(), 20) == []
        async with other.follow(*asked_for) as stream:
            await _gone(stream)
    finally:
        await stack.close()


@pytest.fixture
async def after_trim(place: Place) -> AsyncIterator[tuple[Stack, Client, list[Frame]]]:
    """A session in which so much was said since its first turn that not even that turn's end is kept."""
    stack = Stack(place, log_max_bytes=65_536, log_max_events=100)
    await stack.worker()
    client = await stack.front_end()
    frames = await client.turn("s1", "/tokens 30", id="t1")
    for number in range(2, 9):
        await client.turn("s1", "x" * 12_000, id=f"t{number}")
    other = await stack.front_end()
    yield stack, other, frames
    await stack.close()


async def test_a_turn_whose_end_is_gone_is_gone(after_trim: tuple[Stack, Client, list[Frame]]) -> None:
    """Nothing of it can be told: 410 at once, as a stream, a repeat, one answer, and by a cursor of it."""
    stack, client, frames = after_trim
    assert await stack.status("s1", "t1") == "completed"
    for cursor in ("", frames[PIECE].id):
        async with client.follow("s1", "t1", cursor) as stream:
            await _gone(stream)
    for more in ({"id": "t1"}, {"id": "t1", "stream": False}):
        async with client.process("s1", "/tokens 30", **more) as stream:
            await _gone(stream)


async def test_a_cursor_never_leads_to_another_turn(after_trim: tuple[Stack, Client, list[Frame]]) -> None:
    """The turn of a cursor is gone, others of its session are not: 410, and nobody else's answer."""
    _, client, frames = after_trim
    for headers in ({"Last-Event-ID": frames[PIECE].id}, {"Last-Event-ID": frames[-1].id}):
        async with client.process("s1", "hi", headers=headers) as stream:
            await _gone(stream)
        async with client.chat("s1", "hi", headers=headers) as stream:
            await _gone(stream)


async def test_the_place_before_the_first_event_leads_to_no_turn(client: Client) -> None:
    """A client that has seen nothing has nothing to repeat."""
    epoch = (await client.turn("s1", "hi", id="t1"))[0].id.partition("-")[0]
    for ask in (client.process, client.chat):
        async with ask("s1", "hi", headers={"Last-Event-ID": f"{epoch}-0"}) as stream:
            await _gone(stream)


async def test_a_session_of_which_messages_are_gone_is_not_continued(
    after_trim: tuple[Stack, Client, list[Frame]],
) -> None:
    """What a follower of a whole session has missed was cut from log and history: it gets 410, not the rest alone."""
    _, client, frames = after_trim
    async with client.follow("s1", cursor=frames[PIECE].id) as stream:
        await _gone(stream)
    # Without a cursor it is the beginning of what is left.
    async with client.follow("s1") as stream:
        left = await stream.until(terminal)
    # All of that is there, from each of its own cursors on, too.
    async with client.follow("s1", cursor=left[0].id) as stream:
        assert [frame.raw for frame in await stream.until(terminal)] == [frame.raw for frame in left[1:]]


async def _gone(stream: Any) -> None:
    body = await asyncio.wait_for(stream.response.aread(), 10)
    assert stream.response.status_code == 410, body
    assert b"cursor_gone" in body


async def test_a_cursor_ahead_of_the_log_is_gone(client: Client) -> None:
    """The broker lost what the client had from it: that is no malformed request of the client's."""
    frames = await client.turn("s1", "hi", id="t1")
    epoch, _, seq = frames[-1].id.partition("-")
    for response in ("t1", ""):
        async with client.follow("s1", response, f"{epoch}-{int(seq) + 5}") as stream:
            await _gone(stream)


@pytest.mark.parametrize("how", ["flushall", "del", "expiry", "task"])
async def test_whose_session_vanishes_without_a_word_is_told(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Followers of a turn, of its session and of one answer learn that nothing more can come."""
    monkeypatch.setattr(hub, "LOOK_SECONDS", 0.6)
    client = await stack.front_end()
    broker: Any = stack.broker.sessions
    async with client.process("s1", "hi", id="t1") as turn, client.follow("s1") as session:
        await turn.until(lambda frames: frames)
        await session.until(lambda frames: frames)
        answer = asyncio.create_task(
            client.http.post("/process", json=asked("s1", "hi", id="t1", stream=False))
        )
        await wait_until(lambda: stack.hubs[0].followers == 3, "all three to follow")
        if how == "flushall":
            await at_each(broker, lambda each: each.flushall())
        elif how == "task":
            await broker.delete(KEYS.task("t1"))
            await broker.zrem(KEYS.live, "t1")
        else:
            for key in await names_of(broker, KEYS.prefix + "*"):
                await broker.execute_command(*(("DEL", key) if how == "del" else ("PEXPIRE", key, 1)))
        await asyncio.wait_for(turn.all(), 10)
        assert (await asyncio.wait_for(answer, 10)).status_code in {404, 410}
        if how != "task":
            await asyncio.wait_for(session.all(), 10)
