"""Chat completions, as OpenAI's own client has them: streamed, whole, with functions, in a session or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import APIConnectionError, APIError, BadRequestError, InternalServerError, NotFoundError
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.waiting import wait_until
from turnstream.api.streaming import leaving
from turnstream.shared.session import batch

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def user(*texts: str) -> list[Any]:
    """Messages of a user."""
    return [{"role": "user", "content": text} for text in texts]


def tool(call: str, content: str) -> dict[str, Any]:
    """The answer to a call."""
    return {"role": "tool", "tool_call_id": call, "content": content}


async def chunks_of(openai: Any, said: str, **more: Any) -> list[ChatCompletionChunk]:
    """The chunks of a completion, which are of the type's strict form."""
    stream = await openai.chat.completions.create(
        model="demo", messages=user(said), stream=True, stream_options={"include_usage": True}, **more
    )
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(orjson.loads(chunk.to_json()), strict=True)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    return chunks


def content(chunks: list[ChatCompletionChunk], field: str = "content") -> str:
    """What the chunks say."""
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    return "".join(getattr(delta, field, None) or "" for delta in deltas)


@pytest.mark.parametrize(
    ("said", "text", "thought"),
    [
        ("/tokens 3", "tok0 tok1 tok2 ", ""),
        ("/think", "I thought about it: it is fine.", "Let me think about that for a moment."),
        ("/tool add 1 2", "The result is 3.", ""),
        (
            "/dispatch",
            "I ask a colleague. \n\nThe result is I looked into it (find out): it is as you thought.",
            "",
        ),
    ],
)
async def test_a_completion(openai: Any, said: str, text: str, thought: str) -> None:
    """Its text, what was thought, and what it cost, in chunks and whole."""
    chunks = await chunks_of(openai, said)
    assert (content(chunks), content(chunks, "reasoning_content")) == (text, thought)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    whole = await openai.chat.completions.create(model="demo", messages=user(said))
    ChatCompletion.model_validate(orjson.loads(whole.to_json()), strict=True)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert getattr(choice.message, "reasoning_content", "") == thought
    assert whole.usage == chunks[-1].usage


async def test_a_long_completion(openai: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred pieces and more, each an event of its own: every one is told, once and in its place."""
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    chunks = await chunks_of(openai, "/tokens 120 1")
    deltas = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(deltas) > 100
    assert "".join(deltas) == "".join(f"tok{number} " for number in range(120))


async def test_a_failure(openai: Any, openai_at: Any, client: Client, stack: Stack) -> None:
    """An error, in the stream and instead of it; no second turn is made of it."""
    with pytest.raises(APIError, match="boo"):
        await chunks_of(openai, "/fail boo")
    before = await turns(client, stack)
    with pytest.raises(InternalServerError, match="boo"):
        await openai_at(client, max_retries=2).chat.completions.create(
            model="demo", messages=user("/fail boo")
        )
    assert await turns(client, stack) == before + 1


async def turns(client: Client, stack: Stack) -> int:
    """How many turns were begun."""
    answer = await client.http.get("/metrics", headers={"Authorization": f"Bearer {stack.admin}"})
    lines = [line for line in answer.text.splitlines() if line.startswith("turnstream_turns_submitted_total")]
    return int(float(lines[0].split()[-1]))


async def test_functions(openai: Any, stack: Stack, openai_at: Any) -> None:
    """Asked in one completion, answered in another one, at another front end, with a stream and without."""
    chunks = await chunks_of(openai, "/calls 2")
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    whole = (await openai.chat.completions.create(model="demo", messages=user("/calls 2"))).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls
    asked: list[Any] = [
        call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []
    ]
    assert [call.index for call in asked] == [0, 1]
    other = openai_at(await stack.front_end())
    for calls, stream in ((asked, True), (whole.message.tool_calls, False)):
        said = [
            *user("/calls 2"),
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": each.id, "type": "function", "function": each.function.to_dict()} for each in calls
                ],
            },
        ]
        with pytest.raises(BadRequestError, match="No tool output found for function call"):
            await other.chat.completions.create(model="demo", messages=[*said, tool(calls[0].id, "a")])
        said += [tool(each.id, text) for each, text in zip(calls, "ab", strict=True)]
        # A repeat finds the same.
        for _ in range(2):
            answer = await other.chat.completions.create(model="demo", messages=said, stream=stream)
            if stream:
                assert content([chunk async for chunk in answer]) == "The result is a, b."
            else:
                assert answer.choices[0].message.content == "The result is a, b."


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval(openai: Any, approve: bool) -> None:
    """As a function that the request offers for it."""
    offered = {"type": "function", "function": {"name": "approve_delete_everything", "parameters": {}}}
    first = await openai.chat.completions.create(
        model="demo", messages=user("/approve files"), tools=[offered]
    )
    message = first.choices[0].message
    assert message.tool_calls
    (call,) = message.tool_calls
    assert call.function.name == "approve_delete_everything"
    said = [
        *user("/approve files"),
        message.to_dict(),
        tool(call.id, orjson.dumps({"approve": approve}).decode()),
    ]
    second = await openai.chat.completions.create(model="demo", messages=said, tools=[offered])
    assert ("files is gone" in (second.choices[0].message.content or "")) == approve


async def test_a_client_that_cannot_be_asked(openai: Any) -> None:
    """Without such a function the tool is denied, and the turn goes on."""
    answer = await openai.chat.completions.create(model="demo", messages=user("/approve files"))
    assert (
        answer.choices[0].message.content
        == "The result is The tool call was denied. This client cannot be asked."
    )


async def test_a_session_by_its_header(openai: Any, client: Client, stack: Stack) -> None:
    """What the log has is not said again; a conversation that was edited is another one."""
    header = {"X-OpenWebUI-Chat-Id": "chat1"}
    said = user("/tokens 1")
    for turn in range(3):
        answer = await openai.chat.completions.create(model="demo", messages=said, extra_headers=header)
        said += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            *user(f"/tokens {turn}"),
        ]
    entries = await stack.entries("chat1")
    assert len({entry.task for entry in entries}) == 3
    assert sum(b'"role":"user"' in entry.event for entry in entries) == 3
    # Said anew from the second message on.
    answer = await openai.chat.completions.create(model="demo", messages=said[:3], extra_headers=header)
    assert answer.choices[0].message.content
    assert len(await stack.entries("chat1")) == len(entries)


async def test_a_session_goes_on_with_its_own_conversation_only(openai: Any, stack: Stack) -> None:
    """An answer that was made anew, or a message that was edited, is not in the log: what follows it is told the client's words."""
    header = {"X-Session-Id": "s1"}

    async def said(*texts: str) -> str:
        """The answer, where user and assistant take turns."""
        messages = [
            {"role": "assistant" if place % 2 else "user", "content": text}
            for place, text in enumerate(texts)
        ]
        answer = await openai.chat.completions.create(model="demo", messages=messages, extra_headers=header)
        return str(answer.choices[0].message.content)

    first = await said("one")
    edited = await said("another")
    assert edited == "You said: another"
    entries = await stack.entries("s1")
    # As many messages as the log has, and another answer.
    await said("another", edited, "two")
    assert len(await stack.entries("s1")) == len(entries)
    # A client that left has the beginning of the answer.
    for begun in (first[:8], first):
        before = len(await stack.entries("s1"))
        await said("one", begun, "two")
        assert (len(await stack.entries("s1")) > before) == (begun != first)


async def test_a_session_s_history_is_not_read_for_each_turn(openai: Any, stack: Stack) -> None:
    """Each turn says how many messages there are with it."""
    header, messages = {"X-Session-Id": "s1"}, user("one")
    for turn in range(3):
        answer = await openai.chat.completions.create(model="demo", messages=messages, extra_headers=header)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, *user(f"{turn}")]
    users = [entry for entry in await stack.entries("s1") if b'"role":"user"' in entry.event]
    assert [orjson.loads(entry.extra)["users"] for entry in users] == [1, 2, 3]


async def test_a_stopped_completion_is_not_whole(openai: Any, client: Client, stack: Stack) -> None:
    """Its finish reason is the one by which clients know that the answer was cut; their helpers raise then."""
    header = {"X-Session-Id": "s1"}
    stream = await openai.chat.completions.create(
        model="demo", messages=user("/tokens 200 50"), stream=True, extra_headers=header
    )
    finished: list[str] = []
    async for chunk in stream:
        if chunk.choices[0].delta.content and not finished:
            task = (await stack.entries("s1"))[0].task
            await client.stop("s1", task)
            finished.append("")
        finished += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    assert finished == ["", "length"]


async def test_another_user_s_call_is_not_found(openai: Any) -> None:
    """Whoever knows its id."""
    first = await openai.chat.completions.create(model="demo", messages=user("/call f {}"), user="u1")
    (call,) = first.choices[0].message.tool_calls
    said = [*user("/call f {}"), first.choices[0].message.to_dict(), tool(call.id, "x")]
    with pytest.raises(NotFoundError):
        await openai.chat.completions.create(model="demo", messages=said, user="u2")
    with pytest.raises(BadRequestError, match="printable"):
        await openai.chat.completions.create(
            model="demo", messages=said, extra_headers={"X-OpenWebUI-User-Id": "u" * 300}
        )
    answer = await openai.chat.completions.create(model="demo", messages=said, user="u1")
    assert answer.choices[0].finish_reason == "stop"


async def test_a_client_that_leaves(
    client: Client, stack: Stack, openai_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session its turn is stopped after a while; in one it goes on."""
    del client
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.2)
    openai = openai_at(await stack.front_end())
    in_session = {"X-Session-Id": "s1"}
    for header, said, ended in (({}, "/slow 60", "canceled"), (in_session, "/slow 2", "completed")):
        stream = await openai.chat.completions.create(
            model="demo", messages=user(said), stream=True, extra_headers=header
        )
        first = await anext(stream)
        await stream.close()
        await is_ended(stack, first, ended)


async def is_ended(stack: Stack, chunk: ChatCompletionChunk, status: str) -> None:
    """Wait for the end of the turn that a chunk is of."""
    task = chunk.id.removeprefix("chatcmpl-").rpartition("-")[0]

    async def ended() -> bool:
        keys = [key async for key in stack.broker.sessions.scan_iter(match=f"*:task:{task}")]
        redis: Any = stack.broker.sessions
        return [await redis.hget(key, "status") for key in keys] == [status.encode()]

    await wait_until(ended, f"the turn to be {status}")


async def test_a_client_that_leaves_after_an_answer(
    client: Client, stack: Stack, openai_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answered a call of is the same turn: stopped, if it has a session for itself."""
    del client
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 0.2)
    openai = openai_at(await stack.front_end())
    asked: list[Any] = []
    for header in ({}, {"X-Session-Id": "s1"}):
        first = await openai.chat.completions.create(
            model="demo", messages=user("/call f {}"), extra_headers=header
        )
        (call,) = first.choices[0].message.tool_calls
        asked.append([*user("/call f {}"), first.choices[0].message.to_dict(), tool(call.id, "a")])
    # Both wait for a worker.
    await stack.stop_worker(stack.workers[0][0])
    for said, ended in zip(asked, ("canceled", "completed"), strict=True):
        stream = await openai.chat.completions.create(model="demo", messages=said, stream=True)
        chunk = await anext(stream)
        await stream.close()
        if ended == "completed":
            await stack.worker()
        await is_ended(stack, chunk, ended)


async def test_a_repeat_finds_the_turn(openai: Any) -> None:
    """By its key, and by the id of the message that some clients send."""
    for header in ({"Idempotency-Key": "k1"}, {"X-OpenWebUI-Message-Id": "m1"}):
        ids = set()
        for _ in range(2):
            answer = await openai.chat.completions.create(
                model="demo", messages=user("hi"), extra_headers=header
            )
            ids.add(answer.id)
        assert len(ids) == 1


async def test_what_else_is_asked_about_a_message(openai: Any, stack: Stack) -> None:
    """The client's own request for a title, say, has the same headers: it is another turn, of no session."""
    header = {"X-OpenWebUI-Chat-Id": "chat1", "X-OpenWebUI-Message-Id": "m1"}
    for said in ("hi", "Give this chat a title."):
        answer = await openai.chat.completions.create(model="demo", messages=user(said), extra_headers=header)
        assert answer.choices[0].message.content == f"You said: {said}"
    assert len({entry.task for entry in await stack.entries("chat1")}) == 1


async def test_a_client_s_own_retry_finds_the_turn(openai_at: Any, client: Client, stack: Stack) -> None:
    """Without a key and without a session, where its connection was lost; the same words of another client are another turn."""
    impatient = openai_at(client, max_retries=20, timeout=1.2)
    before = await turns(client, stack)
    answer = await impatient.chat.completions.create(model="demo", messages=user("/slow 2"))
    assert answer.choices[0].message.content == "The result is That took 2 seconds."
    response = await impatient.responses.create(model="demo", input="/slow 2")
    assert response.output_text == "The result is That took 2 seconds."
    assert await turns(client, stack) == before + 2
    body = {"model": "demo", "input": "/slow 2"}
    other = await client.http.post(
        "/v1/responses", json=body, headers={"x-stainless-retry-count": "1"}, timeout=60
    )
    assert other.json()["id"] != response.id


async def test_a_repeat_in_a_session_finds_the_turn(openai: Any, client: Client, stack: Stack) -> None:
    """By its key, and where the client asks again by itself: the session has the message by then, which changes nothing."""
    said = user("hi")
    for turn in range(2):
        keyed = {"X-Session-Id": "s1", "Idempotency-Key": f"k{turn}"}
        ids = set()
        for again in ({}, {}, {"x-stainless-retry-count": "1", "Idempotency-Key": ""}):
            body = {"model": "demo", "messages": said}
            answer = await client.http.post("/v1/chat/completions", json=body, headers={**keyed, **again})
            ids.add(answer.json()["id"])
        assert len(ids) == 1
        said += [{"role": "assistant", "content": "You said: hi"}, *user("hi")]
    assert len({entry.task for entry in await stack.entries("s1")}) == 2


async def test_a_session_whose_calls_wait(openai: Any, stack: Stack) -> None:
    """A client that says something else instead is not kept waiting: it has a conversation of its own, which it tells."""
    header = {"X-Session-Id": "s1"}
    first = await openai.chat.completions.create(
        model="demo", messages=user("/call f {}"), extra_headers=header
    )
    said = [*user("/call f {}"), first.choices[0].message.to_dict()]
    (call,) = first.choices[0].message.tool_calls
    said += [tool(call.id, "a"), *user("/tokens 1")]
    answer = await openai.chat.completions.create(model="demo", messages=said, extra_headers=header)
    assert answer.choices[0].message.content == "tok0 "
    assert len({entry.task for entry in await stack.entries("s1")}) == 1


async def test_a_foreign_call(openai: Any) -> None:
    """It is not found."""
    said = [*user("hi"), {"role": "assistant", "tool_calls": []}, tool(f"call_{'0' * 32}~t~a", "x")]
    with pytest.raises(NotFoundError):
        await openai.chat.completions.create(model="demo", messages=said)


async def test_a_front_end_that_stops_is_no_end(client: Client, stack: Stack, openai_at: Any) -> None:
    """Half an answer is an error."""
    stream = await openai_at(client).chat.completions.create(
        model="demo", messages=user("/slow 5"), stream=True
    )
    await anext(stream)
    await stack.stop_front_end(client)
    with pytest.raises(APIConnectionError):
        await anext(stream)
