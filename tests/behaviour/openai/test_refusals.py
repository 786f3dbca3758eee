"""What is refused, and what is not applied: as OpenAI's client raises it, and without its trying again in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from openai import (
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)
from openai.types.responses import Response

from tests.behaviour.conftest import team
from tests.support.stack import Stack
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client

SCHEMA = {
    "type": "object",
    "properties": {"sky": {"type": "string"}},
    "required": ["sky"],
    "additionalProperties": False,
}


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """Agents that take one turn at a time, refuse settings, and answer in a form."""
    demo = {"model": "demo", "python": None}
    stack = Stack(
        place,
        team(
            lead={**demo, "busy": "reject", "tools": ["turnstream.worker.agents.demo:slow"]},
            strict={**demo, "allow_overrides": ["tools"], "strict_overrides": True},
            none={**demo, "allow_overrides": []},
            formed={**demo, "allow_overrides": ["sampling", "output_schema"]},
        ),
        dev_agent="lead",
    )
    await stack.worker()
    yield stack
    await stack.close()


def nested(levels: int) -> Any:
    """Lists within lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


async def test_what_is_repeated_is_as_clients_read_it(openai_at: Any, client: Client) -> None:
    """However it was asked; and nothing of it that may be a secret."""
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
        {"type": "mcp", "server_label": "lead", "server_url": "https://a.invalid", "authorization": "secret"},
    ]
    body = {
        "input": "hi",
        "tools": tools,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "service_tier": "turbo",
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low"},
    }
    answer = await openai_at(client).responses.create(model="lead", extra_body=body)
    told = orjson.loads(answer.to_json())
    Response.model_validate(told, strict=True)
    assert [tool.get("name", tool["type"]) for tool in told["tools"]] == ["f", "mcp"]
    assert told["tool_choice"] == {"type": "function", "name": "f"}
    assert "secret" not in answer.to_json()


async def test_an_id_of_any_length(client: Client) -> None:
    """What is none of ours is not found, wherever it stands."""
    for name in ("a" * 300, "resp_" + "a" * 300, "conv_" + "a" * 300):
        for body in ({"previous_response_id": name}, {"conversation": name}, {"conversation": {"id": name}}):
            answer = await client.http.post("/v1/responses", json={"input": "hi", **body})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), (name, body)


async def test_shapes(client: Client, openai_at: Any, stack: Stack) -> None:
    """Class, code and field of each."""
    openai = openai_at(client)
    create = openai.responses.create
    with pytest.raises(AuthenticationError) as error:
        await openai_at(client, "sk-" + "0" * 32).responses.create(model="lead", input="hi")
    assert error.value.code == "invalid_api_key"
    with pytest.raises(PermissionDeniedError):
        await openai_at(client, stack.admin).responses.create(model="lead", input="hi")
    for body, field in (
        ({"input": "hi", "temperature": 3}, "temperature"),
        ({"input": [{"role": "cat", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "hi", "tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"input": "hi", "metadata": {str(n): "" for n in range(17)}}, "metadata"),
        (
            {"input": "hi", "conversation": "conv_a", "previous_response_id": "resp_a~b~0"},
            "previous_response_id",
        ),
        (
            {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            "text.format",
        ),
        (
            {"input": "hi", "text": {"format": {"type": "json_schema", "json_schema": 5}}},
            "text.format",
        ),
        ({"input": []}, "input"),
        ({"input": "hi", "n": 2}, "n"),
        ({"input": "hi", "stop": [5]}, "stop"),
        ({"input": "hi", "seed": "x"}, "seed"),
        ({"input": "hi", "tools": [{"type": "mcp", "server_label": []}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "call_id": []}]}, "input[0]"),
        ({"input": 1}, "input"),
        ({"input": "hi", "tool_choice": "always"}, "tool_choice"),
        ({"input": "hi", "tool_choice": 1}, "tool_choice"),
        ({"input": "hi", "truncation": "some"}, "truncation"),
        ({"input": [{"role": ["user"], "content": "hi"}]}, "input[0].role"),
        ({"input": "hi", "text": {"format": "text"}}, "text.format"),
        ({"input": "hi", "text": {"verbosity": 5}}, "text.verbosity"),
        ({"input": "hi", "reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"input": "hi", "reasoning": {"a": nested(65)}}, "reasoning"),
        ({"input": "hi", "text": {"a": nested(300)}}, "text"),
        ({"input": "hi", "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"input": "hi", "tool_choice": {"type": "function", "name": 5}}, "tool_choice.name"),
        (
            {"input": "hi", "tools": [{"type": "mcp", "server_label": "lead", "server_url": 5}]},
            "tools[0].server_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": {}}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "input[0].content[0].data",
        ),
        ({"input": "hi", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"input": "hi", "background": True, "store": False}, "background"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c1", "output": ""}]},
            "previous_response_id",
        ),
    ):
        with pytest.raises(BadRequestError) as refused:
            await create(model="lead", extra_body=body)
        assert refused.value.param == field, body
    with pytest.raises(NotFoundError) as unknown:
        await openai.get("/nothing", cast_to=httpx.Response)
    assert unknown.value.type == "not_found_error"
    assert "not served here" in unknown.value.message, "it is the address that is unknown"
    conversation = await openai.conversations.create()
    for unserved, instead in (
        (openai.responses.input_tokens.count(model="lead", input="hi"), "The usage of a response"),
        (openai.responses.compact(model="lead", input="hi"), "previous_response_id"),
        (
            openai.conversations.items.create(
                conversation.id, items=[{"type": "message", "role": "user", "content": "hi"}]
            ),
            "POST /v1/responses with conversation",
        ),
    ):
        with pytest.raises(BadRequestError, match=instead) as refused_route:
            await unserved
        assert refused_route.value.code == "not_supported"
    assert (await client.http.post("/v1/responses/compact", headers={"Authorization": ""})).status_code == 401
    assert not (await openai.conversations.items.list(conversation.id)).data
    answer = await client.http.post("/v1/responses", content=b"[]")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    said: list[Any] = [{"role": "user", "content": "hi"}]
    for chat, field in (
        ({"messages": []}, "messages"),
        ({"messages": said, "n": 2}, "n"),
        ({"messages": said, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": said, "modalities": 5}, "modalities"),
        ({"messages": [{"role": {}, "content": "hi"}]}, "messages[0].role"),
        ({"messages": said, "modalities": ["text", "audio"]}, "modalities"),
        (
            {"messages": said, "tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        ({"messages": said, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ):
        with pytest.raises(BadRequestError) as refused:
            await openai.chat.completions.create(model="lead", messages=said, extra_body=chat)
        assert refused.value.param == field, chat


async def test_a_busy_session_is_not_asked_again(client: Client, openai_at: Any, stack: Stack) -> None:
    """The client would do so for a 409."""
    openai = openai_at(client, max_retries=2)
    conversation = (await openai.conversations.create()).id
    running = await openai.responses.create(
        model="lead", input="/slow 60", conversation=conversation, background=True
    )
    requests = await requests_made(client, stack)
    with pytest.raises(BadRequestError) as error:
        await openai.responses.create(model="lead", input="hi", conversation=conversation)
    assert error.value.code == "session_busy"
    assert await requests_made(client, stack) == requests
    await openai.responses.cancel(running.id)


async def requests_made(client: Client, stack: Stack) -> float:
    """Turns that were begun."""
    answer = await client.http.get("/metrics", headers={"Authorization": f"Bearer {stack.admin}"})
    (line,) = [
        line for line in answer.text.splitlines() if line.startswith("turnstream_turns_submitted_total")
    ]
    return float(line.split()[-1])


async def test_a_rate_is_told(client: Client, openai_at: Any, stack: Stack) -> None:
    """As a 429, with the time to wait."""
    body = {"owner": "o", "agent": "lead", "rate": 1}
    made = await client.http.post(
        "/admin/v1/keys", json=body, headers={"Authorization": f"Bearer {stack.admin}"}
    )
    openai = openai_at(client, made.json()["token"])
    await openai.responses.create(model="lead", input="hi")
    with pytest.raises(RateLimitError) as error:
        await openai.responses.create(model="lead", input="hi")
    assert error.value.code == "rate_limit_exceeded"
    assert int(error.value.response.headers["retry-after"]) > 0
    assert error.value.response.headers["x-should-retry"] == "true"


async def test_what_is_not_applied_is_named(stack: Stack, openai_at: Any) -> None:
    """Not refused, unless the agent is strict."""
    asked: Any = {
        "input": "hi",
        "temperature": 0.5,
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
    }
    openai = openai_at(await stack.front_end(dev_agent="none"))
    answer = await openai.responses.create(model="none", **asked)
    assert answer.metadata == {"turnstream_ignored": "temperature,tool_choice,reasoning"}
    assert answer.temperature == 0.5
    openai = openai_at(await stack.front_end(dev_agent="strict"))
    for name in ("temperature", "tool_choice", "reasoning"):
        with pytest.raises(BadRequestError) as error:
            await openai.responses.create(model="strict", input="hi", extra_body={name: asked[name]})
        assert error.value.param == name
    said: Any = [{"role": "user", "content": "hi"}]
    for create, body, name in (
        (openai.responses.create, {"input": "hi"}, "max_output_tokens"),
        (openai.chat.completions.create, {"messages": said}, "max_tokens"),
        (openai.chat.completions.create, {"messages": said}, "max_completion_tokens"),
    ):
        with pytest.raises(BadRequestError) as error:
            await create(model="strict", **body, **{name: 5})
        assert error.value.param == name


async def test_an_answer_in_a_form(stack: Stack, openai_at: Any) -> None:
    """That the request asks for, in both APIs, and as the client parses it."""
    openai = openai_at(await stack.front_end(dev_agent="formed"))
    said = '/output {"sky": "blue"}'
    form: Any = {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}
    answer = await openai.responses.create(model="formed", input=said, text={"format": form})
    assert orjson.loads(answer.output_text) == {"sky": "blue"}
    assert answer.text.format.name == "weather"
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    chat = await openai.chat.completions.create(
        model="formed", messages=[{"role": "user", "content": said}], response_format=form
    )
    assert orjson.loads(chat.choices[0].message.content) == {"sky": "blue"}


async def test_a_repeat_by_its_key(client: Client, openai_at: Any) -> None:
    """The same key finds the response, live or over; with another request it is refused."""
    openai = openai_at(client)
    key = {"Idempotency-Key": "k1"}
    asked: Any = {"model": "lead", "input": "/tokens 20 20", "extra_headers": key}
    stream = await openai.responses.create(stream=True, **asked)
    first = (await anext(stream)).response.id
    again = await openai.responses.create(**asked)
    assert again.id == first
    await stream.close()
    with pytest.raises(BadRequestError) as error:
        await openai.responses.create(model="lead", input="other", extra_headers=key)
    assert error.value.code == "idempotency_mismatch"

    async def known() -> bool:
        return bool((await openai.responses.create(stream=False, **asked)).output_text)

    await wait_until(known, "the response")
