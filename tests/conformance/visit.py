"""One visit of a LiteAgent client: every route asked once in each of its ways, and what came back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
from fakeredis import FakeServer

from tests.conformance.capture import Frame, Json, read
from tests.conformance.features import PIXEL
from tests.conftest import Place
from tests.support.stack import Stack
from turnstream.shared.agents import config
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.client import Client

BASE = "/liteAgent/v1"
TEXT = {"type": "text", "message": "hello there"}
TASK = "my-task_1.a:b@c"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    media_type: str
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def frames(self) -> list[Frame]:
        """The body as frames that tell something."""
        return [frame for frame in read(self.body) if frame.json]

    def bodies(self, kind: str) -> list[Json]:
        """The messages of a type, in an event stream."""
        return [frame.json for frame in self.frames if frame.json.get("type") == kind]


@cache
def visit() -> dict[str, Answer]:
    """The answers, by what was asked."""
    return asyncio.run(_visit())


async def _visit() -> dict[str, Answer]:
    more = (
        AgentSpec(name="one-shot", model="demo", simple=True),
        AgentSpec(name="rejecting", model="demo", busy="reject"),
    )
    async with served(*more) as (client, one_shot, rejecting):
        return await _Visitor(client).everything(one_shot, rejecting)


@asynccontextmanager
async def served(*more: AgentSpec) -> AsyncIterator[list[Client]]:
    """Clients of a deployment of its own: one of the demo agent, and one of each of these agents."""
    place = Place("memory://", FakeServer())
    stack = Stack(place, Agents({spec.name: spec for spec in (*config.load(None), *more)}))
    try:
        await stack.worker()
        clients = [await stack.front_end()]
        for spec in more:
            token = make_token()
            await ApiKeys(stack.broker.primary).register(token, owner="dev", agent=spec.name)
            clients.append(stack.client(clients[0].base_url, token))
        yield clients
    finally:
        await stack.close()
        await place.close()


class _Visitor:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._answers: dict[str, Answer] = {}

    async def everything(self, one_shot: Client, rejecting: Client) -> dict[str, Answer]:
        await self._ask("version", "GET", "/version")
        await self._ask("initSession", "POST", "/initSession")
        session = self._answers["initSession"].json["sessionId"]
        here = {"sessionId": session}
        for name, body in {
            "chat": {"content": [TEXT]},
            "chat, stream": {"content": [TEXT], "stream": True},
            "chat, contentList and isChunk": {"contentList": [TEXT], "isChunk": True},
            "chat, image by link": {"content": [TEXT, _image("https://example.com/path/to/image.png")]},
            "chat, image as base64": {"content": [TEXT, _image(PIXEL)]},
            "chat, taskId": {"content": [TEXT], "taskId": TASK},
            "chat, unknown part": {"content": [{"type": "video", "message": "x"}]},
            "chat, long taskId": {"content": [TEXT], "taskId": "x" * 37},
        }.items():
            await self._ask(name, "POST", "/chat", params=here, json=body)
        await self._ask(
            "chat, agentId", "POST", "/chat", params=here | {"agentId": "other"}, json={"content": [TEXT]}
        )
        await self._ask("follow", "GET", "/chat", params=here | {"taskId": TASK})
        cursor = self._answers["chat, taskId"].frames[1].id
        again = {"content": [TEXT], "taskId": TASK}
        resume = {"Last-Event-ID": cursor}
        await self._ask("chat, Last-Event-ID", "POST", "/chat", params=here, json=again, headers=resume)
        await self._ask("history", "GET", "/history", params=here)
        await self._call(here)
        await self._stop(here)
        await self._ask("clear", "GET", "/clear", params=here)
        await self._ask("history, cleared", "GET", "/history", params=here)
        for place in ("history", "stop", "clear"):
            await self._ask(f"{place}, unknown session", "GET", f"/{place}", params={"sessionId": "1"})
        await self._refused(here)
        await self._one_shot(one_shot)
        await self._busy(rejecting)
        return self._answers

    async def _call(self, here: dict[str, str]) -> None:
        """A function of the client, answered once and once more."""
        async with self._client.chat(here["sessionId"], "/call ask {}") as stream:
            frames = await stream.until(lambda frames: any(frame.event == "functionCall" for frame in frames))
            call = frames[-1].data["content"]["id"]
            given = {"id": call, "result": {"status": "operate successfully."}}
            await self._ask("callback", "POST", "/callback", params=here, json=given)
            await stream.all()
            self._answers["chat, callback"] = Answer(200, "text/event-stream", stream.raw)
        await self._ask("callback, again", "POST", "/callback", params=here, json=given)
        unknown = {"id": "call_1", "result": {}}
        await self._ask("callback, unknown", "POST", "/callback", params=here, json=unknown)

    async def _stop(self, here: dict[str, str]) -> None:
        """A task, then a whole session of two."""
        client, session = self._client, here["sessionId"]
        async with client.chat(session, "/call f {}", taskId="t1") as one:
            await one.until(bool)
            await self._ask("stop, task", "GET", "/stop", params=here | {"taskId": "t1"})
            await one.all()
        self._answers["chat, stopped"] = Answer(200, "text/event-stream", one.raw)
        async with client.chat(session, "/call f {}", taskId="t2") as two:
            await two.until(bool)
            async with client.chat(session, "/call f {}", taskId="t3") as three:
                await three.until(bool)
                await self._ask("stop, session", "GET", "/stop", params=here)
                await three.all()
            await two.all()
        self._answers["chat, stopped with its session"] = Answer(200, "", two.raw)
        self._answers["chat, stopped while it waited"] = Answer(200, "", three.raw)
        await self._ask("stop, unknown task", "GET", "/stop", params=here | {"taskId": "nope"})

    async def _refused(self, here: dict[str, str]) -> None:
        for name, header in {
            "no token": "",
            "bad token": "Bearer nonsense",
            "unknown key": f"Bearer sk-{'0' * 32}",
        }.items():
            await self._ask(name, "GET", "/history", params=here, headers={"Authorization": header})

    async def _one_shot(self, client: Client) -> None:
        mine, self._client = self._client, client
        await self._ask("one-shot chat", "POST", "/chat", json={"content": [TEXT]})
        session = self._answers["one-shot chat"].frames[0].json["sessionId"]
        await self._ask("one-shot clear", "GET", "/clear", params={"sessionId": session})
        self._client = mine
        await self._ask("chat without a session", "POST", "/chat", json={"content": [TEXT]})

    async def _busy(self, client: Client) -> None:
        mine, self._client = self._client, client
        session = await client.init()
        async with client.chat(session, "/call f {}") as stream:
            await stream.until(bool)
            params = {"sessionId": session}
            await self._ask("busy", "POST", "/chat", params=params, json={"content": [TEXT]})
            await client.stop(session)
            await stream.all()
        self._client = mine

    async def _ask(self, name: str, method: str, path: str, **given: Any) -> None:
        answer = await self._client.http.request(method, BASE + path, **given)
        media_type = answer.headers.get("content-type", "")
        self._answers[name] = Answer(answer.status_code, media_type, answer.content)


def _image(link: str) -> dict[str, str]:
    return {"type": "imageUrl", "message": link}
