"""Tools that misbehave end their turn or are told to the model; the worker and its other turns live on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider.server import Call, calls, says
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider


def agents_with(**given: Any) -> Agents:
    """The demo agent, differently configured."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec.model_validate({**specs["demo"].model_dump(exclude_unset=True), **given})
    return Agents(specs)


async def served(place: Place, **given: Any) -> tuple[Stack, Client]:
    """A deployment with such an agent."""
    stack = Stack(place, agents_with(**given))
    await stack.worker()
    return stack, await stack.front_end()


@pytest.mark.parametrize("name", ["cancels_itself", "exits", "leaks", "raises_unheard", "exits_in_a_thread"])
async def test_a_tool_that_breaks_ends_its_turn_once(place: Place, name: str, capsys: Any) -> None:
    """Cancelling itself, leaving the process, raising: the turn fails at once, and the next one works."""
    stack, client = await served(place, tools=(f"tests.support.coded:{name}",))
    frames = await client.turn("s1", f"/tool {name}")
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["status"] == "failed"
    assert "hunter2" not in json.dumps([frame.data for frame in frames])
    assert text_of(await client.turn("s2", "hi")) == "You said: hi"
    assert len([entry for entry in await stack.entries("s1") if entry.kind == "end"]) == 1
    await stack.close()
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err


@pytest.mark.parametrize("helper", ["subagents", "critics"])
async def test_what_a_helper_raises_ends_its_work_only(place: Place, helper: str) -> None:
    """Even what is no `Exception`: a sub-agent's is told to its caller's model, a critic's ends the turn."""
    specs = {spec.name: spec for spec in load_agents(None)}
    names = {"critics": ("demo-critic",), "subagents": ("demo-researcher",)}
    specs["demo"] = specs["demo"].model_copy(update=names)
    (name,) = names[helper]
    specs[name] = AgentSpec(name=name, python="tests.support.coded:unheard")
    stack = Stack(place, Agents(specs))
    await stack.worker()
    client = await stack.front_end()
    event = terminal(await client.turn("s1", "/dispatch" if helper == "subagents" else "/reflect"))
    assert event is not None
    assert event["status"] == ("completed" if helper == "subagents" else "failed")
    assert text_of(await client.turn("s2", "hi")) == "You said: hi"
    await stack.close()


ODD = {
    "circle": "its result cannot be written as JSON",
    "surrogate": "half ?",
    "object": "<class 'object'>",
    "nan": "NaN",
    "bytes": "__4=",
    "huge": "its result is too large",
    "integer": "1" + "0" * 30,
    "nothing": "null",
    "generator": "[0,1]",
}


async def test_whatever_a_tool_returns_reaches_the_model(deploy: Deployments, provider: Provider) -> None:
    """What is no JSON, too large or half a character: as words, to model and client, and in the next turn again."""
    client = await deploy(tools=["tests.support.fake_provider.tools:odd"])
    provider.script = [calls(*(Call("odd", json.dumps({"kind": kind}), kind) for kind in ODD)), says("Well.")]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert text_of(frames) == "Well."
    outputs = {each["call_id"]: each["output"] for each in calls_of(frames, "plugin_call_output")}
    for call in calls_of(frames, "plugin_call"):
        assert ODD[json.loads(call["arguments"])["kind"]] in outputs[call["call_id"]]
    provider.script = [says("Indeed.")]
    assert text_of(await client.turn("s1", "And?")) == "Indeed."
    told = [message["content"] for message in provider.messages() if message["role"] == "tool"]
    assert len(told) == len(ODD)
    assert all(len(text) < 1000 for text in told)


async def test_images_that_tools_return_reach_the_model(deploy: Deployments, provider: Provider) -> None:
    """As the result, or beside it; the client reads their kind and size only."""
    client = await deploy(
        tools=["tests.support.fake_provider.tools:chart", "tests.support.fake_provider.tools:photo"]
    )
    provider.script = [calls(Call("chart", "{}", "a"), Call("photo", "{}", "b")), says("Nice.")]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    outputs = {each["name"]: each["output"] for each in calls_of(frames, "plugin_call_output")}
    assert outputs == {"chart": "Drawn.", "photo": "(image/png, 4 bytes)"}
    parts = [
        part
        for message in provider.messages()
        if message["role"] == "user" and isinstance(message["content"], list)
        for part in message["content"]
    ]
    assert [part["type"] for part in parts].count("image_url") == 2
    assert {"type": "text", "text": "The chart:"} in parts


async def test_a_tool_may_send_the_model_back(deploy: Deployments, provider: Provider) -> None:
    """`ModelRetry`, as the framework has it: the model reads why, and tries again."""
    client = await deploy(tools=["tests.support.fake_provider.tools:picky"])
    provider.script = [
        calls(Call("picky", '{"number": 1}')),
        calls(Call("picky", '{"number": 2}')),
        says("2."),
    ]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert text_of(frames) == "2."
    assert "1 is odd." in provider.messages(1)[-1]["content"]
    assert provider.messages(2)[-1]["content"] == "2 is even."
    assert len(calls_of(frames, "plugin_call_output")) == 2


async def test_arguments_of_many_megabytes_end_the_turn(deploy: Deployments, provider: Provider) -> None:
    """A model that raves costs its own turn, and nobody else's."""
    client = await deploy(tools=["tests.support.fake_provider.tools:get_weather"])
    raving = json.dumps({"city": "x" * 6_000_000})
    provider.script = [calls(Call("get_weather", raving)), says("Never."), says("Fine.")]
    event = terminal(await client.turn("s1", "Go"))
    assert event is not None
    assert event["error"]["code"] == "turn_too_large"
    provider.script = [says("Fine.")]
    assert text_of(await client.turn("s2", "Hi")) == "Fine."


async def wrong_then_right(messages: list[Any], info: Any) -> AsyncIterator[Any]:
    """Calls a client function with wrong and with right arguments in one answer, then reports."""
    returns = [
        part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if returns:
        yield "Done."
        return
    yield {0: DeltaToolCall(name="pick", json_args='{"number": "x"}', tool_call_id="a")}
    yield {1: DeltaToolCall(name="pick", json_args='{"number": 1}', tool_call_id="b")}


async def test_a_call_that_never_reached_its_tool_is_told_once(place: Place, monkeypatch: Any) -> None:
    """One of two parallel client calls has wrong arguments: over parking its result is not told again."""
    from turnstream.worker.agents import models

    monkeypatch.setattr(models, "model_of", lambda spec: FunctionModel(stream_function=wrong_then_right))
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    stack, client = await served(
        place, model="test", tools=(), client_tools=({"name": "pick", "parameters": schema},)
    )
    async with client.process("s1", "go", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s1", call["call_id"], "one")
        frames = await stream.all()
    check_whole(frames)
    assert len(calls_of(frames, "plugin_call_output")) == 1
    lasts = [entry.kind for entry in await stack.entries("s1") if b'"last":true' in entry.extra]
    assert lasts == ["function_call_output"]
    await stack.close()


async def test_a_parked_turn_gives_way_to_one_that_waits_already(place: Place) -> None:
    """With `parked = "supersede"` a turn that was queued before the other parked does not wait for the client."""
    stack, client = await served(place, parked="supersede")
    async with client.process("s1", "/slow 0.3", id="t0") as zeroth:
        await zeroth.until(lambda frames: calls_of(frames, "plugin_call"))
        async with client.process("s1", "/call f {}", id="t1") as first:
            await first.until(lambda frames: len(frames) >= 1)
            async with client.process("s1", "two", id="t2") as second:
                assert text_of(await second.all()) == "You said: two"
            ended = terminal(await first.all())
            assert ended is not None
            assert ended["status"] == "canceled"
    await stack.close()


async def test_a_worker_drains_while_a_turn_is_silent(place: Place) -> None:
    """A worker that is stopped gives its turn back, and another one goes on with it."""
    stack, client = await served(place)
    async with client.process("s1", "/slow 1.5", id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call"))
        first = stack.workers[0][0]
        await stack.worker()
        await stack.stop_worker(first)
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "The result is That took 1.5 seconds."
    await wait_until(lambda: not len(stack.workers[0][0].leases), "the worker to be free")
    await stack.close()
