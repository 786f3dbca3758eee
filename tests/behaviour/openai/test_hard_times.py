"""Responses while everything around them breaks: each event once, whoever dies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import pytest
from openai import APIConnectionError, APIStatusError, DefaultAsyncHttpxClient

from tests.support.openai_events import check_events, events_of, read
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.session import batch
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.client import Client
    from tests.support.stack import Stack


async def whole(client: Client, **body: Any) -> list[dict[str, Any]]:
    """All events of a response."""
    async with client.http.stream("POST", "/v1/responses", json={"stream": True, **body}) as answer:
        return events_of(await answer.aread())


async def test_a_cut_at_every_event_of_a_long_turn(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred events and more: from each one on another front end writes the same bytes."""
    # Each piece is an event of its own.
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    other = await stack.front_end()
    async with client.http.stream(
        "POST", "/v1/responses", json={"stream": True, "input": "/tokens 120"}
    ) as answer:
        raw = await answer.aread()
    frames = [frame + b"\n\n" for frame in raw.split(b"\n\n")[:-1] if not frame.startswith(b":")]
    events = events_of(raw)
    assert len(events) > 100
    name = check_events(events)["id"]
    for event in events:
        after = event["sequence_number"]
        params = {"stream": "true", "starting_after": str(after)}
        rest = await other.http.get(f"/v1/responses/{name}", params=params)
        assert rest.content == b"".join(frames[after + 1 :])


async def test_a_cut_behind_every_event_of_a_long_turn(
    client: Client, stack: Stack, openai_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's client sees an error behind each of a hundred events, and has the rest from another front end."""
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    other = openai_at(await stack.front_end())
    line = Breaking()
    async with DefaultAsyncHttpxClient(transport=line) as http:
        openai = openai_at(client, http_client=http)
        whole: list[Any] = []
        await gather(await openai.responses.create(model="demo", input="/tokens 120", stream=True), whole)
        assert len(whole) > 100
        name = whole[0].response.id
        for events in range(1, len(whole) + 1):
            line.events = events
            got: list[Any] = []
            with pytest.raises(APIConnectionError):
                await gather(await openai.responses.retrieve(name, stream=True), got)
            assert got == whole[:events]
            after = got[-1].sequence_number
            await gather(await other.responses.retrieve(name, stream=True, starting_after=after), got)
            assert got == whole


class Breaking(httpx2.AsyncHTTPTransport):
    """Its connections break behind so many events, in the middle of the next one."""

    events = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """An answer that will break, once it is told where."""
        answer = await super().handle_async_request(request)
        if self.events:
            assert isinstance(answer.stream, httpx2.AsyncByteStream)
            answer.stream = Broken(answer.stream, self.events)
        return answer


class Broken(httpx2.AsyncByteStream):
    """What comes of an answer before its connection breaks."""

    def __init__(self, answer: httpx2.AsyncByteStream, events: int) -> None:
        self._answer = answer
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raw = b"".join([piece async for piece in self._answer])
        frames = raw.split(b"\n\n")
        yield b"\n\n".join([*frames[: self._events], frames[self._events][:7]])
        raise httpx2.ReadError("cut")

    async def aclose(self) -> None:
        """Be done with it."""
        await self._answer.aclose()


async def gather(stream: Any, got: list[Any]) -> None:
    """All that comes."""
    async for event in stream:
        got.append(event)


async def test_a_place_that_was_never_sent(client: Client, openai: Any) -> None:
    """Behind the last event there is none: the log may have lost some, and nothing that follows would fit."""
    name = check_events(await whole(client, input="/tokens 3"))["id"]
    slow = await openai.responses.create(model="demo", input="/slow 5", background=True)
    for response, after in ((name, 1000), (slow.id, 100)):
        with pytest.raises(APIStatusError) as gone:
            await openai.responses.retrieve(response, stream=True, starting_after=after)
        assert gone.value.status_code == 410
    await openai.responses.cancel(slow.id)


async def test_a_worker_is_lost_in_mid_item(client: Client, stack: Stack, openai_at: Any) -> None:
    """The item that was begun is closed as incomplete, the text is said anew; numbers stay dense, types strict."""
    del openai_at
    got: list[dict[str, Any]] = []
    body = {"input": "/tokens 40 50", "stream": True}
    async with client.http.stream("POST", "/v1/responses", json=body) as answer:
        rest, drained = b"", None
        async for piece in answer.aiter_raw():
            *frames, rest = (rest + piece).split(b"\n\n")
            got += read([frame for frame in frames if frame != b"data: [DONE]"])
            if drained is None and any(event["type"] == "response.output_text.delta" for event in got):
                # Its drain is over before its turn is: what it had not said is said by another one.
                await stack.worker()
                drained = asyncio.create_task(stack.stop_worker(stack.workers[0][0]))
    assert drained is not None
    await drained
    last = check_events(got)
    assert last["status"] == "completed"
    assert [item["status"] for item in last["output"]] == ["incomplete", "completed"]
    assert last["output"][-1]["content"][0]["text"] == "".join(f"tok{number} " for number in range(40))


async def test_heartbeats_disturb_nobody(stack: Stack, openai_at: Any) -> None:
    """A minute's worth of them, between the events; and they are there."""
    await stack.worker()
    hasty = await stack.front_end(heartbeat_seconds=0.05)
    openai = openai_at(hasty)
    stream = await openai.responses.create(model="demo", input="/slow 3", stream=True)
    events = [event async for event in stream]
    assert events[-1].response.output_text == "The result is That took 3 seconds."
    said: Any = [{"role": "user", "content": "/slow 1"}]
    chunks = await openai.chat.completions.create(model="demo", messages=said, stream=True)
    assert [chunk async for chunk in chunks][-1].choices[0].finish_reason == "stop"
    for path, body in (("/v1/responses", {"input": "/slow 1"}), ("/v1/chat/completions", {"messages": said})):
        answer = await hasty.http.post(path, json={"model": "demo", "stream": True, **body})
        assert answer.content.count(b": ping\n\n") > 5, path
        assert answer.content.endswith(b"\n\ndata: [DONE]\n\n"), path


async def test_what_was_cut_from_the_log(client: Client, stack: Stack, openai_at: Any) -> None:
    """The response is the same, its stream tells whole items, and what cannot be told as it was is refused."""
    last = check_events(await whole(client, input="/think", metadata={"a": "b"}))
    session = last["id"].removeprefix("resp_").partition("~")[0]
    keys = SessionKeys("dev", session)
    meta = await stack.log.meta(keys)
    assert meta is not None
    await stack.broker.sessions.xtrim(
        keys.log, minid=str(Cursor(meta.epoch, meta.seq + 1)), approximate=False
    )
    redis: Any = stack.broker.sessions
    await redis.hset(keys.meta, "head", str(meta.seq + 1))
    # Another front end has nothing in its ring.
    other = await stack.front_end()
    openai = openai_at(other)
    assert orjson.loads((await openai.responses.retrieve(last["id"])).to_json()) == last
    again = await other.http.get(f"/v1/responses/{last['id']}", params={"stream": "true"})
    assert check_events(events_of(again.content)) == last
    with pytest.raises(APIStatusError) as error:
        await openai.responses.retrieve(last["id"], stream=True, starting_after=3)
    assert error.value.status_code == 410


async def test_a_protocol_that_is_not_served(stack: Stack) -> None:
    """Its addresses are not there; the others are."""
    await stack.worker()
    client = await stack.front_end(protocols="agent_api, liteagent")
    assert (await client.http.get("/v1/models")).status_code == 404
    assert await client.turn("s1", "hi")
    client = await stack.front_end(protocols="default, liteagent")
    assert (await client.http.get("/v1/models")).status_code == 200
    with pytest.raises(ConfigurationError, match=r"no protocol 'smtp'; there are liteagent, .*, and default"):
        await stack.front_end(protocols="default,smtp")


async def test_one_turn_in_three_protocols(client: Client, stack: Stack, openai_at: Any) -> None:
    """Begun with OpenAI's client, followed by the others, answered through LiteAgent, stopped through the Agent API's session."""
    openai = openai_at(await stack.front_end())
    first = await openai.responses.create(model="demo", input="/call f {}")
    session, task, _ = first.id.removeprefix("resp_").split("~")
    (call,) = first.output
    async with client.follow(session, f"response_{task}") as follower:
        answer = await client.callback(session, f"call_{call.call_id.rpartition('~')[2]}", {"sky": "blue"})
        assert answer.status_code == 200
        frames = await follower.all()
    assert frames[-1].data["status"] == "completed"
    second = await openai.responses.retrieve(f"resp_{session}~{task}~1")
    assert second.output_text == 'The result is {"sky":"blue"}.'
    running = await openai.responses.create(
        model="demo", input="/slow 60", previous_response_id=second.id, background=True
    )
    assert (await client.stop(session)).status_code == 200

    async def canceled() -> bool:
        return bool((await openai.responses.retrieve(running.id)).status == "cancelled")

    await wait_until(canceled, "the response to be canceled")


async def test_a_front_end_that_stops_sends_the_retry_to_the_turn(
    client: Client, stack: Stack, openai_at: Any
) -> None:
    """A client that waits for a whole answer is told to ask again, and makes no second turn by it, wherever it asks."""
    other = await stack.front_end()
    openai = openai_at(other)
    first = await openai.responses.create(model="demo", input="/tokens 1")
    await openai.responses.create(model="demo", input="/tokens 1", previous_response_id=first.id)
    said = {"messages": [{"role": "user", "content": "/tokens 2"}]}
    requests = [
        ("/v1/responses", {"input": "/tokens 2"}, {}),
        # Goes on in a session of its own.
        ("/v1/responses", {"input": "/tokens 2", "previous_response_id": first.id}, {}),
        ("/v1/chat/completions", said, {}),
        ("/v1/chat/completions", said, {"X-Session-Id": "s1"}),
    ]
    # Nobody answers before the front end has stopped.
    await stack.stop_worker(stack.workers[0][0])
    before = await turns(other, stack)

    async def begun() -> bool:
        return await turns(other, stack) == before + len(requests)

    async def ask(at: Client, again: int) -> list[Any]:
        """The same requests, marked as these clients mark them."""
        return await asyncio.gather(
            *(
                at.http.post(
                    path, json=body, headers={**more, "x-stainless-retry-count": str(again)}, timeout=60
                )
                for path, body, more in requests
            )
        )

    asking = asyncio.create_task(ask(client, 0))
    await wait_until(begun, "the turns to begin")
    await stack.stop_front_end(client)
    answers = await asking
    assert {(each.status_code, each.headers.get("x-should-retry")) for each in answers} == {(503, "true")}
    await stack.worker()
    answers = await ask(other, 1)
    assert [answer.status_code for answer in answers] == [200] * len(requests)
    assert await turns(other, stack) == before + len(requests)
    # Another one's retry of the same words, in another chat, is no retry of these.
    path, body, _ = requests[-1]
    headers = {"X-Session-Id": "s2", "x-stainless-retry-count": "1"}
    await other.http.post(path, json=body, headers=headers, timeout=60)
    assert await turns(other, stack) == before + len(requests) + 1


async def turns(client: Client, stack: Stack) -> int:
    """How many turns were begun."""
    answer = await client.http.get("/metrics", headers={"Authorization": f"Bearer {stack.admin}"})
    lines = [line for line in answer.text.splitlines() if line.startswith("turnstream_turns_submitted_total")]
    return int(float(lines[0].split()[-1]))
