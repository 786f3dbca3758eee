"""Tools that misbehave end their turn or are told to the model; the worker and its other turns live on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from shared.agents import Agents, AgentSpec
from shared.agents import load as load_agents
from tests.client import calls_of, check_whole, terminal, text_of
from tests.stack import Stack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.client import Client
    from tests.conftest import Place


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


@pytest.mark.parametrize("name", ["cancels_itself", "exits", "leaks"])
async def test_a_tool_that_breaks_ends_its_turn_once(place: Place, name: str, capsys: Any) -> None:
    """Cancelling itself, leaving the process, raising: the turn fails at once, and the next one works."""
    stack, client = await served(place, tools=(f"tests.coded:{name}",))
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
    from worker.agents import models

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
    assert text_of(frames) == "The result is That took 1.5 seconds.."
    await wait_until(lambda: not len(stack.workers[0][0].leases), "the worker to be free")
    await stack.close()
