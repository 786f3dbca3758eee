"""Inputs with calls and results in them: some answer a turn that waits for them, others tell what was said elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.client import asked, calls_of, check_whole, terminal, text_of

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack


def user(text: str) -> dict[str, Any]:
    """The user's words."""
    message: dict[str, Any] = asked("", text)["input"][0]
    return message


def call(name: str, tool: str = "weather") -> dict[str, Any]:
    """A call, told of."""
    data = {"call_id": name, "name": tool, "arguments": "{}"}
    return {"type": "function_call", "role": "assistant", "content": [{"type": "data", "data": data}]}


def output(name: str, result: str) -> dict[str, Any]:
    """Its result."""
    data = {"call_id": name, "output": result}
    return {"type": "function_call_output", "role": "tool", "content": [{"type": "data", "data": data}]}


async def test_a_history_from_elsewhere_that_ends_with_results_is_a_turn(
    client: Client, stack: Stack
) -> None:
    """A client that keeps the conversation itself sends all of it; in a session or without one, and may repeat it."""
    told = [
        user("/call weather"),
        call("c1"),
        call("c2", "delete_everything"),
        output("c1", "sun"),
        output("c2", "sea"),
    ]
    for session, name in (("", "t1"), ("s1", "t1"), ("s1", "t1"), ("s1", "t2")):
        frames = await client.turn(session, "", input=told, id=name)
        check_whole(frames)
        assert text_of(frames) == "The result is sun, sea."
    assert {entry.task for entry in await stack.entries("s1")} == {"t1", "t2"}


async def test_what_a_client_tells_of_is_not_run(client: Client) -> None:
    """A call without a result, of a tool of ours that needs consent: none was given."""
    frames = await client.turn("s1", "", input=[user("hi"), call("c1", "delete_everything")])
    assert terminal(frames)
    assert not calls_of(frames, "mcp_approval_request")
    assert "is gone" not in text_of(frames)


async def test_a_whole_conversation_answers_the_turn_that_waits(client: Client, stack: Stack) -> None:
    """The call is ours: the turn goes on, and no other begins."""
    async with client.process("s1", "/call weather", id="t1") as stream:
        asked_for = calls_of(await stream.until(calls_of))[0]["call_id"]
        told = [user("/call weather"), call(asked_for), output(asked_for, "sun")]
        for _ in range(2):
            rest = await client.turn("s1", "", input=told)
            assert text_of(rest) == "The result is sun."
        check_whole(await stream.all())
    assert {entry.task for entry in await stack.entries("s1")} == {"t1"}


async def test_words_behind_an_answer_that_is_awaited_are_refused(client: Client, stack: Stack) -> None:
    """They would wait for a turn that waits for that answer, which nobody would give it."""
    async with client.process("s1", "/call weather", id="t1") as stream:
        asked_for = calls_of(await stream.until(calls_of))[0]["call_id"]
        told = [call(asked_for), output(asked_for, "sun")]
        refused = await client.http.post("/process", json=asked("s1", "", input=[*told, user("and now?")]))
        assert refused.status_code == 422
        assert asked_for in refused.json()["message"]
        await client.turn("s1", "", input=told)
        check_whole(await stream.all())
    # Nothing waits for it now: it is what was said before.
    frames = await client.turn("s1", "", input=[*told, user("and now?")], id="t2")
    assert text_of(frames) == "You said: and now?"
    assert {entry.task for entry in await stack.entries("s1")} == {"t1", "t2"}


async def test_a_call_of_another_session_is_known_to_nobody_else(client: Client, stack: Stack) -> None:
    """Its result without the call is an unknown answer, as ever; with the call it is told, and answers nothing."""
    async with client.process("s1", "/call weather", id="t1") as stream:
        asked_for = calls_of(await stream.until(calls_of))[0]["call_id"]
        lone = await client.http.post("/process", json=asked("s2", "", input=[output(asked_for, "sun")]))
        await client.turn("s2", "hi")
        unknown = await client.http.post("/process", json=asked("s2", "", input=[output(asked_for, "sun")]))
        assert (lone.status_code, unknown.status_code) == (404, 404)
        await client.turn("s2", "", input=[user("hi"), call(asked_for), output(asked_for, "sun")])
        assert await stack.status("s1", "t1") == "parked"
        await client.callback("s1", asked_for, "rain")
        assert text_of(await stream.all()) == "The result is rain."
