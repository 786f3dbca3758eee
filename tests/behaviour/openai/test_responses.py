"""Responses, as OpenAI's own client has them: whole, streamed, resumed, in the background, canceled, deleted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import APIConnectionError, NotFoundError

from tests.support.openai_events import check_events, events_of, strictly
from tests.support.waiting import wait_until
from turnstream.api.turns.ids import ResponseId
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

FEATURES = [
    "/tokens 3",
    "/think",
    "/tool add 1 2",
    "/dispatch",
    "/fail boo",
    "/reflect",
    "/image https://x/y.png",
    "/call f {}",
    "/approve files",
    "hi",
]


async def raw_events(client: Client, **body: Any) -> list[dict[str, Any]]:
    """A response's events as they are written."""
    async with client.http.stream(
        "POST", "/v1/responses", json={"model": "demo", "stream": True, **body}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        return events_of(await answer.aread())


@pytest.mark.parametrize("said", FEATURES)
async def test_every_event_is_as_documented(openai: Any, client: Client, said: str) -> None:
    """Names, numbers, required fields: by the strict types of OpenAI's client and of Open Responses."""
    last = check_events(await raw_events(client, input=said, metadata={"a": "b"}))
    whole = await openai.responses.retrieve(last["id"])
    assert orjson.loads(whole.to_json()) == last
    assert last["metadata"] == {"a": "b"}
    async with client.http.stream("GET", f"/v1/responses/{last['id']}", params={"stream": "true"}) as again:
        assert check_events(events_of(await again.aread())) == last


async def test_a_conversation_has_what_is_being_written(openai: Any) -> None:
    """Its text so far."""
    conversation = (await openai.conversations.create()).id
    begun = await openai.responses.create(
        model="demo", input="/tokens 200 50", conversation=conversation, background=True
    )

    async def is_listed() -> bool:
        items = (await openai.conversations.items.list(conversation, order="asc")).data
        return any(item.role == "assistant" and "tok0" in item.content[0].text for item in items)

    await wait_until(is_listed, "the text so far")
    await openai.responses.cancel(begun.id)


async def test_a_whole_answer(openai: Any) -> None:
    """Without a stream: the text, and what it cost."""
    answer = await openai.responses.create(model="demo", input="/tokens 3", user="u1", temperature=0.5)
    strictly(orjson.loads(answer.to_json()))
    assert answer.output_text == "tok0 tok1 tok2 "
    assert answer.status == "completed"
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.temperature, answer.user) == (3, 0.5, "u1")


async def test_a_failure_is_told(openai: Any) -> None:
    """As the response's error, whole and streamed; the client's iterator does not raise."""
    answer = await openai.responses.create(model="demo", input="/fail boo")
    assert answer.status == "failed"
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == ("server_error", "boo")
    stream = await openai.responses.create(model="demo", input="/fail boo", stream=True)
    assert [event.type async for event in stream][-1] == "response.failed"


async def test_a_cut_at_every_event(client: Client, stack: Stack, openai_at: Any) -> None:
    """Whoever comes back behind any event, at another front end, has the rest, to the letter; so has the client's helper."""
    other = await stack.front_end()
    openai = openai_at(other)
    events = await raw_events(client, input="/tool add 1 2")
    name = events[0]["response"]["id"]
    for event in events[:-1]:
        cut = event["sequence_number"]
        stream = await openai.responses.retrieve(name, stream=True, starting_after=cut)
        rest = [orjson.loads(each.to_json()) async for each in stream]
        assert rest == events[cut + 1 :]
        async with openai.responses.stream(response_id=name, starting_after=cut) as helped:
            told = [each.sequence_number async for each in helped]
            final = await helped.get_final_response()
        assert set(told) == {each["sequence_number"] for each in events[cut + 1 :]}
        assert final.output_text == "The result is 3."


async def test_a_live_response_is_resumed(client: Client, stack: Stack, openai_at: Any) -> None:
    """Cut in mid-turn, by the client, as often as there are pieces; the text is whole, each piece once."""
    others = [openai_at(await stack.front_end()), openai_at(client)]
    stream = await others[0].responses.create(model="demo", input="/tokens 30 20", stream=True)
    got: list[Any] = []
    async for event in stream:
        got.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    name = got[0].response.id
    while got[-1].type != "response.completed":
        openai = others[len(got) % 2]
        after = got[-1].sequence_number
        stream = await openai.responses.retrieve(name, stream=True, starting_after=after)
        async for event in stream:
            got.append(event)
            if event.sequence_number > after + 3:
                break
        await stream.close()
    assert [event.sequence_number for event in got] == list(range(len(got)))
    text = "".join(event.delta for event in got if event.type == "response.output_text.delta")
    assert text == "".join(f"tok{number} " for number in range(30)) == got[-1].response.output_text


async def test_a_front_end_that_stops_is_no_end(client: Client, stack: Stack, openai_at: Any) -> None:
    """The client sees an error where its front end stops in mid-turn, and goes on at another one."""
    other = openai_at(await stack.front_end())
    stream = await openai_at(client).responses.create(model="demo", input="/slow 2", stream=True)
    got = [await anext(stream)]
    stopping = asyncio.create_task(stack.stop_front_end(client))
    with pytest.raises(APIConnectionError):
        await _gather(stream, got)
    await stopping
    name, after = got[0].response.id, got[-1].sequence_number
    rest = [each async for each in await other.responses.retrieve(name, stream=True, starting_after=after)]
    assert [each.sequence_number for each in rest] == list(range(after + 1, after + 1 + len(rest)))
    assert rest[-1].response.output_text == "The result is That took 2 seconds."


async def _gather(stream: Any, got: list[Any]) -> None:
    async for event in stream:
        got.append(event)


async def test_in_the_background(openai: Any) -> None:
    """Answered at once, polled to its end."""
    answer = await openai.responses.create(model="demo", input="/tokens 5 30", background=True)
    assert answer.status in ("queued", "in_progress")
    assert answer.background

    async def ended() -> bool:
        return bool((await openai.responses.retrieve(answer.id)).status == "completed")

    await wait_until(ended, "the response to be completed")
    assert (await openai.responses.retrieve(answer.id)).output_text == "tok0 tok1 tok2 tok3 tok4 "


async def test_a_canceled_response(openai: Any) -> None:
    """The receipt says canceled, its stream ends as incomplete with that status, its open message is closed."""
    stream = await openai.responses.create(model="demo", input="/tokens 1000 20", stream=True)
    got = []
    canceled = None
    async for event in stream:
        got.append(event)
        if event.type == "response.output_text.delta" and canceled is None:
            canceled = await openai.responses.cancel(got[0].response.id)
    assert canceled is not None
    assert canceled.status == "cancelled"
    assert (got[-1].type, got[-1].response.status) == ("response.incomplete", "cancelled")
    strictly(orjson.loads(got[-1].response.to_json()))
    assert got[-1].response.output[0].status == "incomplete"
    assert (await openai.responses.cancel(got[0].response.id)).status == "cancelled"


async def test_a_deleted_response(openai: Any) -> None:
    """It is not found any more, by nobody and nothing."""
    answer = await openai.responses.create(model="demo", input="hi")
    await openai.responses.delete(answer.id)
    for ask in (
        openai.responses.retrieve(answer.id),
        openai.responses.delete(answer.id),
        openai.responses.cancel(answer.id),
        openai.responses.create(model="demo", input="hi", previous_response_id=answer.id),
    ):
        with pytest.raises(NotFoundError):
            await ask


async def test_what_is_not_stored_is_not_found(openai: Any) -> None:
    """With `store` false."""
    answer = await openai.responses.create(model="demo", input="hi", store=False)
    assert answer.output_text == "You said: hi"
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(answer.id)


@pytest.mark.parametrize(
    "said", [{"role": "developer", "content": "/tokens 1"}, {"role": "assistant", "content": "Well?"}]
)
async def test_an_input_without_a_user(openai: Any, client: Client, said: dict[str, str]) -> None:
    """The response tells what was asked at any front end, and is not found where it was not to be stored."""
    asked: Any = {"model": "demo", "input": [said], "metadata": {"a": "b"}}
    answer = await openai.responses.create(**asked)
    assert orjson.loads((await openai.responses.retrieve(answer.id)).to_json()) == orjson.loads(
        answer.to_json()
    )
    assert answer.metadata == {"a": "b"}
    items = (await openai.responses.input_items.list(answer.id)).data
    assert [item.role for item in items] == (["system"] if said["role"] == "developer" else [])
    unstored = await openai.responses.create(**asked, store=False)
    assert (await client.http.get(f"/v1/responses/{unstored.id}")).status_code == 404


async def test_the_items_of_an_input(openai: Any) -> None:
    """The user's messages, the newest first, in pages."""
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": text}]}
        for text in ("one", "two", "three")
    ]
    answer = await openai.responses.create(model="demo", input=said)
    items = [item async for item in openai.responses.input_items.list(answer.id, limit=1)]
    assert [item.content[0].text for item in items] == ["three", "two", "one"]
    items = (await openai.responses.input_items.list(answer.id, order="asc")).data
    assert [item.content[0].text for item in items] == ["one", "two", "three"]


async def test_a_response_goes_on_from_another(openai: Any) -> None:
    """In its session; only from the newest."""
    first = await openai.responses.create(model="demo", input="hi")
    second = await openai.responses.create(model="demo", input="there", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.id.partition("~")[0] == first.id.partition("~")[0]


async def test_a_response_goes_on_from_an_earlier_one(openai: Any, stack: Stack) -> None:
    """In a session of its own, that begins with what was said up to there; a repeat finds it."""
    first = await openai.responses.create(model="demo", input="one")
    second = await openai.responses.create(model="demo", input="two", previous_response_id=first.id)
    more: Any = {
        "model": "demo",
        "input": "three",
        "previous_response_id": first.id,
        "extra_headers": {"Idempotency-Key": "k"},
    }
    third = await openai.responses.create(**more)
    assert (third.previous_response_id, third.output_text) == (first.id, "You said: three")
    assert (await openai.responses.create(**more)).id == third.id
    fourth = await openai.responses.create(model="demo", input="four", previous_response_id=second.id)
    sessions = [each.id.removeprefix("resp_").partition("~")[0] for each in (first, second, third, fourth)]
    assert sessions[0] == sessions[1] == sessions[3] != sessions[2]
    redis: Any = stack.broker.sessions
    memory = await redis.lrange(SessionKeys("dev", sessions[2]).memory, 0, -1)
    assert [b"one" in each or b"three" in each for each in memory] == [True, True]


async def test_a_repeat_makes_no_second_turn(openai: Any, client: Client) -> None:
    """By its key; and where the client asks again by itself, in a session that it named."""
    first = await openai.responses.create(model="demo", input="one")
    more: Any = {"model": "demo", "input": "two", "previous_response_id": first.id}
    key = {"extra_headers": {"Idempotency-Key": "k"}}
    keyed = [(await openai.responses.create(**more, **key)).id for _ in range(2)]
    assert keyed[0] == keyed[1]
    more["previous_response_id"] = keyed[0]
    lost = await openai.responses.create(**more)
    answer = await client.http.post("/v1/responses", json=more, headers={"x-stainless-retry-count": "1"})
    assert answer.json()["id"] == lost.id
    said_again = await openai.responses.create(**more)
    assert said_again.id != lost.id


async def test_how_long_a_retry_finds_its_turn(openai: Any, client: Client, stack: Stack) -> None:
    """As long as the turn is live, whenever it began, and a moment longer; then the same words are another turn."""
    conversation = (await openai.conversations.create()).id
    body = {"model": "demo", "input": "hi", "conversation": conversation, "background": True}

    async def again() -> str:
        """The response that a retry finds, or makes."""
        answer = await client.http.post("/v1/responses", json=body, headers={"x-stainless-retry-count": "1"})
        return str(answer.json()["id"])

    await stack.stop_worker(stack.workers[0][0])
    first = (await openai.responses.create(**body)).id
    name = ResponseId.parse(first)
    task = SessionKeys("dev", name.session).task(name.task)
    redis: Any = stack.broker.sessions
    await redis.hset(task, "submitted", str(int(await redis.hget(task, "submitted")) - 600_000))
    assert await again() == first
    await openai.responses.cancel(first)
    assert await again() == first
    await redis.hset(task, "ended", str(int(await redis.hget(task, "ended")) - 60_000))
    second = await again()
    assert second != first
    await openai.responses.cancel(second)


async def test_models(openai: Any) -> None:
    """The key's agent, and no other."""
    assert [model.id async for model in openai.models.list()] == ["demo"]
    assert (await openai.models.retrieve("demo")).id == "demo"
    for ask in (openai.models.retrieve("gpt-4o"), openai.responses.create(model="gpt-4o", input="hi")):
        with pytest.raises(NotFoundError) as error:
            await ask
        assert error.value.code == "model_not_found"
