"""Messages of every type: said by an agent, and sent to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal
from tests.support.coded import OWN_TYPES
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


async def test_a_type_of_the_agents_own_is_nothing_to_us(place: Place) -> None:
    """Whatever it is spelled like: it reaches clients of both protocols as said, ends no stream and begins no response."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python="tests.support.coded:own_types")
    stack = Stack(place, Agents(specs))
    await stack.worker()
    client = await stack.front_end()
    async with client.process("s1", "go", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s1", call["call_id"], 1)
        frames = await stream.all()
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    asking = ["function_call", "function_call_output"]
    assert [message["type"] for message in ended["output"]] == [*OWN_TYPES, *asking, *OWN_TYPES, "message"]
    # From the history, in one piece, and as a response that ends where the client is asked.
    async with client.follow("s1", "t1") as stream:
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in frames]
    body = {"session_id": "s1", "id": "t1", "reconnect": True, "stream": False}
    assert (await client.http.post("/process", json=body)).json() == ended
    async with client.follow("s1", "t1", on_park="complete") as stream:
        part = (await stream.all())[-1].data
    assert [message["type"] for message in part["output"]] == [*OWN_TYPES, "function_call"]
    liteagent = await client.init()
    async with client.chat(liteagent, "go", taskId="t2") as told:
        await told.until(lambda frames: frames and frames[-1].event == "functionCall")
        assert (await client.stop(liteagent, "t2")).status_code == 200
        assert [frame.event for frame in (await told.all())].count("functionCall") == 1
    await stack.close()
