"""One chat over HTTP: every command of the demo agent, as an Agent API client sees it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.client import Client, Frame
    from tests.support.stack import Stack


def types_of(frames: list[Frame]) -> list[str]:
    """The types of the completed messages, in order."""
    return [
        frame.data["type"]
        for frame in frames
        if frame.data["object"] == "message" and frame.data["status"] == "completed"
    ]


async def test_text_streams_token_by_token(client: Client) -> None:
    """`/tokens` comes as deltas, then whole, and the terminal event repeats it whole."""
    frames = await client.turn("s1", "/tokens 5")
    check_whole(frames)
    assert text_of(frames) == "tok0 tok1 tok2 tok3 tok4 "
    ended = terminal(frames)
    assert ended is not None
    assert ended["status"] == "completed"
    assert ended["output"][0]["content"][0]["text"] == "tok0 tok1 tok2 tok3 tok4 "
    assert ended["usage"]["total_tokens"] > 0
    assert ended["completed_at"] >= ended["created_at"]
    assert ended["session_id"] == "s1"


async def test_anything_else_is_echoed(client: Client) -> None:
    """A plain sentence is answered with itself."""
    assert text_of(await client.turn("s1", "hello there")) == "You said: hello there"


async def test_a_server_tool_is_called_and_its_result_used(client: Client) -> None:
    """`/tool` shows the call, its result, and an answer made of it."""
    frames = await client.turn("s1", "/tool add 1 2")
    check_whole(frames)
    assert types_of(frames) == ["plugin_call", "plugin_call_output", "message"]
    (call,) = calls_of(frames, "plugin_call")
    (output,) = calls_of(frames, "plugin_call_output")
    assert call["call_id"] == output["call_id"]
    assert output["output"] == "3"
    assert text_of(frames) == "The result is 3."


async def test_thinking_comes_before_the_answer(client: Client) -> None:
    """`/think` is a reasoning message, then an answer."""
    assert types_of(await client.turn("s1", "/think")) == ["reasoning", "message"]


async def test_a_failure_ends_the_turn_as_failed(client: Client) -> None:
    """`/fail` ends in a failed response with the agent's code and text."""
    frames = await client.turn("s1", "/fail no luck")
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["status"] == "failed"
    assert ended["error"] == {"code": "demo_failure", "message": "no luck"}


async def test_a_sub_agent_speaks_between_call_and_result(client: Client) -> None:
    """`/dispatch` shows the hand-over, the sub-agent's own words, and its result."""
    frames = await client.turn("s1", "/dispatch find it")
    check_whole(frames)
    assert types_of(frames) == ["message", "component_call", "message", "component_call_output", "message"]
    (call,) = calls_of(frames, "component_call")
    assert call["name"] == "demo-researcher"
    assert "find it" in text_of(frames)


async def test_critics_send_the_first_draft_back(client: Client) -> None:
    """`/reflect` shows two rounds, the second passes, and only the second draft is said."""
    frames = await client.turn("s1", "/reflect")
    check_whole(frames)
    rounds = [each["output"] for each in calls_of(frames, "component_call_output")]
    assert [(each["isPass"], each["count"], each["score"]) for each in rounds] == [
        (False, 1, 5),
        (True, 2, 9),
    ]
    assert text_of(frames) == "This is draft 2."


async def test_an_image_is_a_part_of_its_own(client: Client) -> None:
    """`/image` comes as an image part with its link."""
    frames = await client.turn("s1", "/image https://example.com/a.png")
    parts = [frame.data for frame in frames if frame.data.get("type") == "image"]
    assert [part["image_url"] for part in parts if part["object"] == "content"] == [
        "https://example.com/a.png"
    ]


async def test_a_client_call_parks_and_its_answer_goes_on(client: Client, stack: Stack) -> None:
    """`/call` asks the client; its answer resumes the turn on the same stream."""
    async with client.process("s1", '/call get_weather {"city": "Rome"}', id="t1") as stream:
        frames = await stream.until(calls_of)
        (call,) = calls_of(frames)
        assert call["name"] == "get_weather"
        assert json.loads(call["arguments"]) == {"city": "Rome"}
        await wait_until(lambda: is_status(stack, "s1", "t1", "parked"), "the turn to park")
        answer = await client.callback("s1", call["call_id"], {"sky": "blue"})
        assert answer.status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert types_of(frames) == ["function_call", "function_call_output", "message"]
    assert text_of(frames) == 'The result is {"sky":"blue"}.'


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ({"approve": True}, "The result is everything is gone."),
        ({"approve": False, "reason": "Not today."}, "The result is The tool call was denied. Not today."),
    ],
)
async def test_an_approval_is_asked_for_and_obeyed(
    client: Client, decision: dict[str, Any], said: str
) -> None:
    """`/approve` asks; yes runs the tool, no tells the model."""
    async with client.process("s1", "/approve") as stream:
        frames = await stream.until(lambda all_: calls_of(all_, "mcp_approval_request"))
        (request,) = calls_of(frames, "mcp_approval_request")
        assert request["server_label"] == "demo"
        assert (await client.callback("s1", request["id"], decision)).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert types_of(frames) == [
        "mcp_approval_request",
        "mcp_approval_response",
        "plugin_call",
        "plugin_call_output",
        "message",
    ]
    assert text_of(frames) == said


async def test_parallel_calls_are_answered_in_any_order(client: Client) -> None:
    """`/calls 3` waits for all three; each answer reaches its own call."""
    async with client.process("s1", "/calls 3") as stream:
        frames = await stream.until(lambda all_: len(calls_of(all_)) == 3)
        for call in reversed(calls_of(frames)):
            number = json.loads(call["arguments"])["number"]
            answer = await client.callback("s1", call["call_id"], f"answer {number}")
            assert answer.status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "The result is answer 0, answer 1, answer 2."


async def test_the_model_remembers_earlier_turns_of_the_session(client: Client, stack: Stack) -> None:
    """Each turn is added to the session's memory, in order."""
    for text in ("one", "two"):
        await client.turn("s1", text)
    memory = await stack.broker.sessions.lrange("ts:{dev/s1}:memory", 0, -1)  # type: ignore[misc]
    assert [b"one" in memory[0], b"two" in memory[1]] == [True, True]


async def test_without_streaming_the_answer_is_one_json_object(client: Client) -> None:
    """`stream: false` answers with the terminal event."""
    answer = await client.http.post(
        "/process",
        json={"input": [{"role": "user", "content": "/tokens 3"}], "stream": False, "session_id": "s1"},
    )
    assert answer.status_code == 200
    assert answer.json()["status"] == "completed"
    assert answer.json()["output"][0]["content"][0]["text"] == "tok0 tok1 tok2 "


async def test_without_streaming_a_parked_turn_answers_with_its_calls(client: Client) -> None:
    """`stream: false` returns at once when the turn waits for its client; answering goes on with the rest."""
    body: dict[str, Any] = {
        "input": [{"role": "user", "content": "/call f {}"}],
        "stream": False,
        "session_id": "s1",
    }
    parked = (await client.http.post("/process", json=body)).json()
    assert parked["status"] == "in_progress"
    (call,) = [each["content"][0]["data"] for each in parked["output"] if each["type"] == "function_call"]
    output = {"call_id": call["call_id"], "output": "42"}
    body["input"] = [
        {"role": "tool", "type": "function_call_output", "content": [{"type": "data", "data": output}]}
    ]
    ended = (await client.http.post("/process", json=body)).json()
    assert ended["status"] == "completed"
    assert ended["output"][-1]["content"][0]["text"] == "The result is 42."


async def is_status(stack: Stack, session: str, task: str, status: str) -> bool:
    """Whether the task has come to that status."""
    return await stack.status(session, task) == status
