"""Real models: whole turns through the provider's own client, against an endpoint over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import _ssrf

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider import tools
from tests.support.fake_provider.server import KEY, Call, calls, says
from tests.support.openai_events import check_events, events_of, strictly
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.client import Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

WEATHER = "tests.support.fake_provider.tools:get_weather"

PICK = {
    "name": "pick_color",
    "description": "Let the user pick a color.",
    "parameters": {
        "type": "object",
        "properties": {"shade": {"type": "string", "enum": ["light", "dark"]}},
        "required": ["shade"],
        "additionalProperties": False,
    },
}


@pytest.fixture(autouse=True)
def _fresh_tools() -> None:
    tools.called.clear()
    tools.release.clear()


def ended(frames: list[Frame]) -> dict[str, Any]:
    """The terminal event, which must have come."""
    event = terminal(frames)
    assert event is not None
    return event


def results_sent(provider: Provider, request: int = -1) -> dict[str, str]:
    """The tool results in a request, by call; checks that every call has one, as providers do."""
    messages = provider.messages(request)
    asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    answered = {
        message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"
    }
    assert sorted(asked) == sorted(answered)
    return answered


async def test_an_agent_takes_the_attachments_that_its_table_names(
    deploy: Deployments, provider: Provider
) -> None:
    """Others are refused in every protocol, by what is wrong and what is taken; none reaches the model."""
    client = await deploy(attachments=["image"])
    image = {"type": "image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    file = {"type": "file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}
    provider.script = [says("Nice.")]

    def body(part: dict[str, str]) -> dict[str, Any]:
        return {"session_id": "s1", "input": [{"role": "user", "type": "message", "content": [part]}]}

    refused = await client.http.post("/process", json=body(file))
    assert refused.status_code == 422
    assert "'file' is not taken by this agent, which takes text, image" in refused.json()["message"]
    items = [
        {
            "role": "user",
            "content": [{"type": "input_file", "filename": "a.txt", "file_data": file["file_data"]}],
        }
    ]
    refused = await client.http.post("/v1/responses", json={"input": items})
    assert refused.status_code in (400, 422)
    assert "is not taken by this agent" in refused.json()["error"]["message"]
    assert provider.requests == []
    async with client.open("POST", "/process", json=body(image)) as stream:
        assert text_of(await stream.all()) == "Nice."


PDF = "data:application/pdf;base64,JVBERi0="


def _spoken(**message: Any) -> tuple[str, dict[str, Any]]:
    return "/process", {"session_id": "s1", "input": [message]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        _spoken(type="message", content=[{"type": "file", "file_url": "https://x.example/a.pdf"}]),
        _spoken(type="user", content=[{"type": "file", "file_data": PDF}]),
        _spoken(type="message", role="system", content=[{"type": "file", "file_data": PDF}]),
        _spoken(type="message", role="user", content=[{"type": "image", "image_url": PDF}]),
        _spoken(
            type="message", role="user", content=[{"type": "file", "file_data": "data:audio/wav;base64,AA=="}]
        ),
        (
            "/v1/chat/completions",
            {
                "model": "demo",
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}],
                    }
                ],
            },
        ),
        (
            "/ai-sdk/chat",
            {
                "id": "c",
                "message": {
                    "id": "m1",
                    "role": "user",
                    "parts": [{"type": "file", "mediaType": "application/pdf", "url": PDF}],
                },
            },
        ),
        (
            "/ag-ui",
            {
                "threadId": "t",
                "runId": "r",
                "state": {},
                "tools": [],
                "context": [],
                "forwardedProps": {},
                "messages": [
                    {
                        "id": "m1",
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {
                                    "type": "data",
                                    "value": "JVBERi0=",
                                    "mimeType": "application/pdf",
                                },
                            }
                        ],
                    }
                ],
            },
        ),
    ],
    ids=[
        "no role",
        "a user's type",
        "system",
        "named an image",
        "named a file",
        "completions",
        "AI SDK",
        "AG-UI",
    ],
)
async def test_no_attachment_slips_by(
    deploy: Deployments, provider: Provider, path: str, body: dict[str, Any]
) -> None:
    """However it is sent, and whatever it is called: an agent that takes images gets no other file."""
    client = await deploy(attachments=["image"])
    refused = await client.http.post(path, json=body)
    assert refused.status_code in (400, 422), refused.text
    assert "is not taken by this agent, which takes text, image" in refused.text
    assert provider.requests == []


async def test_openais_clients_see_what_was_cached_and_thought(
    deploy: Deployments, provider: Provider
) -> None:
    """As the provider says it, of all calls of the turn together."""
    client = await deploy(tools=[WEATHER])
    provider.script = [
        calls(Call("get_weather", '{"city": "Rome"}'), usage=(20, 7), cached=5),
        says("Sunny.", usage=(30, 9), cached=20, reasoned=6),
    ] * 2
    response = (await client.http.post("/v1/responses", json={"input": "Hi"})).json()
    assert response["usage"] == {
        "input_tokens": 50,
        "input_tokens_details": {"cached_tokens": 25, "cache_write_tokens": 0},
        "output_tokens": 16,
        "output_tokens_details": {"reasoning_tokens": 6},
        "total_tokens": 66,
    }
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    completion = (await client.http.post("/v1/chat/completions", json=body)).json()
    assert completion["usage"] == {
        "prompt_tokens": 50,
        "completion_tokens": 16,
        "total_tokens": 66,
        "prompt_tokens_details": {"cached_tokens": 25},
        "completion_tokens_details": {"reasoning_tokens": 6},
    }


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_openais_clients_see_that_an_answer_was_cut(
    deploy: Deployments, provider: Provider, finish: str, reason: str
) -> None:
    """By its tokens or a filter: it is no whole answer, in a stream or not. What a call came with may be cut: the answer is behind it."""
    client = await deploy(tools=[WEATHER])
    provider.script = [says("Half an ans", finish=finish)] * 2
    response = (await client.http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 5})).json()
    strictly(response)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert response["completed_at"] is None
    assert response["output"][0]["content"][0]["text"] == "Half an ans"
    params = {"stream": "true"}
    raw = (await client.http.get(f"/v1/responses/{response['id']}", params=params)).content
    events = events_of(raw)
    assert check_events(events) == response
    assert events[-1]["type"] == "response.incomplete"
    completion = (
        await client.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        )
    ).json()
    assert completion["choices"][0]["finish_reason"] == finish
    provider.script = [calls(Call("get_weather", '{"city": "Rome"}'), finish="length"), says("Sunny.")]
    response = (await client.http.post("/v1/responses", json={"input": "Hi"})).json()
    assert (response["status"], response["incomplete_details"]) == ("completed", None)


async def test_text_streams_and_is_paid_for(deploy: Deployments, provider: Provider) -> None:
    """The pieces are deltas, those that came together may be one; usage is in the message and in the end."""
    client = await deploy(instructions="Be brief.")
    provider.script = [says("Hello", ", ", "world.", usage=(12, 3))]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    deltas = [frame.data["text"] for frame in frames if frame.data.get("delta")]
    assert "".join(deltas) == "Hello, world."
    event = ended(frames)
    assert event["status"] == "completed"
    assert event["usage"] == {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    assert [(each["role"], each["content"]) for each in provider.messages()] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert provider.requests[0]["stream"] is True
    assert provider.requests[0]["model"] == "test"
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_reasoning_of_compatible_endpoints_is_streamed(deploy: Deployments, provider: Provider) -> None:
    """`reasoning_content` becomes a reasoning message before the answer, piece by piece."""
    client = await deploy()
    provider.script = [says("Four.", thoughts=("Two ", "and two.")), says("Yes.")]
    frames = await client.turn("s1", "2 + 2?")
    check_whole(frames)
    deltas = [frame.data["text"] for frame in frames if frame.data.get("delta")]
    assert "".join(deltas) == "Two and two.Four."
    assert deltas[-1] == "Four."
    assert [message["type"] for message in ended(frames)["output"]] == ["reasoning", "message"]
    assert text_of(await client.turn("s1", "Sure?")) == "Yes."


async def test_each_model_call_is_told_in_completions(deploy: Deployments, provider: Provider) -> None:
    """LiteAgent clients get the tokens of each call, and the turn's usage is their sum."""
    client = await deploy(tools=[WEATHER])
    provider.script = [
        calls(Call("get_weather", '{"city": "Rome"}'), usage=(20, 7)),
        says("Sunny.", usage=(30, 2)),
    ]
    session = await client.init()
    async with client.chat(session, "Weather?", taskId="t1") as stream:
        frames = await stream.all()
    told = [frame.data["completions"]["usage"] for frame in frames if frame.data.get("completions")]
    assert [(each["promptTokens"], each["completionTokens"]) for each in told] == [(20, 7), (30, 2)]
    async with client.follow(session, "t1") as stream:
        assert ended(await stream.all())["usage"]["total_tokens"] == 59


async def test_parallel_tools_run_and_their_results_go_back(deploy: Deployments, provider: Provider) -> None:
    """Two calls under one provider's id: each runs, and each result reaches the model under its own call."""
    client = await deploy(tools=[WEATHER, "tests.support.fake_provider.tools:lookup"])
    provider.script = [
        calls(Call("get_weather", '{"city": "Rome"}', "same"), Call("lookup", '{"word": "sun"}', "same")),
        says("Done."),
    ]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    outputs = {each["name"]: each["output"] for each in calls_of(frames, "plugin_call_output")}
    assert outputs == {"get_weather": "It is sunny in Rome.", "lookup": "sun: True"}
    assert sorted(results_sent(provider).values()) == sorted(outputs.values())


async def test_arguments_that_are_no_json_never_reach_a_tool(deploy: Deployments, provider: Provider) -> None:
    """The model is told, tries again, and only the right call runs."""
    client = await deploy(tools=[WEATHER])
    provider.script = [
        calls(Call("get_weather", '{"city": "Ro')),
        calls(Call("get_weather", '{"city": "Rome"}')),
        says("Sunny."),
    ]
    frames = await client.turn("s1", "Weather?")
    check_whole(frames)
    assert tools.called == ["Rome"]
    assert ended(frames)["status"] == "completed"
    (told,) = results_sent(provider, 1).values()
    assert "Invalid JSON" in told


@pytest.mark.parametrize("arguments", ['{"what": NaN}', '{"what": ' + "[" * 70 + "]" * 70 + "}"])
async def test_arguments_that_no_other_reader_takes_never_reach_a_tool(
    deploy: Deployments, provider: Provider, arguments: str
) -> None:
    """What only generous readers call JSON, and what is too deep to be kept: the model is told."""
    client = await deploy(tools=["tests.support.fake_provider.tools:takes_anything"])
    provider.script = [calls(Call("takes_anything", arguments)), says("I gave up.")]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert tools.called == []
    (told,) = results_sent(provider, 1).values()
    assert "The arguments are " in told


async def test_arguments_that_do_not_fit_never_reach_a_tool(deploy: Deployments, provider: Provider) -> None:
    """A missing argument is told to the model, by its name."""
    client = await deploy(tools=[WEATHER])
    provider.script = [calls(Call("get_weather", '{"town": "Rome"}')), says("I gave up.")]
    frames = await client.turn("s1", "Weather?")
    assert tools.called == []
    assert ended(frames)["status"] == "completed"
    (told,) = results_sent(provider, 1).values()
    assert "city" in told


@pytest.mark.parametrize(
    "arguments",
    [
        '{"shade": ',
        '{"shade": "loud"}',
        "{}",
        "[1]",
        '"light"',
        "",
        '{"note": NaN, "shade": "dark"}',
        '{"note": -Infinity, "shade": "dark"}',
        '{"note": ' + "[" * 70 + "]" * 70 + ', "shade": "dark"}',
    ],
)
async def test_wrong_arguments_never_reach_the_client(
    deploy: Deployments, provider: Provider, arguments: str
) -> None:
    """A client function is called with arguments that fit its schema, or not at all."""
    client = await deploy(client_tools=[PICK])
    provider.script = [calls(Call("pick_color", arguments)), calls(Call("pick_color", '{"shade": "dark"}'))]
    async with client.process("s1", "Colors", id="t1") as stream:
        frames = await stream.until(calls_of)
        (call,) = calls_of(frames)
        assert json.loads(call["arguments"]) == {"shade": "dark"}
        assert len(results_sent(provider, 1)) == 1
        provider.script = [says("Blue it is.")]
        await client.callback("s1", call["call_id"], "blue")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "Blue it is."
    assert "blue" in results_sent(provider).values()


async def test_a_model_that_never_learns_ends_the_turn(deploy: Deployments, provider: Provider) -> None:
    """After some wrong calls in a row the turn fails with its code, and the client was never called."""
    client = await deploy(client_tools=[PICK])
    provider.script = [calls(Call("pick_color", "{}")) for _ in range(10)]
    frames = await client.turn("s1", "Colors")
    check_whole(frames)
    assert ended(frames)["error"]["code"] == "model_misbehaved"
    assert calls_of(frames) == []


async def test_an_unknown_tool_is_told_to_the_model(deploy: Deployments, provider: Provider) -> None:
    """A tool that the model made up gets a result that says so."""
    client = await deploy(tools=[WEATHER])
    provider.script = [calls(Call("fly_to_mars")), says("Sorry.")]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert text_of(frames) == "Sorry."
    (told,) = results_sent(provider).values()
    assert "fly_to_mars" in told


async def test_an_approval_is_asked_for_once(deploy: Deployments, provider: Provider) -> None:
    """The tool runs after the client's yes, and the model gets its result."""
    client = await deploy(tools=["tests.support.fake_provider.tools:pay"])
    provider.script = [calls(Call("pay", '{"amount": 5}')), says("Paid.")]
    async with client.process("s1", "Pay", id="t1") as stream:
        frames = await stream.until(lambda all_: calls_of(all_, "mcp_approval_request"))
        assert tools.called == []
        (request,) = calls_of(frames, "mcp_approval_request")
        await client.callback("s1", request["id"], {"approve": True})
        frames = await stream.all()
    assert tools.called == ["paid 5"]
    assert list(results_sent(provider).values()) == ["Paid 5."]
    assert text_of(frames) == "Paid."


async def test_the_second_turn_is_sent_the_first(deploy: Deployments, provider: Provider) -> None:
    """Memory reaches the provider as messages, from another worker too: asked, called, returned and answered."""
    client = await deploy.front_end(tools=[WEATHER])
    first = await deploy.stack.worker()
    provider.script = [calls(Call("get_weather", '{"city": "Rome"}')), says("Sunny."), says("As I said.")]
    await client.turn("s1", "Weather?")
    await deploy.stack.stop_worker(first)
    await deploy.stack.worker()
    await client.turn("s1", "Sure?")
    assert [message["role"] for message in provider.messages()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert list(results_sent(provider).values()) == ["It is sunny in Rome."]


async def test_after_a_stop_inside_a_tool_the_next_turn_is_accepted(
    deploy: Deployments, provider: Provider
) -> None:
    """The call that was cut off has a result when the next turn is sent, as providers insist."""
    client = await deploy(tools=["tests.support.fake_provider.tools:never_ends", WEATHER])
    provider.script = [calls(Call("never_ends", "{}", "a"), Call("get_weather", '{"city": "Rome"}', "b"))]
    async with client.process("s1", "Go", id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "plugin_call_output"))
        await client.stop("s1")
        assert ended(await stream.all())["status"] == "canceled"
    provider.script = [says("Here I am.")]
    assert text_of(await client.turn("s1", "Still there?")) == "Here I am."
    assert len(results_sent(provider)) == 2
    assert provider.messages()[-1] == {"role": "user", "content": "Still there?"}


async def test_after_a_stop_in_mid_sentence_the_model_knows_what_was_read(
    deploy: Deployments, provider: Provider
) -> None:
    """The next turn's model sees the words that the client had received."""
    client = await deploy()
    provider.script = [says("Once upon", until=asyncio.Event())]
    async with client.process("s1", "A story", id="t1") as stream:
        await stream.until(text_of)
        await client.stop("s1")
        await stream.all()
    provider.script = [says("a time.")]
    await client.turn("s1", "Go on")
    assert [(each["role"], each["content"]) for each in provider.messages()] == [
        ("user", "A story"),
        ("assistant", "Once upon"),
        ("user", "Go on"),
    ]


async def test_a_parked_turn_is_resumed_by_another_worker(deploy: Deployments, provider: Provider) -> None:
    """The second worker sends the provider what the first one had, and the client's answer."""
    client = await deploy.front_end(client_tools=[PICK], tools=[WEATHER])
    first = await deploy.stack.worker()
    provider.script = [
        calls(Call("get_weather", '{"city": "Rome"}', "a"), Call("pick_color", '{"shade": "light"}', "b"))
    ]
    async with client.process("s1", "Both", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await wait_until(lambda: _parked(deploy), "the turn to park")
        await deploy.stack.stop_worker(first)
        await deploy.stack.worker()
        provider.script = [says("White, in the sun.")]
        await client.callback("s1", call["call_id"], {"color": "white"})
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "White, in the sun."
    assert tools.called == ["Rome"]
    assert sorted(results_sent(provider).values()) == ["It is sunny in Rome.", '{"color":"white"}']
    assert ended(frames)["usage"]["total_tokens"] == 30


async def _parked(deploy: Deployments) -> bool:
    return await deploy.stack.status("s1", "t1") == "parked"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (
            {"type": "image", "image_url": "https://nowhere.invalid/cat.png"},
            {"type": "image_url", "image_url": {"url": "https://nowhere.invalid/cat.png"}},
        ),
        (
            {"type": "image", "image_url": f"data:image/png;base64,{PIXEL}"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ),
        (
            {"type": "audio", "data": "aGVsbG8=", "format": "wav"},
            {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}},
        ),
        (
            {"type": "audio", "data": "https://nowhere.invalid/a.mp3", "format": "mp3"},
            {
                "type": "input_audio",
                "input_audio": {"data": "https://nowhere.invalid/a.mp3", "format": "mp3"},
            },
        ),
        (
            {"type": "file", "file_data": "JVBERi0=", "filename": "a.pdf"},
            {
                "type": "file",
                "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
            },
        ),
        (
            {"type": "file", "file_url": "https://nowhere.invalid/x/a.pdf"},
            {"type": "file", "file": {"file_data": "https://nowhere.invalid/x/a.pdf", "filename": "a.pdf"}},
        ),
        ({"type": "file", "file_id": "file-123"}, {"type": "file", "file": {"file_id": "file-123"}}),
        (
            {"type": "video", "video_url": "https://nowhere.invalid/a.mp4"},
            {"type": "video_url", "video_url": {"url": "https://nowhere.invalid/a.mp4"}},
        ),
        (
            {"type": "image", "image_url": "data:image/png;base64,%%%"},
            {"type": "text", "text": "(an attachment that could not be read)"},
        ),
        (
            {"type": "file", "file_url": "file:///etc/passwd"},
            {"type": "text", "text": "(an attachment that could not be read)"},
        ),
    ],
)
async def test_what_a_user_sends_reaches_the_provider_in_its_form(
    deploy: Deployments, provider: Provider, part: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Links are passed on, never fetched; data goes as data; in the next turn again."""
    client = await deploy(images=True, file_ids=True)
    provider.script = [says("Nice."), says("Indeed.")]
    content = [{"type": "text", "text": "Look:"}, part]
    async with client.open(
        "POST", "/process", json={"session_id": "s1", "input": [{"role": "user", "content": content}]}
    ) as stream:
        assert ended(await stream.all())["status"] == "completed"
    assert _contents(provider) == [{"type": "text", "text": "Look:"}, sent]
    await client.turn("s1", "And now?")
    assert _contents(provider, at=0) == [{"type": "text", "text": "Look:"}, sent]


@pytest.mark.parametrize("brought", [False, True])
@pytest.mark.parametrize("kind", ["audio", "file", "text", "image"])
async def test_a_model_named_without_its_address_fetches_no_links(
    deploy: Deployments,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    brought: bool,
    kind: str,
) -> None:
    """The library would download them for such a model, from the whole network around us."""
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(_ssrf, "is_private_ip", lambda _: False)
    link = f"{provider.address}/private"
    part = {
        "audio": {"type": "audio", "data": f"{link}.mp3", "format": "mp3"},
        "file": {"type": "file", "file_url": f"{link}.pdf"},
        "text": {"type": "file", "file_url": f"{link}.txt"},
        "image": {"type": "image", "image_url": f"{link}.png"},
    }[kind]
    fields: dict[str, Any] = {"model": "openai-chat:test", "base_url": None, "api_key_env": None}
    if brought:
        fields = {"python": "tests.support.fake_provider.tools:helper"}
    client = await deploy(images=True, **fields)
    provider.script = [says("Nice."), says("Indeed.")]
    async with client.open(
        "POST", "/process", json={"session_id": "s1", "input": [{"role": "user", "content": [part]}]}
    ) as stream:
        assert ended(await stream.all())["status"] == "completed"
    assert link in json.dumps(provider.messages())
    await client.turn("s1", "And now?")
    assert link in json.dumps(provider.messages()[0])
    assert provider.others == [], "nothing was downloaded"


async def test_a_tools_words_never_become_a_link_that_is_fetched(
    deploy: Deployments, provider: Provider
) -> None:
    """What a server tool or an MCP server returns may look like the library's own link to a file."""
    client = await deploy(tools=["tests.support.fake_provider.tools:looks_like_a_link"])
    provider.script = [
        calls(Call("looks_like_a_link", json.dumps({"url": f"{provider.address}/private.png"}))),
        says("Done."),
        says("Yes."),
    ]
    frames = await client.turn("s1", "Go")
    check_whole(frames)
    assert text_of(frames) == "Done."
    (told,) = results_sent(provider).values()
    assert json.loads(told)["kind"] == "document-url"
    await client.turn("s1", "And?")
    assert provider.others == []


def _contents(provider: Provider, at: int = -1) -> list[dict[str, Any]]:
    """A user's message in the newest request, its texts made one as they may be sent."""
    content = provider.messages()[at]["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if [part["type"] for part in parts] == ["text"]:
        text = parts[0]["text"]
        return [{"type": "text", "text": "Look:"}, {"type": "text", "text": text.removeprefix("Look:")}]
    return parts


INSIDE = [
    "127.0.0.1",
    "169.254.169.254",
    "10.0.0.1",
    "100.100.100.200",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[64:ff9b::7f00:1]",
    "2130706433",
    "localhost",
    "rebinds.example",
]


async def test_a_link_is_fetched_only_where_the_agent_asks_and_it_is_safe(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fetch_links`: no address inside the network however it is spelled, by name, or behind a redirect."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, *more: Any, **names: Any) -> Any:
        """A name that somebody else controls, and points inwards."""
        if host == "rebinds.example":
            looked_up.append(host)
            return real("127.0.0.1", *more, **names)
        return real(host, *more, **names)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    client = await deploy(fetch_links=True)
    port = provider.address.rpartition(":")[2]
    parts = [{"type": "file", "file_url": f"http://{host}:{port}/secret.pdf"} for host in INSIDE]
    parts.append({"type": "audio", "data": f"{provider.address}/secret.mp3", "format": "mp3"})
    for number, part in enumerate(parts):
        async with client.open(
            "POST",
            "/process",
            json={"session_id": f"s{number}", "input": [{"role": "user", "content": [part]}]},
        ) as stream:
            error = ended(await stream.all())["error"]
        assert error == {
            "code": "link_not_fetched",
            "message": "A link in the input could not be fetched.",
        }, part
    assert looked_up == ["rebinds.example"], "looked up once: what was judged is what would be connected to"
    assert provider.others == []
    assert provider.requests == []


async def test_a_redirect_inwards_is_not_followed(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address may be asked, the one that it names may not."""
    # One address of our own stands in for one outside, for the test's server alone.
    outside = "127.9.9.9"
    private = _ssrf.is_private_ip
    monkeypatch.setattr(_ssrf, "is_private_ip", lambda ip: ip != outside and private(ip))
    client = await deploy(fetch_links=True)
    port = provider.address.rpartition(":")[2]
    async with _redirecting(outside, f"http://127.0.0.1:{port}/secret.pdf") as (url, asked):
        part = {"type": "file", "file_url": url}
        async with client.open(
            "POST", "/process", json={"session_id": "s1", "input": [{"role": "user", "content": [part]}]}
        ) as stream:
            assert ended(await stream.all())["error"]["code"] == "link_not_fetched"
        assert asked == ["/a.pdf"]
    assert provider.others == []
    assert provider.requests == []


@asynccontextmanager
async def _redirecting(host: str, to: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that sends everybody elsewhere; its URL, and the paths it was asked for."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode())
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/a.pdf", asked
