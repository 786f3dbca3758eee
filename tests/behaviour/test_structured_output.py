"""pydantic-ai agents that return something else than text: it is checked, and said as a data part, once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider.server import Call, calls
from tests.support.scripted import script
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.client import Client, Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

ROME = {"city": "Rome", "degrees": 21}
WRITTEN = '{"city": "Rome", "degrees": 21}'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer", "maximum": 59}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def agent(name: str) -> dict[str, str]:
    """The table of one of the agents."""
    return {"python": f"tests.support.structured:{name}"}


def returned(frames: list[Frame]) -> list[Any]:
    """The data that the turn's messages brought; the turn is whole, and has nothing else."""
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "completed", event
    return [
        part.get("data", part.get("text"))
        for message in event["output"]
        if message["type"] == "message" and message["status"] == "completed"
        for part in message["content"]
    ]


@pytest.mark.parametrize(
    ("table", "steps", "data"),
    [
        ("called", [[("final_result", ROME)]], [ROME]),
        ("written", [WRITTEN], [ROME]),
        ("written", ["I cannot say.", WRITTEN], [ROME]),
        ("written", ['{"city": "Rome", "degrees": 99}', WRITTEN], [ROME]),
        ("called", [[("final_result", {"city": "Rome", "degrees": 99})], [("final_result", ROME)]], [ROME]),
        ("chosen", [[("final_result", {"response": "yes"})]], [{"output": "yes"}]),
        ("made", ["quiet words"], [{"output": "QUIET WORDS"}]),
        ("either", ["in words"], ["in words "]),
        ("either", [[("final_result", ROME)]], [ROME]),
    ],
)
async def test_structured_output_is_a_data_part(serve: Any, table: str, steps: list[Any], data: Any) -> None:
    """An object as it is, anything else under `output`; neither the JSON as text nor an answer that was refused."""
    client, _ = await serve(lead=agent(table))
    frames = await client.turn("s1", script(*steps), id="t1")
    assert returned(frames) == data
    assert not calls_of(frames, "plugin_call")
    assert (text_of(frames) == "") == isinstance(data[0], dict)
    again: list[Frame]
    async with client.follow("s1", "t1") as stream:
        again = await stream.all()
    assert [frame.raw for frame in again] == [frame.raw for frame in frames]


@pytest.mark.parametrize("streamed", [True, False])
async def test_liteagent_clients_read_it_as_text(serve: Any, streamed: bool) -> None:
    """They know no data: they get its JSON in one message, with what it cost, live and in the history."""
    client, _ = await serve(lead=agent("called"))
    session = await client.init()
    async with client.chat(session, script([("final_result", ROME)]), stream=streamed) as stream:
        frames = await stream.all()
    (said,) = [frame.data for frame in frames if frame.data.get("role") == "assistant"]
    assert (said["type"], json.loads(said["content"])) == ("text", ROME)
    assert said["completions"]["usage"]["totalTokens"] > 0
    history = (await client.http.get("/liteAgent/v1/history", params={"sessionId": session})).json()
    assert [json.loads(each["content"]) for each in history if each["role"] == "assistant"] == [ROME]


async def test_what_is_said_beside_calls_is_said(serve: Any) -> None:
    """Text beside a tool's call is no output, though the output may come as text."""
    client, _ = await serve(lead=agent("called"))
    frames = await client.turn("s1", script([("look", {})], [("final_result", ROME)]))
    assert returned(frames) == [ROME]
    assert [call["name"] for call in calls_of(frames, "plugin_call")] == ["look"]
    assert [each["output"] for each in calls_of(frames, "plugin_call_output")] == ["sunny"]


@pytest.mark.parametrize(
    ("table", "step"), [("called_late", [("final_result", ROME)]), ("written_late", WRITTEN)]
)
async def test_a_lost_worker_costs_none_of_it(serve: Any, table: str, step: Any) -> None:
    """Its worker ends when the answer is there and the data is not said: the next one says it, once."""
    client, stack = await serve(lead=agent(table))
    async with client.process("s1", script(step), id="t1") as stream:
        await wait_until(lambda: _is_kept(stack), "the answer to be kept")
        (worker, _), *_ = stack.workers
        await stack.worker()
        worker.stop(0)
        frames = await stream.all()
    assert returned(frames) == [ROME]
    redis: Any = stack.broker.sessions
    assert int(await redis.hget("ts:{dev/s1}:task:t1", "attempt")) == 2


async def _is_kept(stack: Any) -> bool:
    from turnstream.shared.broker.keys import SessionKeys

    task = await stack.log.task(SessionKeys("dev", "s1"), "t1")
    return int(task.get("number") or 0) > 0


async def test_sub_agents_and_critics_read_it_as_json(serve: Any) -> None:
    """What a sub-agent returns is its caller's to read; what a critic passed is said as data."""
    client, _ = await serve(lead={"subagents": ["helper"]}, helper=agent("written"))
    frames = await client.turn("s1", script([("helper", [WRITTEN])], "got {results}"))
    check_whole(frames)
    assert json.loads(text_of(frames).strip().removeprefix("got ")) == ROME


async def test_a_tables_schema_is_what_its_model_must_fit(deploy: Deployments, provider: Provider) -> None:
    """The provider is given the schema; what does not fit goes back with the reasons; the next turn knows the answer."""
    client: Client = await deploy(output_schema=SCHEMA)
    provider.script = [
        calls(Call("final_result", '{"city": "Rome", "degrees": 99}', "c1")),
        calls(Call("final_result", WRITTEN, "c2")),
        calls(Call("final_result", '{"city": "Oslo", "degrees": 3}', "c3")),
    ]
    assert returned(await client.turn("s1", "Where is it warm?")) == [ROME]
    offered = provider.requests[0]["tools"][0]["function"]
    assert (offered["name"], offered["parameters"]["required"]) == ("final_result", ["city", "degrees"])
    assert "99 is greater than the maximum of 59" in json.dumps(provider.messages(1)[-1])
    assert returned(await client.turn("s1", "And cold?")) == [{"city": "Oslo", "degrees": 3}]
    sent = [
        json.loads(call["function"]["arguments"])
        for message in provider.messages(2)
        for call in message.get("tool_calls") or ()
    ]
    assert ROME in sent


async def test_a_model_that_never_fits_it_ends_the_turn(deploy: Deployments, provider: Provider) -> None:
    """The turn fails with a code of its own; nothing is said that was not checked."""
    client = await deploy(output_schema=SCHEMA)
    provider.script = [calls(Call("final_result", "{}", f"c{n}")) for n in range(5)]
    frames = await client.turn("s1", "Where is it warm?")
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert (event["status"], event["error"]["code"]) == ("failed", "model_misbehaved")
    assert event["output"] == []


async def test_the_demo_returns_what_it_is_asked_for(serve: Any) -> None:
    """So that a client can be written without a real model."""
    client, _ = await serve(lead={"python": None, "model": "demo", "output_schema": SCHEMA})
    assert returned(await client.turn("s1", f"/output {WRITTEN}")) == [ROME]


async def test_deps_are_made_for_each_run(serve: Any) -> None:
    """The function that the table names makes what tools read as `ctx.deps`."""
    client, _ = await serve(lead={**agent("needy"), "deps": "tests.support.structured:open_shop"})
    for user in ("ada", "bob"):
        frames = await client.turn(f"of-{user}", script([("customer", {})], "{results}"), user_id=user)
        check_whole(frames)
        assert text_of(frames) == f"{user} "
