"""What a request asks of its agent's model: honoured where the agent allows it, else named as ignored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.client import asked, calls_of, check_whole, terminal, text_of
from tests.support.fake_provider.server import Call, calls, says
from turnstream.shared.agents.config import OVERRIDES

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack

WEATHER = "tests.support.fake_provider.tools:get_weather"


def tool(name: str = "where_am_i", parameters: Any = None) -> dict[str, Any]:
    """A client's function as OpenAI clients send it."""
    schema = parameters or {"type": "object", "properties": {"exact": {"type": "boolean"}}}
    return {"type": "function", "function": {"name": name, "description": "Tell.", "parameters": schema}}


def properties(count: int, schema: Any) -> dict[str, Any]:
    """The parameters of a function that takes so many arguments."""
    return {"type": "object", "properties": {f"p{at}": schema for at in range(count)}}


async def refusal(client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that is refused for what it asks; one that is taken is not waited for."""
    async with client.http.stream("POST", "/process", json=asked("s1", "Hi", **given)) as answer:
        assert answer.status_code == 422
        return cast("dict[str, Any]", json.loads(await answer.aread()))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"temperature": 0.3}, {"temperature": 0.3}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"presence_penalty": -1}, {"presence_penalty": -1}),
        ({"max_tokens": 77}, {"max_completion_tokens": 77}),
        ({"stop": "END"}, {"stop": ["END"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"seed": 7}, {"seed": 7}),
        ({"model": "bigger"}, {"model": "bigger"}),
        ({"model": "openai:bigger"}, {"model": "bigger"}),
        ({"model": "qwen3:8b"}, {"model": "qwen3:8b"}),
        ({"n": 1}, {"model": "test"}),
    ],
)
async def test_an_allowed_setting_reaches_the_provider(
    deploy: Deployments, provider: Provider, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    """For this turn only; the agent's own settings stand beside it, and come back after it."""
    client = await deploy(allow_overrides=True, settings={"temperature": 0.9})
    provider.script = [says("One."), says("Two.")]
    frames = await client.turn("s1", "Hi", **given)
    assert text_of(frames) == "One."
    assert {name: provider.requests[0][name] for name in sent} == sent
    await client.turn("s1", "Again")
    assert provider.requests[1]["model"] == "test"
    assert provider.requests[1]["temperature"] == 0.9


GIVEN: dict[str, Any] = {
    "model": "other",
    "temperature": 0,
    "top_p": 0.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "max_tokens": 1,
    "stop": "x",
    "seed": 0,
    "tools": [tool()],
}


@pytest.mark.parametrize("name", OVERRIDES)
async def test_what_the_agent_does_not_allow_is_not_applied_and_is_named(
    deploy: Deployments, provider: Provider, name: str
) -> None:
    """All others being allowed, this one does not reach the provider, and every response event names it."""
    client = await deploy(allow_overrides=[each for each in OVERRIDES if each != name])
    provider.script = [says("One.")]
    frames = await client.turn("s1", "Hi", **{name: GIVEN[name]})
    check_whole(frames)
    assert ignored_in(frames) == [[name]]
    sent = provider.requests[0]
    assert sent["model"] == "test"
    assert not sent.keys() & {
        "temperature", "top_p", "frequency_penalty", "presence_penalty", "max_completion_tokens", "stop", "seed", "tools"
    }  # fmt: skip


def ignored_in(frames: list[Any]) -> list[Any]:
    """What the response events name as ignored, each list once."""
    named = [
        frame.data.get("metadata", {}).get("ignored")
        for frame in frames
        if frame.data["object"] == "response"
    ]
    return [each for place, each in enumerate(named) if each not in named[:place]]


async def test_unless_the_agent_says_otherwise_sampling_and_tools_are_honoured(
    deploy: Deployments, provider: Provider
) -> None:
    """As any client of the protocol expects. Model, instructions and further answers are the agent's."""
    client = await deploy()
    provider.script = [says("One.")]
    given = {name: value for name, value in GIVEN.items() if value}
    frames = await client.turn("s1", "Hi", **given, n=3, instructions="Be rude.")
    assert ignored_in(frames) == [["model", "instructions", "n"]]
    sent = provider.requests[0]
    assert (sent["model"], sent["top_p"], sent["max_completion_tokens"], sent["stop"]) == (
        "test",
        0.1,
        1,
        ["x"],
    )
    assert [each["function"]["name"] for each in sent["tools"]] == ["where_am_i"]
    assert "n" not in sent
    assert all(message["role"] == "user" for message in sent["messages"])


async def test_what_is_not_applied_may_be_anything(deploy: Deployments, provider: Provider) -> None:
    """In either spelling, and of values that no model takes: it is not read. Null and nothing name nothing."""
    client = await deploy(allow_overrides=[])
    provider.script = [says("One."), says("Two.")]
    given = {"topP": 9, "maxTokens": "many", "tools": [{"type": "magic"}], "stop": 5, "model": {"a": 1}}
    frames = await client.turn("s1", "Hi", **given, seed=None)
    assert ignored_in(frames) == [["model", "top_p", "max_tokens", "stop", "tools"]]
    assert ignored_in(await client.turn("s1", "Hi", n=1, stop=[], tools=None, instructions="")) == [None]


async def test_ignored_is_named_wherever_a_response_is_told(stack: Stack) -> None:
    """Without a stream, when the turn parks, when it is stopped, and in the Java edition's spelling."""
    await stack.worker()
    client = await stack.front_end()
    whole = await client.http.post("/process", json=asked("s1", "Hi", model="x", stream=False))
    assert whole.json()["metadata"] == {"ignored": ["model"]}
    parked = await client.http.post("/process", json=asked("s2", "/call f {}", model="x", stream=False))
    assert (parked.json()["status"], parked.json()["metadata"]) == ("in_progress", {"ignored": ["model"]})
    await client.stop("s2")
    async with client.follow("s2", parked.json()["id"]) as stream:
        event = terminal(await stream.all())
    assert event is not None
    assert (event["status"], event["metadata"]) == ("canceled", {"ignored": ["model"]})
    java = await client.http.post(
        "/process", json=asked("s3", "Hi", topP=0.5, model="x", stream=False), params={"dialect": "java"}
    )
    assert java.json()["metadata"] == {"ignored": ["model"]}


async def test_no_frame_of_liteagent_names_what_is_ignored(stack: Stack) -> None:
    """Its clients know no such field."""
    await stack.worker()
    client = await stack.front_end()
    await client.turn("s1", "Hi", model="x", id="r1")
    answer = await client.http.get(
        "/liteAgent/v1/chat", params={"sessionId": "s1", "taskId": "r1", "stream": "true"}
    )
    assert b"taskStatus" in answer.content
    assert b"ignored" not in answer.content


@pytest.mark.parametrize("name", [*OVERRIDES, "instructions", "n"])
async def test_a_strict_agent_refuses_by_name(deploy: Deployments, provider: Provider, name: str) -> None:
    """All others being allowed, this one is a 422 that names it, and no turn begins."""
    client = await deploy.front_end(
        strict_overrides=True, allow_overrides=[each for each in OVERRIDES if each != name]
    )
    given = {**GIVEN, "instructions": "Be rude.", "n": 2}[name]
    refused = await refusal(client, {name: given})
    assert refused["code"] == "invalid_body"
    assert refused["message"].startswith(f"{name}:")
    assert await deploy.stack.log.meta(_keys()) is None


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 2.1},
        {"temperature": -0.1},
        {"top_p": 1.1},
        {"top_p": -1},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"max_tokens": 0},
        {"max_tokens": 1e30},
        {"seed": 1e30},
        {"n": 0},
        {"n": 6},
    ],
)
async def test_a_setting_outside_of_its_range_is_refused_by_name(
    deploy: Deployments, given: dict[str, Any]
) -> None:
    """The ranges are those that OpenAI documents."""
    client = await deploy.front_end()
    assert (await refusal(client, given))["message"].startswith(f"{next(iter(given))}:")


def _keys() -> Any:
    from turnstream.shared.broker.keys import SessionKeys

    return SessionKeys("dev", "s1")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model": " "}, "model:"),
        ({"model": "a\nb"}, "model:"),
        ({"stop": [""]}, "stop:"),
        ({"tools": [{"type": "function"}]}, "tools[0].function:"),
        ({"tools": [{"type": "magic", "function": {}}]}, "tools[0].type:"),
        ({"tools": [tool("no spaces")]}, "tools[0].function.name:"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name:"),
        ({"tools": [tool("get_weather")]}, "tools[0].function.name:"),
        ({"tools": [tool("pick")]}, "tools[0].function.name:"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters:"),
        (
            {"tools": [tool(parameters={"type": "object", "properties": {"a": {"type": "colour"}}})]},
            "tools[0].function.parameters:",
        ),
        *(
            ({"tools": [tool(parameters={"type": "object", "properties": {"a": schema}})]}, words)
            for schema, words in (
                (
                    {"$ref": "http://169.254.169.254/x"},
                    "tools[0].function.parameters: Value error, $.properties.a",
                ),
                ({"$ref": "#/nowhere"}, "tools[0].function.parameters: Value error, $ref"),
                ({"$id": "http://x/", "$ref": "y"}, "tools[0].function.parameters:"),
                (
                    {"pattern": "(?=x)"},
                    "tools[0].function.parameters: Value error, $.properties.a: the pattern",
                ),
                (
                    {"type": [{}, 1] * 900, "title": "x" * 40_000},
                    "tools[0].function.parameters: Value error, larger",
                ),
                (json.loads('{"not":' * 200 + "{}" + "}" * 200), "tools[0].function.parameters:"),
                (json.loads('{"not":' * 240 + "{}" + "}" * 240), "tools"),
            )
        ),
        (
            {"tools": [tool(f"t{at}", {"type": "object", "x": "y" * 30_000}) for at in range(5)]},
            "tools: at most 128 KiB",
        ),
        # No one of them has too many.
        (
            {"tools": [tool(f"t{at}", properties(900, {})) for at in range(3)]},
            "tools: at most 2000 objects in all",
        ),
        (
            {"tools": [tool(f"t{at}", properties(16, {"pattern": "x"})) for at in range(5)]},
            "tools: at most 64 patterns in all",
        ),
        ({"tools": [tool(f"t{at}") for at in range(129)]}, "tools: at most 128"),
        ({"stop": ["x"] * 17}, "stop: at most 16"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    deploy: Deployments, given: dict[str, Any], named: str
) -> None:
    """Though all is allowed: names that are taken, schemas that are none."""
    client = await deploy.front_end(allow_overrides=True, tools=[WEATHER], client_tools=[{"name": "pick"}])
    refused = await refusal(client, given)
    assert refused["message"].startswith(named), refused


async def test_the_clients_tools_are_its_functions_for_one_turn(
    deploy: Deployments, provider: Provider
) -> None:
    """Offered to the model with the agent's own, called, answered by the client; gone in the next turn."""
    client = await deploy(allow_overrides=["tools"], tools=[WEATHER])
    provider.script = [
        calls(Call("where_am_i", '{"exact": "yes"}')),
        calls(Call("where_am_i", '{"exact": true}')),
    ]
    async with client.process("s1", "Where?", id="t1", tools=[tool()]) as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert json.loads(call["arguments"]) == {"exact": True}
        provider.script = [says("In Rome."), says("Still there.")]
        await client.callback("s1", call["call_id"], "Rome")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "In Rome."
    for request in provider.requests:
        assert {each["function"]["name"] for each in request["tools"]} == {"get_weather", "where_am_i"}
    await client.turn("s1", "And now?")
    assert [each["function"]["name"] for each in provider.requests[-1]["tools"]] == ["get_weather"]


@pytest.mark.parametrize("parameters", [{}, None])
async def test_a_function_without_parameters_needs_no_schema(
    deploy: Deployments, provider: Provider, parameters: Any
) -> None:
    """OpenAI clients write an empty object, or nothing, for a function that takes nothing."""
    client = await deploy()
    provider.script = [calls(Call("where_am_i", "{}"))]
    given = {
        "type": "function",
        "function": {"name": "where_am_i", "description": "", "parameters": parameters},
    }
    async with client.process("s1", "Where?", tools=[given]) as stream:
        (call,) = calls_of(await stream.until(calls_of))
        provider.script = [says("In Rome.")]
        await client.callback("s1", call["call_id"], "Rome")
        assert text_of(await stream.all()) == "In Rome."
    assert provider.requests[0]["tools"][0]["function"]["parameters"]["type"] == "object"


LADDER = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)}


@pytest.mark.parametrize(
    ("schema", "more", "value", "told"),
    [
        ({"pattern": "^(a+)+$"}, {}, "a" * 200 + "!", "$.a: 'aaa"),
        ({"patternProperties": {"^(a+)+$": False}}, {}, {"a" * 200 + "!": 1}, ""),
        ({"$ref": "#/properties/a"}, {}, 1, "too long to be checked"),
        (
            {"$ref": "#/$defs/d0"},
            {"$defs": {**LADDER, "d40": {"type": "string"}}},
            1,
            "too long to be checked",
        ),
        ({"$ref": "#/x-odd"}, {"x-odd": {"pattern": "(?=x)"}}, "y", "cannot be applied"),
        ({"type": "integer"}, {}, "x" * 300_000, "$.a: 'xxx"),
        ({"uniqueItems": True}, {}, [{}, 1, "a"] * 20_000, "non-unique"),
    ],
)
async def test_a_clients_schema_cannot_hold_up_a_worker(
    deploy: Deployments, provider: Provider, schema: Any, more: Any, value: Any, told: str
) -> None:
    """Patterns that backtrack, references in a circle, too many alternatives, huge arguments: told to the model, briefly."""
    client = await deploy(allow_overrides=["tools"])
    parameters = {"type": "object", "properties": {"a": schema}, **more}
    provider.script = [calls(Call("where_am_i", json.dumps({"a": value}))), says("So be it.")]
    async with client.process("s1", "Where?", id="t1", tools=[tool(parameters=parameters)]) as stream:
        frames = await stream.until(lambda all_: calls_of(all_) or terminal(all_))
        if told:
            check_whole(frames)
            assert text_of(frames) == "So be it."
            assert told in provider.messages()[-1]["content"]
            assert len(provider.messages()[-1]["content"]) < 1000
        else:
            await client.stop("s1")


async def test_a_name_that_only_the_worker_knows_to_be_taken(deploy: Deployments, provider: Provider) -> None:
    """A tool object with a name of its own: the turn ends with the reason."""
    client = await deploy(allow_overrides=True, tools=["tests.support.fake_provider.tools:renamed"])
    event = terminal(await client.turn("s1", "Hi", tools=[tool("wire_money")]))
    assert event is not None
    assert event["error"]["code"] == "tool_name_taken"
    assert "wire_money" in event["error"]["message"]


async def test_a_generator_reads_what_is_asked_of_it(deploy: Deployments) -> None:
    """`Turn.overrides` and `Turn.tools` hold what the spec allows a request to set."""
    client = await deploy(python="tests.support.coded:obeys", allow_overrides=True)
    frames = await client.turn("s1", "Hi", temperature=0.5, model="other", tools=[tool()])
    assert text_of(frames) == "other at 0.5 with where_am_i"
