"""Messages of every type: said by an agent, and sent to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import check_whole, terminal
from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents
from turnstream.shared.protocol import MessageType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client

# An input that ends with one of these answers a call instead of saying something.
ANSWERS = ("function_call_output", "mcp_approval_response")

# The Java edition's way to say who speaks.
SPEAKERS = ("user", "system", "assistant")


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    """A client of an agent that says, and is told, every type of message."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python="tests.support.coded:every_message")
    stack = Stack(place, Agents(specs))
    await stack.worker()
    yield await stack.front_end()
    await stack.close()


async def test_every_type_is_said(client: Client) -> None:
    """Each type reaches its client, in either spelling; an error with its code and text."""
    frames = await client.turn("s1", "go")
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    said = ended["output"]
    assert [message["type"] for message in said[: len(MessageType)]] == list(MessageType)
    error = said[len(MessageType)]
    assert (error["type"], error["status"], error["code"]) == ("error", "completed", "out_of_stock")
    assert (error["message"], error["metadata"], error["content"]) == ("None left.", {"a": None}, [])
    body = {"input": [{"role": "user", "content": "go"}], "stream": False}
    java = (await client.http.post("/process", json=body, params={"dialect": "java"})).json()["output"]
    assert [message["type"] for message in java[: len(MessageType)]] == [kind.name for kind in MessageType]
    assert [message["code"] for message in java if "code" in message] == ["out_of_stock"]


@pytest.mark.parametrize("upper", [False, True], ids=["lower case", "Java's upper case"])
async def test_every_type_is_taken(client: Client, upper: bool) -> None:
    """A client may send a whole conversation, tools and all: each message reaches the agent as what it is."""
    told = list(MessageType)
    given: list[dict[str, Any]] = [
        {"type": kind.name if upper else str(kind), "role": "user", "content": "x", "code": "c"}
        for kind in told
    ]
    body = {"input": [*given, {"role": "user", "content": "and now?"}], "stream": False}
    answer = await client.http.post("/process", json=body)
    assert answer.status_code == 200, answer.text
    taken = answer.json()["output"][-1]["content"][0]["data"]["given"]
    assert taken == ["message" if kind in SPEAKERS else kind for kind in told] + ["message"]


async def test_an_answer_at_the_end_is_one(client: Client) -> None:
    """The same messages at the end of the input answer calls, and this session made none."""
    for kind in ANSWERS:
        data = {"call_id": "call_1", "approval_request_id": "call_1", "approve": True, "output": ""}
        message = {"type": kind, "role": "tool", "content": [{"type": "data", "data": data}]}
        body = {"session_id": "s1", "input": [{"role": "user", "content": "go"}, message]}
        answer = await client.http.post("/process", json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, 30002)
