# ruff: noqa: INP001 - the documentation is no package
"""Writes ``docs/protocol.md``: the prose of ``docs/protocol.in.md``, with what a real deployment answers.

A line ``{{name}}`` in the prose stands for a scene: requests over HTTP to a front end and a worker of this
process, written down with every byte of their answers. Ids and times are replaced by names that stay the
same from run to run. ``make protocol`` runs it; ``tests/docs`` holds the result against what is committed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from unittest import mock

import httpx
import structlog
from fakeredis import FakeServer

from turnstream.api.server import FrontEnd
from turnstream.shared.agents import config
from turnstream.shared.agents.config import Agents, AgentSpec, McpServer
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.errors import Refused, TurnstreamError, Unavailable
from turnstream.shared.session import batch
from turnstream.shared.session.event_log import Log
from turnstream.shared.settings import Settings
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

HERE = Path(__file__).parent
TEMPLATE = HERE / "protocol.in.md"
DOCUMENT = HERE / "protocol.md"

OWNER = "docs"

# The smallest image.
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="

# Short enough that a heartbeat comes at once; used by the front end of the heartbeats' scene alone.
HASTY_SECONDS = 0.05


# ── the deployment ──


@dataclass(frozen=True)
class Deployment:
    """Where the agents answer.

    Attributes:
        url: a front end as it is deployed.
        hasty_url: a front end that sends heartbeats all the time.
        keys: agent → an API key for it.
        log: what the sessions' logs are read with.
    """

    url: str
    hasty_url: str
    keys: dict[str, str]
    log: Log

    async def parked(self, session: str) -> None:
        """Wait until the session's turn is parked: that is an entry, and an answer which came sooner would spare it."""
        keys = SessionKeys(OWNER, session)
        while not [
            task for task in await self.log.live(keys) if (await self.log.task(keys, task)).get("parks")
        ]:
            await asyncio.sleep(0.01)


def _agents() -> Agents:
    specs = {spec.name: spec for spec in config.load(None)}
    demo = specs[config.DEMO].model_dump(exclude_unset=True)
    for spec in (
        AgentSpec(name="every-content", python="docs.showcase:every_content"),
        AgentSpec(name="mirror", python="docs.showcase:mirror"),
        AgentSpec(name="shop", python="docs.showcase:shop"),
        AgentSpec(name="cut-off", python="docs.showcase:cut_off"),
        AgentSpec(name="sums", model="demo", mcp=(_mcp_server(),)),
        AgentSpec(name="storyteller", python="docs.showcase:storyteller"),
        AgentSpec(name="one-at-a-time", python="docs.showcase:storyteller", busy="reject"),
        AgentSpec.model_validate({**demo, "name": "one-shot", "simple": True}),
        AgentSpec.model_validate(
            {**demo, "name": "published", "version": "1", "a2a": {"description": "Does what it is told."}}
        ),
    ):
        specs[spec.name] = spec
    return Agents(specs)


def _mcp_server() -> McpServer:
    return McpServer(label="sums", command=sys.executable, args=(str(HERE / "showcase_mcp.py"),))


@asynccontextmanager
async def deployment() -> AsyncIterator[Deployment]:
    """A worker and two front ends in this process, on an embedded broker.

    Each piece of text is an event of its own, as of a model that paces: which pieces wait, and are joined, differs each time.
    """
    with mock.patch.object(batch, "JOINED_BYTES", 0):
        async with _deployment() as deployed:
            yield deployed


@asynccontextmanager
async def _deployment() -> AsyncIterator[Deployment]:
    configured = _agents()
    settings = Settings(
        redis_url="memory://",
        port=0,
        drain_seconds=0,
        agents=None,
        protocols="default,a2a",
        public_url="https://agents.example",
    )
    hasty = settings.model_copy(update={"heartbeat_seconds": HASTY_SECONDS})
    broker = Broker(settings, FakeServer())
    worker = WorkerProcess(settings, broker, configured)
    front_ends = [FrontEnd(each, configured, broker) for each in (settings, hasty)]
    urls = [f"http://127.0.0.1:{front_end.bind()}" for front_end in front_ends]
    serving = [asyncio.create_task(front_end.serve()) for front_end in front_ends]
    working = asyncio.create_task(worker.run())
    try:
        await worker.ready.wait()
        for front_end in front_ends:
            await front_end.started.wait()
        keys = {spec.name: make_token() for spec in configured}
        for name, token in keys.items():
            await ApiKeys(broker.primary).register(token, owner=OWNER, agent=name)
        yield Deployment(urls[0], urls[1], keys, Log(broker.sessions))
    finally:
        worker.stop()
        await working
        for front_end in front_ends:
            front_end.stop()
        await asyncio.gather(*serving)
        await broker.close()


# ── scenes ──


class Stream:
    """An answer that is read frame by frame and written down as far as it was read."""

    def __init__(self, scene: Scene, response: httpx.Response) -> None:
        self._scene = scene
        self._response = response
        self._pieces = response.aiter_text()
        self._rest = ""
        self._written = 0
        self.frames: list[str] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of all frames so far."""
        datas = [frame.partition("data:")[2].strip() for frame in self.frames if "data:" in frame]
        return [json.loads(data) for data in datas if data != "[DONE]"]

    async def until(self, enough: Callable[[Stream], Any]) -> None:
        """Read on until that is true of what was read, or the stream ends."""
        while not enough(self):
            piece = await anext(self._pieces, None)
            if piece is None:
                return
            *whole, self._rest = (self._rest + piece).split("\n\n")
            self.frames += whole

    async def to_end(self) -> None:
        """Read all, and write it down."""
        await self.until(lambda _: False)
        self.write()

    def write(self) -> None:
        """Write down what was read since the last time."""
        fresh = self.frames[self._written :]
        if not self._written:
            kind = self._response.headers["content-type"]
            self._scene.say(f"`{self._response.status_code}`, `{kind}`")
        elif fresh:
            self._scene.say("and the stream goes on")
        if fresh:
            self._scene.block("text", "\n\n".join(fresh) + "\n")
        self._written = len(self.frames)


class Scene:
    """One exchange with the deployment, and how it reads in the document."""

    def __init__(self, name: str, stage: Deployment) -> None:
        self.name = name
        self._stage = stage
        self._written: list[str] = []

    @property
    def text(self) -> str:
        """All of it, with names for ids and times."""
        return Names().given("\n".join(self._written).rstrip("\n"))

    def say(self, words: str) -> None:
        """A line before the next block."""
        self._written.append(f"{words}:\n")

    def block(self, language: str, body: str) -> None:
        """A fenced block."""
        self._written.append(f"```{language}\n{body.rstrip(chr(10))}\n```\n")

    async def parked(self, session: str) -> None:
        """Wait until the session's turn waits for its client."""
        await self._stage.parked(session)

    def client(self, agent: str = config.DEMO, *, hasty: bool = False) -> Client:
        """Somebody with a key of that agent."""
        url = self._stage.hasty_url if hasty else self._stage.url
        return Client(self, url, self._stage.keys[agent])


class Client:
    """Asks, and has what is asked and answered written down."""

    def __init__(self, scene: Scene, url: str, key: str) -> None:
        self._scene = scene
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        written: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request and its JSON answer, whatever its status."""
        request = self._request(method, path, body, headers, written=written)
        response = await self._http.send(request)
        answer = response.json()
        if written:
            self._scene.say(f"`{response.status_code}`, `{response.headers['content-type']}`")
            self._scene.block("json", response.text)
        return answer

    @asynccontextmanager
    async def follow(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        written: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Stream]:
        """One request and the stream that it opens."""
        request = self._request(method, path, body, headers, written=written)
        response = await self._http.send(request, stream=True)
        try:
            yield Stream(self._scene, response)
        finally:
            await response.aclose()

    async def init(self, *, written: bool = False) -> str:
        """A new LiteAgent session."""
        session: str = (await self.ask("POST", "/liteAgent/v1/initSession", written=written))["sessionId"]
        return session

    async def stop(self, session: str, *, written: bool = False) -> None:
        """Stop what runs in the session."""
        await self.ask("POST", f"/liteAgent/v1/stop?sessionId={session}", written=written)

    def _request(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None, *, written: bool
    ) -> httpx.Request:
        if written:
            lines = [f"{method} {path}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
            if body is not None:
                lines += ["", json.dumps(body, ensure_ascii=False)]
            self._scene.block("http", "\n".join(lines))
        return self._http.build_request(method, path, json=body, headers=headers)


Script: TypeAlias = "Callable[[Scene], Awaitable[None]]"


def asked(session: str, says: str, **more: Any) -> dict[str, Any]:
    """The body of a turn for ``/process``."""
    return {
        "session_id": session,
        "input": [{"role": "user", "content": [{"type": "text", "text": says}]}],
        **more,
    }


def said(says: str, *, stream: bool = True) -> dict[str, Any]:
    """The body of a turn for LiteAgent's ``/chat``."""
    return {"content": [{"type": "text", "message": says}], "stream": stream}


def _process(says: str, *, agent: str = config.DEMO, answer: Any = None, java: bool = False) -> Script:
    """A turn through ``/process``; its calls are answered through ``/callback``."""

    async def script(scene: Scene) -> None:
        path = "/process?dialect=java" if java else "/process"
        async with (
            scene.client(agent) as client,
            client.follow("POST", path, asked(scene.name, says)) as stream,
        ):
            if answer is not None:
                await stream.until(calls)
                await scene.parked(scene.name)
                stream.write()
                given = {"id": calls(stream)[0], "result": answer}
                await client.ask("POST", f"/liteAgent/v1/callback?sessionId={scene.name}", given)
            await stream.to_end()

    return script


def _chat(says: str, *, agent: str = config.DEMO, answer: Any = None, stream: bool = True) -> Script:
    """A turn through LiteAgent's ``/chat``."""

    async def script(scene: Scene) -> None:
        async with scene.client(agent) as client:
            session = await client.init()
            chat = f"/liteAgent/v1/chat?sessionId={session}"
            async with client.follow("POST", chat, said(says, stream=stream)) as reading:
                if answer is not None:
                    await reading.until(calls)
                    await scene.parked(session)
                    reading.write()
                    given = {"id": calls(reading)[0], "result": answer}
                    await client.ask("POST", f"/liteAgent/v1/callback?sessionId={session}", given)
                await reading.to_end()

    return script


def calls(stream: Stream) -> list[str]:
    """The ids of what the stream asks of its client."""
    found = []
    for event in stream.events:
        if event.get("type") == "functionCall":
            found.append(event["content"]["id"])
        closed = event.get("object") == "message" and event.get("status") == "completed"
        if closed and str(event["type"]).lower() in ("function_call", "mcp_approval_request"):
            data = event["content"][0]["data"]
            found.append(data.get("call_id") or data["id"])
    return found


def two_pieces(stream: Stream) -> bool:
    """Whether two pieces of text have come."""
    return sum(1 for event in stream.events if event.get("delta") or event.get("part")) >= 2


async def _answered_through_process(scene: Scene) -> None:
    """Two calls, answered in one further ``/process``."""
    async with scene.client() as client:
        async with client.follow("POST", "/process", asked(scene.name, "/calls 2")) as stream:
            await stream.until(lambda read: len(calls(read)) == 2)
            await scene.parked(scene.name)
            stream.write()
            ids = calls(stream)
        parts = [
            {"type": "data", "data": {"call_id": call, "output": output}}
            for call, output in zip(ids, ("one", "two"), strict=True)
        ]
        answers = [{"role": "tool", "type": "function_call_output", "content": parts}]
        body = {"session_id": scene.name, "input": answers}
        async with client.follow("POST", "/process", body) as stream:
            await stream.to_end()


async def _approved_through_process(scene: Scene) -> None:
    async with scene.client() as client:
        async with client.follow("POST", "/process", asked(scene.name, "/approve files")) as stream:
            await stream.until(calls)
            await scene.parked(scene.name)
            stream.write()
            (call,) = calls(stream)
        data = {"approval_request_id": call, "approve": True, "reason": "Go ahead."}
        answer = {
            "role": "user",
            "type": "mcp_approval_response",
            "content": [{"type": "data", "data": data}],
        }
        body = {"session_id": scene.name, "input": [answer]}
        async with client.follow("POST", "/process", body) as stream:
            await stream.to_end()


async def _completed_where_asked(scene: Scene) -> None:
    """As the official web UI does it: two requests, two responses."""
    async with scene.client() as client:
        body = asked(scene.name, "/approve files", id="files-1")
        async with client.follow("POST", "/process?on_park=complete", body) as stream:
            await stream.to_end()
            (call,) = calls(stream)
        data = {"approval_request_id": call, "approve": True}
        answer = {
            "role": "user",
            "type": "mcp_approval_response",
            "content": [{"type": "data", "data": data}],
        }
        body = {"session_id": scene.name, "input": [answer]}
        async with client.follow("POST", "/process?on_park=complete", body) as stream:
            await stream.to_end()


async def _every_content_sent(scene: Scene) -> None:
    """One part of each type in the input; an image by its link and as base64."""
    content = [
        {"type": "text", "text": "What do you see?"},
        {"type": "image", "image_url": "https://example.com/a.png"},
        {"type": "image", "image_url": PIXEL},
        {"type": "data", "data": {"answer": 42}},
        {"type": "audio", "data": "UklGRg==", "format": "wav"},
        {"type": "file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"},
        {"type": "video", "video_url": "https://example.com/a.mp4"},
        {"type": "refusal", "refusal": "I would rather not say."},
    ]
    body = {"session_id": scene.name, "input": [{"role": "user", "content": content}], "stream": False}
    async with scene.client("mirror") as client:
        await client.ask("POST", "/process", body)


async def _lite_images_sent(scene: Scene) -> None:
    content = [
        {"type": "text", "message": "What do you see?"},
        {"type": "imageUrl", "message": "https://example.com/a.png"},
        {"type": "imageUrl", "message": PIXEL},
    ]
    async with scene.client("mirror") as client:
        session = await client.init()
        chat = f"/liteAgent/v1/chat?sessionId={session}"
        async with client.follow("POST", chat, {"content": content, "stream": False}) as stream:
            await stream.to_end()


async def _stopped(scene: Scene) -> None:
    body = asked(scene.name, "Tell me a story.")
    async with scene.client("storyteller") as client, client.follow("POST", "/process", body) as stream:
        await stream.until(two_pieces)
        stream.write()
        await client.stop(scene.name, written=True)
        await stream.to_end()


async def _whole(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("POST", "/process", asked(scene.name, "hi", stream=False))


async def _ignored(scene: Scene) -> None:
    """One of the settings is honoured."""
    async with scene.client() as client:
        body = asked(scene.name, "hi", stream=False, model="gpt-5", temperature=0.2)
        await client.ask("POST", "/process", body)


async def _whole_parked(scene: Scene) -> None:
    """Without a stream: the call, and then its answer, through ``/process``."""
    async with scene.client() as client:
        parked = await client.ask("POST", "/process", asked(scene.name, "/call get_time {}", stream=False))
        call = parked["output"][0]["content"][0]["data"]["call_id"]
        part = {"type": "data", "data": {"call_id": call, "output": "noon"}}
        answer = {"role": "tool", "type": "function_call_output", "content": [part]}
        await client.ask("POST", "/process", {"session_id": scene.name, "input": [answer], "stream": False})


async def _resumed(scene: Scene) -> None:
    async with scene.client() as client:
        body = asked(scene.name, "/tokens 3", id="turn-1")
        async with client.follow("POST", "/process", body) as stream:
            await stream.until(lambda _: False)
            cut = next(place for place, event in enumerate(stream.events) if event.get("delta")) + 1
            cursor = stream.frames[cut - 1].partition("\n")[0].removeprefix("id: ")
            del stream.frames[cut:]
            stream.write()
        scene.say("the connection is lost here. The client comes back")
        path = f"/process?session_id={scene.name}&response_id=turn-1"
        async with client.follow("GET", path, headers={"Last-Event-ID": cursor}) as stream:
            await stream.to_end()


async def _reconnected(scene: Scene) -> None:
    async with scene.client("storyteller") as client:
        body = asked(scene.name, "Tell me a story.")
        async with client.follow("POST", "/process", body, written=False) as stream:
            await stream.until(two_pieces)
        body = {"session_id": scene.name, "reconnect": True}
        async with client.follow("POST", "/process", body) as stream:
            await stream.until(two_pieces)
            stream.write()
        await client.stop(scene.name)


async def _rejected(scene: Scene) -> None:
    async with scene.client("one-at-a-time") as client:
        async with client.follow(
            "POST", "/process", asked(scene.name, "Tell me a story."), written=False
        ) as stream:
            await stream.until(two_pieces)
        await client.ask("POST", "/process", asked(scene.name, "And another one."))
        await client.stop(scene.name)


async def _refused(scene: Scene) -> None:
    """One request for each kind of mistake."""
    async with scene.client() as client:
        wrong = {
            "session_id": scene.name,
            "input": [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        }
        await client.ask("POST", "/process", wrong)
        await client.ask("GET", "/process?session_id=never-seen")
        await client.ask(
            "POST", "/process", asked(scene.name, "hi"), headers={"Authorization": "Bearer nonsense"}
        )


async def _cleared(scene: Scene) -> None:
    async with scene.client() as client:
        session = await client.init()
        chat = f"/liteAgent/v1/chat?sessionId={session}"
        async with client.follow("POST", chat, said("hi"), written=False) as stream:
            await stream.until(lambda _: False)
        cursor = stream.frames[0].partition("\n")[0].removeprefix("id:")
        await client.ask("POST", f"/liteAgent/v1/clear?sessionId={session}")
        await client.ask("GET", f"/liteAgent/v1/history?sessionId={session}")
        await client.ask("GET", chat, headers={"Last-Event-ID": cursor})


async def _lite_text(scene: Scene) -> None:
    async with scene.client() as client:
        session = await client.init(written=True)
        chat = f"/liteAgent/v1/chat?sessionId={session}"
        async with client.follow("POST", chat, said("hi")) as stream:
            await stream.to_end()


async def _lite_stopped(scene: Scene) -> None:
    async with scene.client("storyteller") as client:
        session = await client.init()
        body = said("Tell me a story.") | {"taskId": "story-1"}
        async with client.follow("POST", f"/liteAgent/v1/chat?sessionId={session}", body) as stream:
            await stream.until(two_pieces)
            stream.write()
            await client.ask("GET", f"/liteAgent/v1/stop?sessionId={session}&taskId=story-1")
            await stream.to_end()


async def _lite_resumed(scene: Scene) -> None:
    async with scene.client() as client:
        session = await client.init()
        chat = f"/liteAgent/v1/chat?sessionId={session}"
        body = said("/tool add 1 2") | {"taskId": "sum-1"}
        async with client.follow("POST", chat, body, written=False) as stream:
            await stream.until(lambda _: False)
        # The client was cut off between toolsStart and toolCalls, which are frames of one event.
        cut = next(place for place, frame in enumerate(stream.frames) if '"toolsStart"' in frame)
        cursor = stream.frames[cut - 1].partition("\n")[0].removeprefix("id:")
        async with client.follow("POST", chat, body, headers={"Last-Event-ID": cursor}) as stream:
            await stream.to_end()


async def _lite_history(scene: Scene) -> None:
    async with scene.client() as client:
        session = await client.init()
        chat = f"/liteAgent/v1/chat?sessionId={session}"
        async with client.follow("POST", chat, said("/tool add 1 2"), written=False) as stream:
            await stream.until(lambda _: False)
        await client.ask("GET", f"/liteAgent/v1/history?sessionId={session}")


async def _lite_one_shot(scene: Scene) -> None:
    async with scene.client("one-shot") as client:
        async with client.follow("POST", "/liteAgent/v1/chat", said("hi", stream=False)) as stream:
            await stream.to_end()
        session = stream.events[0]["sessionId"]
        await client.ask("POST", f"/liteAgent/v1/clear?sessionId={session}")


def _has(frame: str, stream: Stream) -> bool:
    return frame in stream.frames


async def _heartbeats(scene: Scene) -> None:
    """The first heartbeat of each wire; nothing else of the streams."""
    async with scene.client("storyteller", hasty=True) as client:
        session = await client.init()
        for path, body, ping in (
            ("/process", asked(scene.name, "Tell me a story."), ": ping"),
            (f"/liteAgent/v1/chat?sessionId={session}", said("Tell me a story."), "event:ping\ndata:{}"),
        ):
            async with client.follow("POST", path, body, written=False) as stream:
                await stream.until(partial(_has, ping))
                scene.say(f"`{path.partition('?')[0]}`")
                scene.block("text", stream.frames[stream.frames.index(ping)])
        await client.stop(scene.name)
        await client.stop(session)


def _response(says: str, **more: Any) -> Script:
    """A response, streamed."""

    async def script(scene: Scene) -> None:
        body = {"model": config.DEMO, "input": says, "stream": True, **more}
        async with scene.client() as client, client.follow("POST", "/v1/responses", body) as stream:
            await stream.to_end()

    return script


async def _response_whole(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("POST", "/v1/responses", {"model": config.DEMO, "input": "hi"})


def _answered_response(says: str, item: Callable[[str], Any]) -> Script:
    """A response that asks its client, and the one that the answer begins."""

    async def script(scene: Scene) -> None:
        async with scene.client() as client:
            body = {"model": config.DEMO, "input": says, "stream": True}
            async with client.follow("POST", "/v1/responses", body) as stream:
                await stream.to_end()
                asked = stream.events[-1]["response"]["output"][0]
            answer = item(asked.get("call_id") or asked["id"])
            body = {"model": config.DEMO, "input": [answer], "stream": True}
            async with client.follow("POST", "/v1/responses", body) as stream:
                await stream.to_end()

    return script


def _output(call: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": "blue"}


def _consent(request: str) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}


async def _response_resumed(scene: Scene) -> None:
    """Cut, gone on with, canceled."""
    async with scene.client("storyteller") as client:
        body = {"model": "storyteller", "input": "Tell me a story.", "stream": True}
        async with client.follow("POST", "/v1/responses", body) as stream:
            await stream.until(two_texts)
            del stream.frames[7:]
            stream.write()
            name = stream.events[0]["response"]["id"]
        path = f"/v1/responses/{name}"
        async with client.follow("GET", f"{path}?stream=true&starting_after=5") as stream:
            await stream.until(lambda stream: stream.frames)
            await client.ask("POST", f"{path}/cancel", written=False)
            await stream.to_end()


def two_texts(stream: Stream) -> bool:
    """Whether two pieces of the text of a response, a run or a page's message have come."""
    kinds = [event["type"] for event in stream.events]
    names = ("response.output_text.delta", "TEXT_MESSAGE_CONTENT", "text-delta")
    return sum(map(kinds.count, names)) >= 2


async def _conversation(scene: Scene) -> None:
    async with scene.client() as client:
        made = await client.ask("POST", "/v1/conversations", {"metadata": {"topic": "demo"}})
        body = {"model": config.DEMO, "input": "hi", "conversation": made["id"]}
        await client.ask("POST", "/v1/responses", body, written=False)
        await client.ask("GET", f"/v1/conversations/{made['id']}/items")


def _completion(says: str, **more: Any) -> Script:
    """A chat completion, streamed."""

    async def script(scene: Scene) -> None:
        messages = [{"role": "user", "content": says}]
        body = {"model": config.DEMO, "messages": messages, "stream": True, **more}
        async with scene.client() as client, client.follow("POST", "/v1/chat/completions", body) as stream:
            await stream.to_end()

    return script


async def _completion_asks(scene: Scene) -> None:
    """A function of the client, without a stream."""
    async with scene.client() as client:
        messages: list[Any] = [{"role": "user", "content": "/call get_weather {}"}]
        path, body = "/v1/chat/completions", {"model": config.DEMO, "messages": messages}
        message = (await client.ask("POST", path, body))["choices"][0]["message"]
        call = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": call, "content": "blue"}]
        await client.ask("POST", path, body)


async def _openai_refused(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("POST", "/v1/responses", {"model": "gpt-5", "input": "hi"})
        await client.ask("POST", "/v1/responses", {"model": config.DEMO, "input": "hi", "temperature": 3})


async def _models(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("GET", "/v1/models")


_A2A = {"A2A-Version": "1.0"}
_CURSORS = {**_A2A, "A2A-Extensions": "urn:turnstream:a2a:cursor:v1"}


def _sent(says: str, number: int = 1, **more: Any) -> dict[str, Any]:
    """A message of A2A's."""
    parts = more.pop("parts", None) or [{"text": says}]
    return {"message": {"messageId": f"m{number}", "role": "ROLE_USER", "parts": parts, **more}}


async def _agent_card(scene: Scene) -> None:
    async with scene.client("published") as client:
        await client.ask("GET", "/a2a/published/.well-known/agent-card.json")


async def _a2a_message(scene: Scene) -> None:
    async with scene.client("published") as client:
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": _sent("/think")}
        await client.ask("POST", "/a2a/published", call, headers=_A2A)


async def _a2a_stream(scene: Scene) -> None:
    """Of a task that has ended, from its beginning: what a stream tells at once depends on how far the task is."""
    async with scene.client("published") as client:
        body = _sent("/tokens 3", 2)
        answer = await client.ask(
            "POST", "/a2a/published/message:send", body, written=False, headers=_CURSORS
        )
        task = answer["task"]
        path = f"/a2a/published/tasks/{task['id']}"
        told = await client.ask("GET", path, written=False, headers=_CURSORS)
        (cursor,) = told["metadata"].values()
        begun = cursor["cursor"].partition("-")[0] + "-2"
        headers = {**_CURSORS, "Last-Event-ID": begun}
        async with client.follow("POST", f"{path}:subscribe", headers=headers) as stream:
            await stream.to_end()


async def _a2a_asks(scene: Scene) -> None:
    async with scene.client("published") as client:
        body = _sent('/call get_weather {"city": "Rome"}', 3)
        task = (await client.ask("POST", "/a2a/published/message:send", body, headers=_A2A))["task"]
        call = task["status"]["message"]["parts"][1]["data"]["callId"]
        parts = [{"data": {"callId": call, "result": {"sky": "blue"}}}]
        body = _sent("", 4, parts=parts, taskId=task["id"])
        await client.ask("POST", "/a2a/published/message:send", body, headers=_A2A)


async def _a2a_refused(scene: Scene) -> None:
    async with scene.client("published") as client:
        call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "nobody~nothing"}}
        await client.ask("POST", "/a2a/published", call, headers=_A2A)
        await client.ask("GET", "/a2a/published/tasks/nobody~nothing", headers=_A2A)
        await client.ask("GET", "/a2a/published/tasks?pageSize=1000", headers=_A2A)
        await client.ask("GET", "/a2a/published/tasks")


def _ui(chat: str, *parts: dict[str, Any], role: str = "user", name: str = "message-1") -> dict[str, Any]:
    """What a page of the AI SDK posts: its last message is enough."""
    messages = [{"id": name, "role": role, "parts": parts}]
    return {"id": chat, "messages": messages, "trigger": "submit-message"}


def _ui_turn(says: str, answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Script:
    """A turn of a page, and the answer to what it is asked, if it gives one."""

    async def script(scene: Scene) -> None:
        async with scene.client() as client:
            body = _ui(scene.name, {"type": "text", "text": says})
            async with client.follow("POST", "/ai-sdk/chat", body) as stream:
                await stream.to_end()
                begun, *_ = stream.events
            if answer is not None:
                (asked,) = (each for each in stream.events if each["type"] == "tool-input-available")
                body = _ui(scene.name, answer(asked), role="assistant", name=begun["messageId"])
                async with client.follow("POST", "/ai-sdk/chat", body) as stream:
                    await stream.to_end()

    return script


def _ui_output(asked: dict[str, Any]) -> dict[str, Any]:
    call = {"toolCallId": asked["toolCallId"], "state": "output-available", "output": {"sky": "blue"}}
    return {"type": f"tool-{asked['toolName']}", "input": asked["input"], **call}


def _ui_consent(asked: dict[str, Any]) -> dict[str, Any]:
    call = {"toolCallId": asked["toolCallId"], "state": "approval-responded"}
    approval = {"id": asked["toolCallId"], "approved": True}
    return {"type": "dynamic-tool", "toolName": asked["toolName"], **call, "approval": approval}


async def _ui_resumed(scene: Scene) -> None:
    """A turn whose page left, found again and stopped, and the chat behind it."""
    async with scene.client("storyteller") as client:
        body = _ui(scene.name, {"type": "text", "text": "Tell me a story."})
        async with client.follow("POST", "/ai-sdk/chat", body) as stream:
            await stream.until(two_texts)
        chat = f"/ai-sdk/chat/{scene.name}"
        async with client.follow("GET", f"{chat}/stream") as stream:
            await stream.until(two_texts)
            stream.write()
            await client.ask("POST", f"{chat}/stop")
            await stream.to_end()
        await client.ask("GET", f"{chat}/messages")


async def _ui_refused(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("POST", "/ai-sdk/chat", _ui(scene.name))
        body = _ui(scene.name, {"type": "text", "text": "/call get_weather {}"})
        async with client.follow("POST", "/ai-sdk/chat", body, written=False) as stream:
            await stream.until(lambda _: False)
        body = _ui(scene.name, {"type": "text", "text": "Well?"}, name="message-2")
        await client.ask("POST", "/ai-sdk/chat", body)
        await client.ask("GET", "/ai-sdk/chat/nobody/messages")


def _agui(said: str = "", **more: Any) -> dict[str, Any]:
    """A request for a run, by a name that the page shows as it stands."""
    messages = [{"id": "message-1", "role": "user", "content": said}] if said else []
    return {"threadId": "page-1", "runId": "run-1", "protocolVersion": "1.0", "messages": messages, **more}


def _run(says: str, answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Script:
    """A run, and the one that answers what it asks, if it does."""

    async def script(scene: Scene) -> None:
        body = _agui(says, threadId=scene.name)
        async with scene.client() as client:
            async with client.follow("POST", "/ag-ui", body) as stream:
                await stream.to_end()
            if answer is not None:
                more = {"threadId": scene.name, "runId": "run-2", **answer(stream.events[-1]["outcome"])}
                async with client.follow("POST", "/ag-ui", _agui(**more)) as stream:
                    await stream.to_end()

    return script


def _tool_message(outcome: dict[str, Any]) -> dict[str, Any]:
    (call,) = outcome["pendingToolCallIds"]
    return {"messages": [{"id": "message-2", "role": "tool", "toolCallId": call, "content": "blue"}]}


def _resume(outcome: dict[str, Any]) -> dict[str, Any]:
    (interrupt,) = outcome["interrupts"]
    return {
        "resume": [
            {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}},
        ]
    }


async def _agui_connected(scene: Scene) -> None:
    """A run whose client left, connected to and stopped."""
    async with scene.client("storyteller") as client:
        async with client.follow("POST", "/ag-ui", _agui("Tell me a story.", threadId=scene.name)) as stream:
            await stream.until(two_texts)
        async with client.follow("POST", "/ag-ui/connect", _agui(threadId=scene.name)) as stream:
            await stream.until(two_texts)
            stream.write()
            await client.ask("POST", f"/ag-ui/stop/{scene.name}")
            await stream.to_end()


async def _agui_info(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ask("GET", "/ag-ui/info")


SCENES: dict[str, Script] = {
    "text": _process("hi"),
    "thinking": _process("/think"),
    "tool": _process("/tool add 1 2"),
    "mcp": _process("/tool multiply 6 7", agent="sums"),
    "callback": _process('/call get_weather {"city": "Rome"}', answer={"sky": "blue"}),
    "answers-through-process": _answered_through_process,
    "approval": _approved_through_process,
    "on-park": _completed_where_asked,
    "sub-agent": _process("/dispatch /tokens 2"),
    "critics": _process("/reflect"),
    "every-content": _process("What do you have?", agent="every-content"),
    "every-content-sent": _every_content_sent,
    "error-message": _process("An apple, please.", agent="shop"),
    "failure": _process("/fail out of ideas"),
    "broken-off": _process("When does it leave?", agent="cut-off"),
    "stop": _stopped,
    "whole": _whole,
    "whole-parked": _whole_parked,
    "resume": _resumed,
    "reconnect": _reconnected,
    "ignored": _ignored,
    "rejected": _rejected,
    "refused": _refused,
    "java": _process("/tool add 1 2", java=True),
    "java-callback": _process("/call get_time {}", answer="noon", java=True),
    "lite-text": _lite_text,
    "lite-text-whole": _chat("hi", stream=False),
    "lite-thinking": _chat("/think"),
    "lite-tool": _chat("/tool add 1 2", stream=False),
    "lite-mcp": _chat("/tool multiply 6 7", agent="sums", stream=False),
    "lite-callback": _chat('/call get_weather {"city": "Rome"}', answer={"sky": "blue"}),
    "lite-approval": _chat("/approve files", answer={"approve": False, "reason": "No."}, stream=False),
    "lite-dispatch": _chat("/dispatch /tokens 2", stream=False),
    "lite-dispatch-stream": _chat("/dispatch /tokens 2"),
    "lite-reflection": _chat("/reflect", stream=False),
    "lite-every-content": _chat("What do you have?", agent="every-content"),
    "lite-every-content-whole": _chat("What do you have?", agent="every-content", stream=False),
    "lite-images-sent": _lite_images_sent,
    "lite-failure": _chat("/fail out of ideas"),
    "lite-broken-off": _chat("When does it leave?", agent="cut-off"),
    "lite-stop": _lite_stopped,
    "lite-resume": _lite_resumed,
    "lite-history": _lite_history,
    "lite-clear": _cleared,
    "lite-one-shot": _lite_one_shot,
    "models": _models,
    "response": _response("/think", metadata={"topic": "demo"}),
    "response-tool": _response("/tool add 1 2"),
    "response-whole": _response_whole,
    "response-call": _answered_response("/call get_weather {}", _output),
    "response-approval": _answered_response("/approve files", _consent),
    "response-failure": _response("/fail out of ideas"),
    "response-resumed": _response_resumed,
    "conversation": _conversation,
    "completion": _completion("/think", stream_options={"include_usage": True}),
    "completion-call": _completion_asks,
    "completion-failure": _completion("/fail out of ideas"),
    "openai-refused": _openai_refused,
    "ui-text": _ui_turn("/think"),
    "ui-tool": _ui_turn("/tool add 1 2"),
    "ui-sub-agent": _ui_turn("/dispatch /tokens 2"),
    "ui-call": _ui_turn("/call get_weather {}", _ui_output),
    "ui-approval": _ui_turn("/approve files", _ui_consent),
    "ui-failure": _ui_turn("/fail out of ideas"),
    "ui-resumed": _ui_resumed,
    "ui-refused": _ui_refused,
    "agui-info": _agui_info,
    "agui-run": _run("/think"),
    "agui-tool": _run("/tool add 1 2"),
    "agui-sub-agent": _run("/dispatch /tokens 2"),
    "agui-call": _run("/call get_weather {}", _tool_message),
    "agui-interrupt": _run("/approve files", _resume),
    "agui-failure": _run("/fail out of ideas"),
    "agui-connect": _agui_connected,
    "heartbeats": _heartbeats,
    "agent-card": _agent_card,
    "agent-message": _a2a_message,
    "agent-stream": _a2a_stream,
    "agent-asks": _a2a_asks,
    "agent-refused": _a2a_refused,
}


# ── names ──


class Names:
    """Gives ids and times names that stay: numbered as they appear, times as if it were always then."""

    # 2023-11-14 22:13:20 UTC.
    SECONDS = 1_700_000_000

    _UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    _ID = re.compile(
        rf"(?:\b(msg|response|call|approval|chatcmpl|mcpl)[_-](?![0-9a-f]{{32}}~))?(?<![0-9a-f])({_UUID}|[0-9a-f]{{32}})\b"
    )
    _CURSOR = re.compile(r"\b(\d{16})-(\d+)\b")
    _TIMES = (
        (re.compile(r'("(?:created|created_at|completed_at)":)\d+'), rf"\g<1>{SECONDS}"),
        (re.compile(r'("(?:createdAt|completedAt)":)\d+'), rf"\g<1>{SECONDS}000"),
        (re.compile(r'("timestamp":)"[^"]*"'), r'\g<1>"2023-11-14T22:13:20.000Z"'),
        (re.compile(r'("expiresAt":)"[^"]*"'), r'\g<1>"2023-11-14T23:13:20.000Z"'),
        (re.compile(r'("createTime":)"[^"]*"'), r'\g<1>"2023-11-15T06:13:20.000+0800"'),
    )

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, str]] = {}
        self._epochs: dict[str, str] = {}

    def given(self, text: str) -> str:
        """The text with names in it."""
        for pattern, fixed in self._TIMES:
            text = pattern.sub(fixed, text)
        return self._ID.sub(self._id, self._CURSOR.sub(self._cursor, text))

    def _id(self, match: re.Match[str]) -> str:
        # A call's in an id of OpenAI's stands behind its task's.
        of_call = match.string[: match.start()].endswith("~") and "-" not in match[2]
        kind = match[1] or ("call" if of_call else "task" if "-" in match[2] else "session")
        known = self._ids.setdefault(kind, {})
        return known.setdefault(match[2], f"{kind}_{len(known) + 1}")

    def _cursor(self, match: re.Match[str]) -> str:
        epoch = self._epochs.setdefault(match[1], f"{self.SECONDS + len(self._epochs)}000000")
        return f"{epoch}-{match[2]}"


# ── tables ──


def errors() -> str:
    """Every error that a request may meet, as `turnstream.shared.errors` defines them."""
    rows = [
        "| status | LiteAgent's `code` | `reason` there | `code` elsewhere | when | again? |",
        "|---|---|---|---|---|---|",
    ]
    for error in sorted(_errors(), key=lambda each: (each.status, str(each.code))):
        doc = (error.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`").strip()
        again = "later" if error.retry_may_help else "no"
        code = json.dumps(error.code)
        numbered = f"`{error.number}` | `{error.word()}`"
        rows.append(f"| {error.status} | {numbered} | `{code}` | {re.sub(r' +', ' ', doc)} | {again} |")
    return "\n".join(rows)


def _errors() -> Iterator[type[TurnstreamError]]:
    for group in (Refused, Unavailable):
        # Those that one protocol has are not told by others.
        yield from (each for each in group.__subclasses__() if each.__module__ == group.__module__)


# ── the document ──

_PLACE = re.compile(r"^\{\{([a-z-]+)\}\}$", re.MULTILINE)


async def document() -> str:
    """The whole document, captured anew.

    Raises:
        ValueError: the template names a scene that is not there, or leaves one out.
    """
    template = TEMPLATE.read_text()
    wanted = set(_PLACE.findall(template))
    if wanted != {*SCENES, "errors"}:
        raise ValueError(
            f"scenes of {TEMPLATE.name} and of capture.py differ: {sorted(wanted ^ {*SCENES, 'errors'})}"
        )
    texts = {"errors": errors()}
    async with deployment() as stage:
        for name, script in SCENES.items():
            scene = Scene(name, stage)
            await script(scene)
            texts[name] = scene.text
    return _PLACE.sub(lambda match: texts[match[1]], template)


def main() -> None:
    """Write the document."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    text = asyncio.run(document())
    DOCUMENT.write_text(text)
    sys.stdout.write(f"{DOCUMENT.relative_to(Path.cwd())}: {len(SCENES)} scenes, {len(text)} characters\n")


if __name__ == "__main__":
    main()
