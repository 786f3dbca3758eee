"""Stopping: when `/stop` returns, the terminal event is in the log, and nothing follows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.session.entry import END

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client


async def end_of(stack: Stack, session: str, task: str) -> dict[str, Any]:
    """The task's terminal event as it is in the log right now; checks that nothing follows it."""
    import orjson

    entries = [entry for entry in await stack.entries(session) if entry.task == task]
    assert [entry.kind for entry in entries].count(END) == 1
    assert entries[-1].kind == END
    event: dict[str, Any] = orjson.loads(entries[-1].event)
    return event


async def test_a_running_turn_is_stopped_between_tokens(client: Client, stack: Stack) -> None:
    """The text so far is kept as an incomplete message, and followers see the end."""
    async with client.process("s1", "/tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        answer = await client.stop("s1")
        assert answer.json() == {"sessionId": "s1"}
        ended = await end_of(stack, "s1", "t1")
        frames = await stream.all()
    check_whole(frames)
    assert ended["status"] == "canceled"
    (message,) = ended["output"]
    assert message["status"] == "incomplete"
    assert message["content"][0]["text"] == text_of(frames)
    assert terminal(frames) == ended


async def test_a_turn_is_stopped_inside_a_slow_tool(place: Place) -> None:
    """The worker gives the turn up at once: its slot is free again long before the tool, or its lease, would end."""
    stack = Stack(place, lease_seconds=300)
    try:
        client = await stack.front_end()
        worker = await stack.worker()
        async with client.process("s1", "/slow 60", id="t1") as stream:
            await stream.until(lambda frames: calls_of(frames, "plugin_call"))
            assert (await client.stop("s1", "t1")).json() == {"sessionId": "s1", "taskId": "t1"}
            assert (await end_of(stack, "s1", "t1"))["status"] == "canceled"
            check_whole(await stream.all())
        await wait_until(lambda: not len(worker.leases), "the worker to give up the stopped turn")
    finally:
        await stack.close()


async def test_a_queued_turn_is_stopped_before_it_began(stack: Stack) -> None:
    """With no worker at all, a stop still ends the turn, and a worker that comes later leaves it alone."""
    client = await stack.front_end()
    async with client.process("s1", "/tokens 5", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 1)
        await client.stop("s1", "t1")
        frames = await stream.all()
    assert [frame.data["status"] for frame in frames] == ["queued", "canceled"]
    await stack.worker()
    assert text_of(await client.turn("s1", "next")) == "You said: next"
    assert (await end_of(stack, "s1", "t1"))["status"] == "canceled"


async def test_a_turn_that_waits_its_turn_is_stopped(client: Client, stack: Stack) -> None:
    """Stopping the second turn of a serial session leaves the first and lets the third run."""
    async with client.process("s1", "/tokens 200 10", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 8)
        async with (
            client.process("s1", "two", id="t2") as second,
            client.process("s1", "three", id="t3") as third,
        ):
            await second.until(lambda frames: len(frames) >= 1)
            await client.stop("s1", "t2")
            assert terminal(await second.all()) == await end_of(stack, "s1", "t2")
            assert await stack.status("s1", "t1") == "running"
            await client.stop("s1", "t1")
            assert text_of(await third.all()) == "You said: three"


async def test_a_parked_turn_is_stopped(client: Client, stack: Stack) -> None:
    """A stop ends a turn that waits for its client; a late answer is refused with 409."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await wait_until(lambda: _is(stack, "t1", "parked"), "the turn to park")
        await client.stop("s1")
        assert terminal(await stream.all()) == await end_of(stack, "s1", "t1")
    late = await client.callback("s1", call["call_id"], 1)
    assert (late.status_code, late.json()["reason"]) == (409, "call_ended")


async def test_stopping_twice_and_at_once_ends_once(client: Client, stack: Stack) -> None:
    """Ten stops of one turn: each succeeds, one terminal event."""
    other = await stack.front_end()
    async with client.process("s1", "/tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 6)
        answers = await asyncio.gather(*(each.stop("s1", "t1") for each in (client, other) for _ in range(5)))
        assert {answer.status_code for answer in answers} == {200}
        check_whole(await stream.all())
    await end_of(stack, "s1", "t1")
    assert (await client.stop("s1", "t1")).status_code == 200


async def test_all_turns_of_a_session_are_stopped(client: Client, stack: Stack) -> None:
    """Without a task, the running turn and those that wait all end."""
    async with client.process("s1", "/tokens 1000 10", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 6)
        async with client.process("s1", "two", id="t2") as second:
            await second.until(lambda frames: len(frames) >= 1)
            await client.stop("s1")
            for stream in (first, second):
                ended = terminal(await stream.all())
                assert ended is not None
                assert ended["status"] == "canceled"


async def test_the_next_turn_knows_what_was_said_before_a_stop(client: Client, stack: Stack) -> None:
    """The stopped turn's question and the text so far are in the memory of the next one."""
    async with client.process("s1", "/tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        await client.stop("s1")
    (element,) = await stack.broker.sessions.lrange("ts:{dev/s1}:memory", 0, -1)  # type: ignore[misc]
    assert b"/tokens 1000 10" in element
    assert b"tok0 tok1" in element
    assert text_of(await client.turn("s1", "and now?")) == "You said: and now?"


async def test_an_operator_stops_a_turn_of_another_owner(client: Client, stack: Stack) -> None:
    """An admin key names the owner; a chat key cannot."""
    operator = stack.client(client.base_url, stack.admin)
    async with client.process("s1", "/tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 6)
        params = {"sessionId": "s1", "owner": "dev"}
        answer = await operator.http.post("/liteAgent/v1/stop", params=params)
        assert answer.status_code == 200
        assert terminal(await stream.all()) == await end_of(stack, "s1", "t1")


async def _is(stack: Stack, task: str, status: str) -> bool:
    return await stack.status("s1", task) == status
