"""Large attachments: they stand once at the broker, and everybody who reads them gets them byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, terminal, text_of
from tests.support.fake_provider.server import Call, calls, says
from tests.support.names import names_of
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.offload import LARGE_BYTES
from turnstream.shared.session import batch, tasks
from turnstream.shared.session.files import GONE
from turnstream.shared.session.outcomes import Attempt
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.storage import SESSION_BYTES, TURN_BYTES, Storage
from turnstream.shared.session.tasks import operation
from turnstream.worker.agents import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack

# With both of the characters in which the alphabets differ.
DATA = base64.b64encode(b"\xfb\xef\xff" + os.urandom(9 * 2**18)).decode()
IMAGE = f"data:image/png;base64,{DATA}"
KEYS = SessionKeys("dev", "s1")


async def stored(stack: Stack, session: str = "s1") -> int:
    """The bytes that stand in the session's keys, counted one by one."""
    redis: Any = stack.broker.sessions
    total = 0
    for key in await names_of(redis, SessionKeys("dev", session).prefix + "*"):
        kind = await redis.type(key)
        if kind == b"hash":
            found = await redis.hgetall(key)
            total += sum(len(name) + len(value) for name, value in found.items())
        elif kind == b"list":
            total += sum(map(len, await redis.lrange(key, 0, -1)))
        elif kind == b"stream":
            total += sum(len(value) for _, fields in await redis.xrange(key) for value in fields.values())
    return total


def asking(**more: Any) -> dict[str, Any]:
    """The body of a turn with the image."""
    content = [{"type": "text", "text": "Look:"}, {"type": "image", "image_url": IMAGE}]
    return {"session_id": "s1", "input": [{"role": "user", "content": content}], **more}


async def look(client: Client) -> None:
    """A turn with the image."""
    async with client.open("POST", "/process", json=asking()) as stream:
        assert (terminal(await stream.all()) or {})["status"] == "completed"


async def test_an_image_stands_once(deploy: Deployments, provider: Provider) -> None:
    """Log, history and memory refer to it, also when it comes again; the owner is charged for it once."""
    client = await deploy(images=True)
    provider.script = [says("Nice."), says("Indeed."), says("Again.")]
    await look(client)
    assert len(DATA) < await stored(deploy.stack) < 1.3 * len(DATA)
    await client.turn("s1", "And now?")
    assert json.dumps(provider.messages()).count(IMAGE) == 1
    await look(client)
    assert json.dumps(provider.messages()).count(IMAGE) == 2
    real = await stored(deploy.stack)
    assert len(DATA) < real < 1.3 * len(DATA)
    storage = Storage(deploy.stack.broker.primary, deploy.stack.broker.sessions)
    await storage.report(KEYS)
    counted, *_ = await storage.of("dev", 1)
    assert len(DATA) < counted < real + SESSION_BYTES + 4 * TURN_BYTES + 20_000


async def test_the_event_loop_does_not_wait_for_it(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes tens of milliseconds for an image is done in threads, in front end and worker: others are served."""
    at_once: list[str] = []
    offload: set[str] = set()

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watching(given: Any, *more: Any) -> Any:
            done = work(given, *more)
            if max(len(each) for each in (given, done) if isinstance(each, bytes)) > LARGE_BYTES:
                if threading.current_thread() is threading.main_thread():
                    at_once.append(name)
                offload.add(name)
            return done

        return watching

    for module, name in ((batch, "cut"), (tasks, "fill"), (memory, "dump")):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    client = await deploy(images=True)
    provider.script = [says("Nice."), says("Indeed.")]
    await look(client)
    await client.turn("s1", "And now?")
    assert offload == {"cut", "fill", "dump"}
    assert at_once == []


@pytest.mark.parametrize("stream", [True, False])
async def test_liteagent_shows_it(deploy: Deployments, provider: Provider, stream: bool) -> None:
    """Byte for byte: in the echo, to who comes later and elsewhere, and in the history; a clear drops it."""
    client = await deploy(images=True)
    other = await deploy.stack.front_end()
    session = await client.init()
    provider.script = [says("Nice.")]
    parts = [{"type": "text", "message": "Look:"}, {"type": "imageUrl", "message": IMAGE}]
    async with client.chat(session, "", stream=stream, content=parts, taskId="t1") as live:
        frames = await live.all()
    assert [frame.data["content"] for frame in frames if frame.data["type"] == "contentList"] == [parts]
    assert stream is any(frame.event == "chunk" for frame in frames)
    async with other.open(
        "GET", "/liteAgent/v1/chat", params={"sessionId": session, "taskId": "t1"}
    ) as again:
        assert parts in [frame.data.get("content") for frame in await again.all()]
    answer = await other.http.get("/liteAgent/v1/history", params={"sessionId": session})
    assert answer.json()[0]["content"] == parts
    assert len(DATA) < await stored(deploy.stack, session) < 1.3 * len(DATA)
    assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": session})).status_code == 200
    assert await stored(deploy.stack, session) < 20_000


async def test_who_takes_a_turn_up_has_it(deploy: Deployments, provider: Provider) -> None:
    """Its first worker is gone: another one's model sees what the request brought."""
    client = await deploy.front_end(images=True, deployment={"lease_seconds": 1})
    provider.script = [says("Nice.")]
    launches = LaunchQueue(deploy.stack.broker.primary)
    async with client.open("POST", "/process", json=asking(id="t1")) as stream:
        await stream.until(bool)
        assert await wait_until(lambda: launches.claim(1), "the launch")
        ref = TaskRef("dev", "s1", "t1")
        assert isinstance(await deploy.stack.tasks.begin(ref, 1, "dead-1-abc", operation()), Attempt)
        await deploy.stack.worker()
        assert text_of(await stream.all()) == "Nice."
    assert json.dumps(provider.messages()).count(IMAGE) == 1


async def test_an_answer_to_a_call_stands_once(deploy: Deployments, provider: Provider) -> None:
    """A client function returned it: the model sees it, and so does who reads the turn."""
    client = await deploy()
    png = IMAGE[:400_022]
    tool = {"type": "function", "function": {"name": "shot", "parameters": {}}}
    provider.script = [calls(Call("shot")), says("Nice.")]
    async with client.process("s1", "Show me", tools=[tool]) as stream:
        (call,) = calls_of(await stream.until(calls_of))
        assert (await client.callback("s1", call["call_id"], {"png": png})).status_code == 200
        frames = await stream.all()
    assert text_of(frames) == "Nice."
    assert png in json.dumps(provider.messages()[-1])
    assert png in json.dumps(calls_of(frames, "function_call_output"))
    assert len(png) < await stored(deploy.stack) < 1.3 * len(png)


async def test_a_turn_whose_file_is_lost_is_forgotten(deploy: Deployments, provider: Provider) -> None:
    """The conversation goes on without it, and readers are told."""
    client = await deploy(images=True)
    provider.script = [says("Nice."), says("Indeed.")]
    await look(client)
    await deploy.stack.broker.sessions.delete(KEYS.files)
    assert text_of(await client.turn("s1", "And now?")) == "Indeed."
    assert [message["content"] for message in provider.messages()] == ["And now?"]
    answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
    assert answer.json()[0]["content"][1]["message"] == f"data:image/png;base64,{GONE}"


async def test_what_nothing_refers_to_is_dropped(deploy: Deployments, provider: Provider) -> None:
    """When log, history and memory have lost the turn, the image goes; the sums are as if it had never been there."""
    client = await deploy(images=True, memory={"turns": 1}, deployment={"log_max_bytes": 100_000})
    provider.script = [says("Nice."), *[says("words " * 10_000)] * 6]
    await look(client)
    for _ in range(6):
        await client.turn("s1", "More")
    assert await stored(deploy.stack) < 400_000
    storage = Storage(deploy.stack.broker.primary, deploy.stack.broker.sessions)
    await storage.report(KEYS)
    counted, *_ = await storage.of("dev", 1)
    assert abs(counted - await stored(deploy.stack)) < 100_000


@pytest.mark.parametrize("mark", ["\x1a", "\\u001a"])
async def test_nobody_forges_a_reference(deploy: Deployments, provider: Provider, mark: str) -> None:
    """A text that looks like one, to a file that is there, is text: to the model, then and later, and to readers."""
    client = await deploy(images=True)
    provider.script = [says("Nice."), says("So?"), says("So.")]
    await look(client)
    text = f"{mark}s{hashlib.sha256(DATA.encode()).hexdigest()}{mark}"
    await client.turn("s1", text)
    await client.turn("s1", "Go on")
    for request in (1, 2):
        assert text in [message["content"] for message in provider.messages(request)]
    answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": "s1"})
    assert {"type": "text", "message": text} in answer.json()[2]["content"]
