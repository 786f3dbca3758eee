"""Following and resuming: from any front end, from any point, each event once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from tests.support.client import asked, calls_of, check_whole, large_text, terminal, text_of
from tests.support.stack import Stack
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client, Frame


def raw_of(frames: list[Frame]) -> list[bytes]:
    """The frames' own bytes."""
    return [frame.raw for frame in frames]


async def test_two_halves_joined_are_the_whole(client: Client) -> None:
    """A client that is cut off in mid-stream comes back with its last id and misses nothing."""
    async with client.process("s1", "/tokens 60 5", id="t1") as stream:
        first = list(await stream.until(lambda frames: len(frames) >= 6))
    async with client.follow("s1", "t1", first[-1].id) as stream:
        second = await stream.all()
    check_whole(first + second)
    assert text_of(first + second) == "".join(f"tok{number} " for number in range(60))


async def test_another_front_end_shows_the_same_turn(client: Client, stack: Stack) -> None:
    """A turn that one front end took is followed through another, from its start and from its middle."""
    other = await stack.front_end()
    async with client.process("s1", "/tokens 40 5", id="t1") as mine:
        begun = list(await mine.until(lambda frames: len(frames) >= 6))
        middle = begun[-1].id
        async with other.follow("s1", "t1") as from_start, other.follow("s1", "t1", middle) as from_middle:
            whole, rest, own = await from_start.all(), await from_middle.all(), await mine.all()
    check_whole(whole)
    assert raw_of(whole) == raw_of(own)
    assert raw_of(whole[len(begun) :]) == raw_of(rest)


async def test_every_cursor_of_a_finished_turn_resumes_exactly(client: Client) -> None:
    """Whatever a client saw last, what it gets next is what comes next."""
    whole = await client.turn("s1", "/tool add 1 2", id="t1")
    for at, frame in enumerate(whole):
        async with client.follow("s1", "t1", frame.id) as stream:
            assert raw_of(await stream.all()) == raw_of(whole[at + 1 :])


async def test_a_reconnect_costs_the_broker_a_subscription_and_one_script(real: Place) -> None:
    """One read brings what a caller's right to the session depends on, and what was missed; also when that is nothing."""
    stack = Stack(real)
    try:
        await stack.worker()
        first = await stack.front_end()
        whole = await first.turn("s1", "/tokens 30", id="t1")
        # The broker may have to be taught the script.
        async with first.follow("s1", "t1", whole[0].id) as stream:
            await stream.all()
        for missed in (4, 0):
            # One that has nothing of the session; its followers that get nothing new are soon sent a comment.
            client = await stack.front_end(heartbeat_seconds=0.05)
            with Redis.from_url(real.url) as watcher, watcher.monitor() as monitor:
                async with client.follow("s1", cursor=whole[-1 - missed].id) as stream:
                    await stream.until(lambda _, stream=stream: b": ping\n\n" in stream.raw)
                await stack.broker.sessions.echo("all is read")
                sent = _commands_on(SessionKeys("dev", "s1"), monitor)
            assert raw_of(stream.frames) == raw_of(whole[len(whole) - missed :])
            assert sorted(sent) == ["EVALSHA", "HMGET", "SUBSCRIBE", "XRANGE"]
    finally:
        await stack.close()


def _commands_on(keys: SessionKeys, monitor: Any) -> list[str]:
    """What was asked about a session before an ``ECHO``, scripts' own commands included."""
    sent: list[str] = []
    while not (command := monitor.next_command()["command"]).startswith("ECHO"):
        if any(key in command for key in (keys.meta, keys.log, keys.tail)):
            sent.append(command.split()[0].upper())
    return sent


async def test_posting_again_with_the_last_id_resumes(client: Client, stack: Stack) -> None:
    """A client that re-posts its body with `Last-Event-ID` gets the rest; no second turn is made."""
    whole = await client.turn("s1", "/tokens 5", id="t1")
    for more in ({"id": "t1"}, {}):
        async with client.process(
            "s1", "/tokens 5", headers={"Last-Event-ID": whole[4].id}, **more
        ) as stream:
            assert raw_of(await stream.all()) == raw_of(whole[5:])
    tasks = {entry.task for entry in await stack.entries("s1")}
    assert tasks == {"t1"}


async def test_posting_a_known_id_again_shows_the_same_turn(client: Client) -> None:
    """The response id is an idempotency key of its own; how the answer is delivered is no part of what is asked."""
    whole = await client.turn("s1", "/tokens 5", id="t1")
    assert raw_of(await client.turn("s1", "/tokens 5", id="t1")) == raw_of(whole)
    body: dict[str, Any] = dict(reversed(asked("s1", "/tokens 5", id="t1", stream=False).items()))
    answer = await client.http.post("/process", json=body)
    assert answer.json() == whole[-1].data


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "order-1"}], ids=["alone", "with a key"])
@pytest.mark.parametrize("name", ["id", "response_id"])
async def test_a_known_id_with_another_body_is_refused(
    client: Client, stack: Stack, name: str, headers: dict[str, str]
) -> None:
    """It would be answered with what was said to something else; no turn is made of it, and none is lost."""
    whole = await client.turn("s1", "/tokens 5", **{name: "t1"}, headers=headers)
    again = asked("s1", "something else", **{name: "t1"})
    answer = await client.http.post("/process", json=again, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_mismatch"
    assert {entry.task for entry in await stack.entries("s1")} == {"t1"}
    assert raw_of(await client.turn("s1", "/tokens 5", **{name: "t1"}, headers=headers)) == raw_of(whole)
    async with client.follow("s1", "t1") as stream:
        assert raw_of(await stream.all()) == raw_of(whole)


async def test_a_running_turns_id_with_another_body_is_refused(client: Client) -> None:
    """Also while it runs, and while it waits for its client; its answers are taken under its id."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        answer = await client.http.post("/process", json=asked("s1", "something else", id="t1"))
        assert answer.status_code == 422
        data = {"call_id": call["call_id"], "output": "done"}
        message = {
            "role": "tool",
            "type": "function_call_output",
            "content": [{"type": "data", "data": data}],
        }
        body: dict[str, Any] = {"session_id": "s1", "id": "t1", "input": [message]}
        for _ in range(2):
            async with client.open("POST", "/process", json=body) as rest:
                event = terminal(await rest.all())
                assert event is not None
                assert event["status"] == "completed"
        body = {"session_id": "s1", "id": "t1", "reconnect": True}
        async with client.open("POST", "/process", json=body) as again:
            assert raw_of(await again.all()) == raw_of(await stream.all())


async def test_a_known_task_id_with_another_body_is_refused(client: Client) -> None:
    """LiteAgent's clients name their tasks, too. The number is one that their clients compare."""
    session = await client.init()
    async with client.chat(session, "/tokens 3", taskId="t1") as stream:
        whole = await stream.all()
    async with client.chat(session, "/tokens 3", taskId="t1") as stream:
        assert raw_of(await stream.all()) == raw_of(whole)
    async with client.chat(session, "something else", taskId="t1") as stream:
        assert stream.response.status_code == 422
    async with client.chat(
        session, "/tokens 3", taskId="t1", headers={"Last-Event-ID": whole[2].id}
    ) as stream:
        assert raw_of(await stream.all()) == raw_of(whole[3:])


async def test_an_idempotency_key_gives_the_same_turn(client: Client) -> None:
    """A repeat with the same key and body, even without a session, finds the first turn."""
    headers = {"Idempotency-Key": "order-1"}
    first = await client.turn("", "/tokens 3", headers=headers)
    assert raw_of(await client.turn("", "/tokens 3", headers=headers)) == raw_of(first)
    answer = await client.http.post("/process", json=asked("", "another body"), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_mismatch"


async def test_without_a_session_each_turn_gets_its_own(client: Client) -> None:
    """Two clients that name no session never meet."""
    sessions = {(await client.turn("", "hi"))[0].data["session_id"] for _ in range(2)}
    assert len(sessions) == 2


async def test_reconnect_follows_the_running_turn_from_its_start(client: Client) -> None:
    """`{"reconnect": true}` needs only the session."""
    async with client.process("s1", "/tokens 40 5", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 10)
        body = {"reconnect": True, "session_id": "s1"}
        async with client.open("POST", "/process", json=body) as again:
            whole = await again.all()
        assert raw_of(whole) == raw_of(await stream.all())
    check_whole(whole)


async def test_a_session_is_followed_across_its_turns(client: Client) -> None:
    """Without a task the whole session is shown, old turns and new."""
    await client.turn("s1", "/tokens 2", id="t1")
    async with client.follow("s1") as stream:
        await stream.until(terminal)
        await client.turn("s1", "/tokens 2", id="t2")
        frames = await stream.until(lambda all_: sum(1 for frame in all_ if terminal([frame])) == 2)
    cursors = [frame.seq for frame in frames]
    assert cursors == sorted(set(cursors))


@pytest.mark.parametrize("cursor", ["x", "1", "1-x", "1-2-3", "-1"])
async def test_a_malformed_cursor_is_refused(client: Client, cursor: str) -> None:
    """A cursor that is not ours is a 400 that says so."""
    await client.turn("s1", "hi", id="t1")
    async with client.follow("s1", "t1", cursor) as stream:
        assert stream.response.status_code == 400
        assert b"cursor_malformed" in await stream.response.aread()


async def test_a_cursor_from_before_a_clear_is_gone(client: Client) -> None:
    """After a clear, old cursors and old tasks are answered 410, and the session begins anew."""
    old = await client.turn("s1", "hi", id="t1")
    assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})).status_code == 200
    for response in ("t1", ""):
        async with client.follow("s1", response, old[3].id) as stream:
            assert stream.response.status_code == 410
            assert b"follow it again without a cursor" in await stream.response.aread()
    async with client.follow("s1", "t1") as stream:
        assert stream.response.status_code == 410
        assert b"no longer kept" in await stream.response.aread()
    new = await client.turn("s1", "hi", id="t2")
    check_whole(new)
    assert new[0].id.partition("-")[0] > old[0].id.partition("-")[0]


async def test_trimmed_events_are_replaced_by_whole_messages(stack: Stack) -> None:
    """A cursor before the log's head gets the completed messages it missed, then the log."""
    await stack.worker(log_max_bytes=65_536)
    client = await stack.front_end(log_max_bytes=65_536)
    first = await client.turn("s1", "/tokens 5", id="t1")
    await client.turn("s1", large_text(4), id="t2")
    async with client.follow("s1", cursor=first[4].id) as stream:
        frames = await stream.until(lambda all_: sum(1 for frame in all_ if terminal([frame])) == 2)
    cursors = [frame.seq for frame in frames]
    assert cursors == sorted(set(cursors))
    texts = [
        frame.data["content"][0]["text"]
        for frame in frames
        if frame.data["object"] == "message" and frame.data["status"] == "completed"
    ]
    assert texts == ["tok0 tok1 tok2 tok3 tok4 ", f"You said: {large_text(4)}"]
    assert text_of(frames) == ""


async def test_a_message_whose_beginning_was_trimmed_comes_whole(stack: Stack) -> None:
    """A follower that comes when the head of a message is gone gets it whole, and no torn pieces."""
    await stack.worker(log_max_bytes=65_536)
    client = await stack.front_end(log_max_bytes=65_536)
    for task, text in (("t1", large_text(6)), ("t2", large_text(6)), ("t3", "/tokens 20")):
        await client.turn("s1", text, id=task)
    # Another front end has nothing in its ring.
    other = await stack.front_end(log_max_bytes=65_536)
    async with other.follow("s1", "t2") as stream:
        frames = await stream.all()
    assert terminal(frames)
    assert text_of(frames) == ""
    (message,) = [frame.data for frame in frames if frame.data["object"] == "message"]
    assert message["content"][0]["text"] == f"You said: {large_text(6)}"


async def test_many_followers_see_the_same(client: Client) -> None:
    """Fifty followers of one turn all get each event once, in order."""
    import asyncio

    async def watch() -> list[bytes]:
        async with client.follow("s1", "t1") as stream:
            return raw_of(await stream.all())

    async with client.process("s1", "/tokens 50 5", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 3)
        watched = await asyncio.gather(*(watch() for _ in range(50)))
        own = raw_of(await stream.all())
    assert all(each == own for each in watched)


async def test_a_silent_stream_gets_heartbeats(stack: Stack) -> None:
    """While the agent is silent, comments keep the connection alive."""
    await stack.worker()
    client = await stack.front_end(heartbeat_seconds=0.05)
    async with client.process("s1", "/slow 0.4") as stream:
        await stream.all()
    assert stream.raw.count(b": ping\n\n") >= 3
