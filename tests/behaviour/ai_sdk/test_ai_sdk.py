"""The AI SDK's protocol as bytes: every chunk is one that its versions know, and what is refused, cut or trimmed.

What its own chats make of it is in clients/js/test/ai-sdk-protocol.test.js.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from pydantic import TypeAdapter
from pydantic_ai.ui.vercel_ai import request_types, response_types

from tests.support.client import calls_of
from tests.support.waiting import wait_until
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

Json = dict[str, Any]

# What the sixth version knows, and so the seventh: `DataChunk` is for all others.
_CHUNKS: dict[str, Any] = {
    each.model_fields["type"].default: each
    for each in response_types.BaseChunk.__subclasses__()
    if each is not response_types.DataChunk
}
_MESSAGES = TypeAdapter(list[request_types.UIMessage])


def post(chat: str, text: str, name: str = "", **more: Any) -> Json:
    """The body of a turn."""
    message = {"id": name or f"user-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat, "messages": [message], "trigger": "submit-message", **more}


def answer(chat: str, task: str, *parts: Json) -> Json:
    """The body of answers."""
    return {"id": chat, "messages": [{"id": task, "role": "assistant", "parts": [*parts]}]}


def read(content: bytes, *, whole: bool = True) -> list[Json]:
    """The chunks of a stream; each is one that the SDK knows, with nothing that it does not know."""
    frames = content.split(b"\n\n")
    frames.pop()
    frames = [frame for frame in frames if frame != b": ping"]
    if whole:
        assert frames.pop() == b"data: [DONE]"
    chunks: list[Json] = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    for chunk in chunks:
        model = response_types.DataChunk if chunk["type"].startswith("data-") else _CHUNKS[chunk["type"]]
        model.model_config["extra"] = "forbid"
        model.model_rebuild(force=True)
        model.model_validate(chunk)
    return chunks


def text_of(chunks: list[Json]) -> str:
    """What the agent says."""
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def taken(client: Client, body: Json, path: str = "/ai-sdk/chat") -> list[Json]:
    """A whole stream."""
    reply = await client.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return read(reply.content)


async def messages(client: Client, chat: str) -> list[Json]:
    """What was said in a chat."""
    told: list[Json] = (await client.http.get(f"/ai-sdk/chat/{chat}/messages")).json()
    _MESSAGES.validate_python(told)
    return told


# What no broker has a part in.
ON_ONE = pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)


@ON_ONE
async def test_every_chunk_is_known(client: Client) -> None:
    """Of all that the demo agent does, and of both ways of asking for consent."""
    for number, text in enumerate(
        (
            "hi",
            "/think",
            "/tool add 1 2",
            "/dispatch /think",
            "/reflect",
            "/fail on purpose",
            "/calls 2",
            "/approve x",
        )
    ):
        chunks = await taken(client, post(f"c{number}", text))
        assert [chunk["type"] for chunk in chunks][:2] == ["start", "start-step"]
        assert chunks[-1]["type"] == ("error" if "fail" in text else "finish")
        assert [each["role"] for each in await messages(client, f"c{number}")] == ["user", "assistant"]
    fifth = await taken(client, post("c9", "/approve x"), "/ai-sdk/v5/chat")
    assert "tool-approval-request" not in {chunk["type"] for chunk in fifth}


async def test_one_turn_through_several_protocols(client: Client, stack: Stack) -> None:
    """Begun by the Agent API, resumed here, answered through LiteAgent, and shown to both alike."""
    async with client.process("s1", "/call weather {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        other = await stack.front_end()

        async def parked() -> bool:
            return await stack.status("s1", "t1") == "parked"

        await wait_until(parked, "the turn to be parked")
        resumed = read((await other.http.get("/ai-sdk/chat/s1/stream")).content)
        assert [each["toolCallId"] for each in resumed if each["type"] == "tool-input-available"] == [
            call["call_id"]
        ]
        # What has its answer is not asked again.
        part = {
            "type": "tool-weather",
            "toolCallId": call["call_id"],
            "state": "output-available",
            "output": {"sky": 1},
        }
        rest = await taken(other, answer("s1", "t1", part))
        again = await taken(client, answer("s1", "t1", part))
        await stream.all()
    assert rest == again
    assert text_of(rest) == 'The result is {"sky":1}.'
    assert rest[0] == resumed[0] == {"type": "start", "messageId": "t1"}
    whole = read((await other.http.get("/ai-sdk/chat/s1/stream", params={"ended": "true"})).content)
    assert "tool-input-available" not in {chunk["type"] for chunk in whole}
    assert text_of(whole) == text_of(rest)
    assert (await other.http.get("/ai-sdk/chat/s1/stream")).status_code == 204
    assert [each["id"] for each in await messages(client, "s1")][1:] == ["t1"]


async def test_a_front_end_that_stops_is_a_broken_stream(client: Client, stack: Stack) -> None:
    """Not half an answer that looks whole; the rest is at another one, with heartbeats while nothing is said."""
    other = await stack.front_end(heartbeat_seconds=0.05)
    got: list[bytes] = []
    stopped: list[asyncio.Task[None]] = []

    async def read_on(stream: httpx.Response) -> None:
        async for piece in stream.aiter_bytes():
            got.append(piece)
            if not stopped:
                stopped.append(asyncio.create_task(stack.stop_front_end(client)))

    async with client.http.stream("POST", "/ai-sdk/chat", json=post("c1", "/slow 2")) as stream:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await read_on(stream)
    await stopped[0]
    assert read(b"".join(got), whole=False)[0]["type"] == "start"
    rest = await other.http.get("/ai-sdk/chat/c1/stream")
    assert b"\n\n: ping\n\n" in rest.content
    assert text_of(read(rest.content)) == "The result is That took 2 seconds."


async def test_what_was_cut_from_the_log(client: Client, stack: Stack) -> None:
    """A turn is told of its whole messages, and the chat is the same."""
    whole = await taken(client, post("c1", "/think"))
    before = await messages(client, "c1")
    keys = SessionKeys("dev", "c1")
    meta = await stack.log.meta(keys)
    assert meta is not None
    redis: Any = stack.broker.sessions
    await redis.xtrim(keys.log, minid=str(Cursor(meta.epoch, meta.seq + 1)), approximate=False)
    await redis.hset(keys.meta, "head", str(meta.seq + 1))
    other = await stack.front_end()
    told = read((await other.http.get("/ai-sdk/chat/c1/stream", params={"ended": "true"})).content)
    assert text_of(told) == text_of(whole)
    assert [chunk["type"] for chunk in told].count("reasoning-start") == 1
    assert await messages(other, "c1") == before
    # An edit that begins with a turn that is only in the history.
    first = await taken(other, post("c1", "two"))
    anew = await taken(
        other, post("c1", "two", trigger="regenerate-message", messageId=first[0]["messageId"])
    )
    assert anew[0]["messageId"] != first[0]["messageId"]
    assert (await messages(other, "c1"))[:2] == before


@ON_ONE
async def test_what_is_refused(client: Client) -> None:
    """With the field that is wrong, and what to do."""
    text = {"type": "text", "text": "hi"}
    user: Json = {"id": "m", "role": "user", "parts": [text]}
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    tool = {"type": "tool-f", "toolCallId": "x", "state": "output-available", "input": deep, "output": 1}
    nested = {"role": "assistant", "parts": [tool]}
    for body, told in (
        ({}, "id: Field required"),
        ({"id": "c"}, "messages: send at least one"),
        ({"id": "c", "messages": [{**user, "role": "cat"}]}, "messages[0].role"),
        ({"id": "c", "messages": [{**user, "parts": []}]}, "messages[0]: the user's, with text or a file"),
        ({"id": "c", "messages": [{**user, "role": "system"}]}, "messages[0]: the user's"),
        ({"id": "c", "message": {**user, "parts": [{"type": "file"}]}}, "message.parts[0].url"),
        ({"id": "c", "message": {**user, "parts": [{"type": "hologram"}]}}, "message.parts[0].type"),
        ({"id": "c", "message": user, "temperature": 9}, "temperature"),
        ({"id": "c", "message": user, "user": "\n"}, "user"),
        ({"id": "c", "message": user, "trigger": "x"}, "trigger"),
        ({"id": "c", "messages": [user, {**user, "parts": [1]}]}, "messages[1].parts[0]: Input"),
        # What a chat is to begin with.
        ({"id": "c", "messages": [{**user, "role": "cat"}, user]}, "messages[0].role"),
        ({"id": "c", "messages": [user] * 1001}, "at most 1000"),
        ({"id": "c", "messages": [nested, user]}, "messages[0].parts[0].input: nested too deep"),
    ):
        reply = await client.http.post("/ai-sdk/chat", json=body)
        assert reply.status_code == 422, reply.text
        assert told in reply.json()["message"]
    known = await taken(client, post("c", "/calls 2"))
    calls = [each["toolCallId"] for each in known if each["type"] == "tool-input-available"]
    task = known[0]["messageId"]
    one = {"type": "tool-f", "toolCallId": calls[0], "state": "output-available", "output": 1}
    early = await client.http.post("/ai-sdk/chat", json=answer("c", task, one))
    assert (early.status_code, calls[1].removeprefix("call_") in early.text) == (422, True)
    nothing = await client.http.post("/ai-sdk/chat", json=answer("c", task, text))
    assert (nothing.status_code, "answers no call" in nothing.text) == (422, True)
    waits = await client.http.post("/ai-sdk/chat", json=post("c", "next"))
    assert waits.status_code == 409
    again = await client.http.post("/ai-sdk/chat", json=post("c", "other words", "user-/calls 2"))
    assert (again.status_code, again.json()["code"]) == (422, "idempotency_mismatch")


@ON_ONE
async def test_files_settings_and_odd_ids(client: Client) -> None:
    """What pages send along is taken, applied, or left to them; any chat id is a chat."""
    parts: list[Json] = [
        {"type": "file", "mediaType": "image/png", "url": "https://x.example/a.png"},
        {
            "type": "file",
            "mediaType": "application/pdf",
            "url": "data:application/pdf;base64,AAAA",
            "filename": "a.pdf",
        },
        {"type": "data-place", "data": {"city": "Bern"}},
        {"type": "text", "text": "look"},
    ]
    body = {"id": "ünï/kö dé", "message": {"id": "m1", "role": "user", "parts": parts}, "temperature": 0.5}
    tools = {"light": {"description": "Switch it.", "parameters": {"type": "object", "properties": {}}}}
    await taken(
        client, {**body, "maxOutputTokens": 99, "topP": 0.5, "tools": tools, "selectedChatModel": "x"}
    )
    told = await client.http.get("/ai-sdk/chat/%C3%BCn%C3%AF%2Fk%C3%B6%20d%C3%A9/messages")
    assert told.status_code == 200
    assert told.json()[0]["parts"] == [
        {"type": "file", "mediaType": "image/*", "url": "https://x.example/a.png"},
        {"type": "file", "mediaType": "application/pdf", "url": parts[1]["url"], "filename": "a.pdf"},
        {"type": "text", "text": "look"},
    ]


@ON_ONE
async def test_a_model_that_is_no_agent(client: Client) -> None:
    """A page may send what it likes: what is not applied is named."""
    refused = await client.http.post("/ai-sdk/chat", json=post("c1", "hi", model="nobody"))
    assert refused.status_code == 200
    finish = read(refused.content)[-1]
    assert finish["messageMetadata"]["ignored"] == ["model"]


@ON_ONE
async def test_a_long_chat_goes_on(client: Client) -> None:
    """A page sends all that it holds each time; of a chat that is known only the last message is read."""
    earlier: Json = {"role": "assistant", "parts": [{"type": "from-the-future"}]}
    await taken(client, post("c1", "hi"))
    body = post("c1", "and on")
    body["messages"][:0] = [earlier, {"role": "user", "parts": [{"type": "hologram"}]}] * 600
    assert text_of(await taken(client, body)) == "You said: and on"


@ON_ONE
async def test_a_page_that_is_loaded_while_it_is_asked(client: Client) -> None:
    """Its last step has the calls, also when one of them has its answer: the SDK looks there for whether all are answered."""
    chunks = await taken(client, post("c1", "/calls 2"))
    task, calls = (
        chunks[0]["messageId"],
        [each["toolCallId"] for each in chunks if each["type"] == "tool-input-available"],
    )
    kinds = ["step-start", "tool-client_function", "tool-client_function"]
    assert [part["type"] for part in (await messages(client, "c1"))[-1]["parts"]] == kinds
    callback = {"id": calls[0], "result": "one"}
    await client.http.post("/liteAgent/v1/callback", params={"sessionId": "c1"}, json=callback)
    loaded = (await messages(client, "c1"))[-1]
    assert [part["type"] for part in loaded["parts"]] == kinds
    assert [part.get("state") for part in loaded["parts"]] == [None, "output-available", "input-available"]
    loaded["parts"][2] |= {"state": "output-available", "output": "two"}
    await taken(client, {"id": "c1", "messages": [loaded]})
    parts = (await messages(client, "c1"))[-1]["parts"]
    assert [part["type"] for part in parts] == [*kinds, "step-start", "text"]
    assert parts[0]["type"] == "step-start"
    assert task == loaded["id"]


@ON_ONE
async def test_two_pages_at_once(client: Client) -> None:
    """One takes the first turn anew while the other sends a message: that is in the chat, stopped with what was replaced, or refused."""
    for each in range(6):
        chat = f"c{each}"
        await taken(client, post(chat, "one"))
        anew, sent = await asyncio.gather(
            client.http.post("/ai-sdk/chat", json=post(chat, "one", trigger="regenerate-message")),
            client.http.post("/ai-sdk/chat", json=post(chat, "/slow 0.5")),
        )
        assert text_of(read(anew.content)) == "You said: one"
        said = [message["id"] for message in await messages(client, chat)]
        if sent.status_code == 409:
            assert "load it again" in sent.text
        elif "user-/slow 0.5" not in said:
            assert {"type": "abort"} in read(sent.content)
        assert (await client.http.get(f"/ai-sdk/chat/{chat}/stream")).status_code == 204


@ON_ONE
async def test_a_request_to_take_a_turn_anew_is_repeated(client: Client) -> None:
    """It finds the turn that the first one began, and lets it run."""
    await taken(client, post("c1", "/slow 0.5"))
    body, headers = post("c1", "/slow 0.5", trigger="regenerate-message"), {"Idempotency-Key": "k1"}
    async with client.http.stream("POST", "/ai-sdk/chat", json=body, headers=headers) as first:
        assert (await anext(first.aiter_bytes())).startswith(b'data: {"type":"start"')
        again = await client.http.post("/ai-sdk/chat", json=body, headers=headers)
    assert text_of(read(again.content)) == "The result is That took 0.5 seconds."


@ON_ONE
async def test_a_turn_of_a_deleted_chat_is_taken_anew(client: Client) -> None:
    """The page has it all, and the chat begins with that."""
    await taken(client, post("c1", "one"))
    assert (await client.http.delete("/v1/conversations/conv_c1")).status_code == 200
    assert text_of(await taken(client, post("c1", "one", trigger="regenerate-message"))) == "You said: one"
    assert [each["role"] for each in await messages(client, "c1")] == ["user", "assistant"]


@ON_ONE
async def test_ids_of_nobody_and_of_others(client: Client, stack: Stack) -> None:
    """Wherever an id can stand: the same, whether there is none or it is another owner's, agent's or user's; and nothing is done."""
    asked = await taken(client, post("c1", "/calls 2", user="ann"))
    task = asked[0]["messageId"]
    calls = [each["toolCallId"] for each in asked if each["type"] == "tool-input-available"]
    await taken(client, post("known", "hi"))
    keys = ApiKeys(stack.broker.primary)
    others = []
    for owner, agent in (("eve", "demo"), ("dev", "demo-critic")):
        token = make_token()
        await keys.register(token, owner=owner, agent=agent)
        others.append(stack.client(client.base_url, token))

    def given(chat: str, call: str) -> list[Json]:
        """A result, an error, and a consent, each of that call."""
        tool = {"type": "tool-f", "toolCallId": call}
        consent = {"approval": {"id": call, "approved": True}}
        return [
            answer(chat, task, {**tool, "state": "output-available", "output": 1}),
            answer(chat, task, {**tool, "state": "output-error", "errorText": "x"}),
            answer(chat, task, {**tool, "state": "approval-responded", **consent}),
            answer(chat, task, {**tool, "toolCallId": f"approve_{call}", "state": "output-available"}),
        ]

    for other in others:
        for path in ("/ai-sdk/chat", "/ai-sdk/v5/chat"):
            for verb, what, status in (
                ("GET", "stream", 204),
                ("POST", "stop", 404),
                ("GET", "messages", 404),
            ):
                theirs, nobodys = [
                    await other.http.request(verb, f"{path}/{chat}/{what}") for chat in ("c1", "nobody")
                ]
                assert (theirs.status_code, theirs.content) == (status, nobodys.content), what
            for theirs_, nobodys_ in zip(given("c1", calls[0]), given("nobody", calls[0]), strict=True):
                theirs, nobodys = [await other.http.post(path, json=body) for body in (theirs_, nobodys_)]
                assert (theirs.status_code, theirs.content) == (404, nobodys.content)
    # A call of another chat, by each of its names, in a chat of one's own.
    eve, _ = others
    await taken(eve, post("mine", "hi"))
    for who, chat in ((client, "known"), (eve, "mine")):
        for call in (calls[0], f"call_c1~{task}~{calls[0].removeprefix('call_')}", "call_none", "a~b", "~"):
            for body in given(chat, call):
                refused = await who.http.post("/ai-sdk/chat", json=body)
                assert (refused.status_code, refused.json()["code"]) == (404, "call_not_found"), call
    # Another user's chat.
    part = {"type": "tool-f", "toolCallId": calls[0], "state": "output-available", "output": 1}
    refused = await client.http.post("/ai-sdk/chat", json={**answer("c1", task, part), "user": "bob"})
    assert refused.status_code == 404
    # A message of another one's chat is none of this: nothing of that is in what begins here.
    await taken(eve, post("mine", "again", messageId=f"user-{'/calls 2'}"))
    await taken(eve, post("c1", "mine, too", trigger="regenerate-message", messageId=task))
    assert [each["role"] for each in await messages(eve, "c1")] == ["user", "assistant"]
    (_, held) = await messages(client, "c1")
    assert [each["state"] for each in held["parts"] if "toolCallId" in each] == ["input-available"] * 2
