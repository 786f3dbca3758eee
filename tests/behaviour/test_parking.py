"""Parking: a turn that waits for its client holds no worker, and is answered once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.waiting import wait_until
from turnstream.api.turns import callbacks
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    import pytest
    from redis.asyncio import Redis

    from tests.support.client import Client, Frame
    from tests.support.stack import Stack

PARKED = 50


async def test_parked_turns_hold_no_worker(stack: Stack) -> None:
    """With two slots and fifty parked turns a further turn runs at once; then all fifty complete."""
    await stack.worker(max_jobs=2)
    client = await stack.front_end()

    async def park(number: int) -> tuple[str, str]:
        async with client.process(f"p{number}", "/call f {}", id="t") as stream:
            (call,) = calls_of(await stream.until(calls_of))
        return f"p{number}", call["call_id"]

    calls = await asyncio.gather(*(park(number) for number in range(PARKED)))
    sessions = [session for session, _ in calls]
    await wait_until(lambda: _all_are(stack, sessions, "parked"), "all of them to park")
    assert text_of(await client.turn("s1", "/tokens 5")) == "tok0 tok1 tok2 tok3 tok4 "

    async def answer(session: str, call: str) -> list[Frame]:
        assert (await client.callback(session, call, session)).status_code == 200
        async with client.follow(session, "t") as stream:
            frames: list[Frame] = await stream.all()
            return frames

    for (session, _), frames in zip(
        calls, await asyncio.gather(*(answer(*each) for each in calls)), strict=True
    ):
        check_whole(frames)
        assert text_of(frames) == f"The result is {session}."


async def test_an_answer_through_another_front_end_resumes(client: Client, stack: Stack) -> None:
    """Nothing about a parked turn lives in a process."""
    other = await stack.front_end()
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert (await other.callback("s1", call["call_id"], "yes")).status_code == 200
        assert text_of(await stream.all()) == "The result is yes."


async def test_an_answer_is_told_though_its_call_was_read_at_another_primary(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the turn was stopped, which the replica that was promoted since has not heard of."""
    read: list[Any] = []

    async def first_elsewhere(redis: Redis, *words: Any, **more: Any) -> Any:
        read.extend([words] * (words[0] == "HGET"))
        return None if words[0] == "HGET" and len(read) == 1 else await command(redis, *words, **more)

    monkeypatch.setattr(callbacks, "command", first_elsewhere)
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert (await client.callback("s1", call["call_id"], "yes")).status_code == 200
        frames = await stream.all()
    assert len(read) == 2
    assert [each["output"] for each in calls_of(frames, "function_call_output")] == ["yes"]
    assert text_of(frames) == "The result is yes."


async def test_several_calls_are_answered_in_any_order_through_any_front_end(
    client: Client, stack: Stack
) -> None:
    """Three calls at once, the last one first, each through another front end; each finds its place."""
    others = [await stack.front_end(), client, await stack.front_end()]
    session = await client.init()
    async with client.chat(session, "/calls 3") as stream:
        said = await stream.until(lambda frames: len([f for f in frames if f.event == "functionCall"]) == 3)
        calls = [frame.data["content"]["id"] for frame in said if frame.event == "functionCall"]
        for other, number in zip(others, (2, 0, 1), strict=True):
            answer = await other.callback(session, calls[number], f"out{number}")
            assert answer.status_code == 200
        frames = await stream.all()
    told = [
        frame.data["content"]["status"] if frame.data["type"] == "taskStatus" else frame.data["type"]
        for frame in frames
        if frame.event == "message" and frame.data["type"] in {"taskStatus", "toolReturn"}
    ]
    assert told == ["start", "toolsStart", *["toolReturn"] * 3, "toolsDone", "done"]
    parts = "".join(frame.data["part"] for frame in frames if frame.event == "chunk")
    assert parts == "The result is out0, out1, out2."


async def test_an_answer_given_twice_counts_once(client: Client) -> None:
    """The first answer stands; a repeat, even another one, gets the first outcome, also after the end."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        answers = await asyncio.gather(*(client.callback("s1", call["call_id"], "first") for _ in range(5)))
        frames = await stream.all()
    answers.append(await client.callback("s1", call["call_id"], "second"))
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
    assert text_of(frames) == "The result is first."
    assert len(calls_of(frames, "function_call_output")) == 1


async def test_an_unknown_call_is_a_404(client: Client) -> None:
    """A call that the session never made, or another session's, is not found."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
    await client.turn("s2", "hi")
    for session, name in (("s1", "call_none"), ("s2", call["call_id"])):
        answer = await client.callback(session, name, 1)
        assert (answer.status_code, answer.json()["reason"]) == (404, "call_not_found")


async def test_an_answer_through_process_goes_on_with_the_rest(client: Client) -> None:
    """A further `/process` whose input ends with the call's output continues the parked turn."""
    async with client.process("s1", "/calls 2", id="t1") as stream:
        calls = calls_of(await stream.until(lambda frames: len(calls_of(frames)) == 2))
    outputs = [
        {
            "role": "tool",
            "type": "function_call_output",
            "content": [{"type": "data", "data": {"call_id": call["call_id"], "output": f"out{number}"}}],
        }
        for number, call in enumerate(calls)
    ]
    async with client.open("POST", "/process", json={"session_id": "s1", "input": outputs}) as rest:
        frames = await rest.all()
    ended = terminal(frames)
    assert ended is not None
    assert ended["id"] == "t1"
    assert text_of(frames) == "The result is out0, out1."


async def test_a_sub_agents_call_parks_the_whole_turn(client: Client) -> None:
    """A sub-agent asks the client; its answer goes to it, and its result to the agent."""
    async with client.process("s1", "/dispatch /call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s1", call["call_id"], "from the client")
        frames = await stream.all()
    check_whole(frames)
    assert len(calls_of(frames, "component_call")) == 1
    assert "The result is from the client." in text_of(frames)


async def test_an_approval_must_be_a_decision(client: Client) -> None:
    """Anything but yes or no is refused with the field's name, and the turn still waits."""
    async with client.process("s1", "/approve", id="t1") as stream:
        (request,) = calls_of(
            await stream.until(lambda frames: calls_of(frames, "mcp_approval_request")),
            "mcp_approval_request",
        )
        wrong = await client.callback("s1", request["id"], {"approve": "perhaps"})
        assert wrong.status_code == 422
        assert "approve" in wrong.json()["message"]
        await client.callback("s1", request["id"], {"approve": True})
        assert terminal(await stream.all())


async def _all_are(stack: Stack, sessions: list[str], status: str) -> bool:
    return all([await stack.status(session, "t") == status for session in sessions])
