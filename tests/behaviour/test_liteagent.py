"""The seven LiteAgent routes over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.client import Frame
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client


def shape(frames: list[Frame]) -> list[tuple[str, str]]:
    """Event name and type (or task status) of each frame."""
    return [
        (
            frame.event,
            frame.data["content"]["status"] if frame.data["type"] == "taskStatus" else frame.data["type"],
        )
        for frame in frames
    ]


async def chat(client: Client, session: str, text: str, **more: Any) -> list[Frame]:
    """A whole turn."""
    async with client.chat(session, text, **more) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
        frames: list[Frame] = await stream.all()
        return frames


async def test_the_version_has_three_numbers(client: Client) -> None:
    """`a.b.c`, as the documentation says."""
    version = (await client.http.get("/liteAgent/v1/version")).json()["version"]
    assert [part.isdigit() for part in version.split(".")] == [True] * 3


async def test_a_streamed_turn(client: Client) -> None:
    """Start, echo, chunks, closing chunk, closing message with completions, done."""
    session = await client.init()
    frames = await chat(client, session, "/tokens 3")
    chunks = [frame for frame in frames if frame.event == "chunk"]
    assert shape(frames) == [
        ("message", "start"),
        ("message", "contentList"),
        *[("chunk", "text")] * len(chunks),
        ("message", "text"),
        ("message", "done"),
    ]
    *parts, last = [frame.data["part"] for frame in chunks]
    assert ("".join(parts), last) == ("tok0 tok1 tok2 ", "")
    assert frames[-2].data["content"] == ""
    assert frames[-2].data["completions"]["usage"]["totalTokens"] > 0
    assert {frame.data["sessionId"] for frame in frames} == {session}
    assert len({frame.data["taskId"] for frame in frames}) == 1


async def test_a_turn_that_is_not_streamed(client: Client) -> None:
    """`stream: false`, the default: no chunks, one text message."""
    session = await client.init()
    frames = await chat(client, session, "/tokens 3", stream=False)
    assert shape(frames) == [
        ("message", "start"),
        ("message", "contentList"),
        ("message", "text"),
        ("message", "done"),
    ]
    assert frames[2].data["content"] == "tok0 tok1 tok2 "


async def test_a_client_function(client: Client) -> None:
    """toolsStart, toolCalls, functionCall; the callback's answer comes as toolReturn, toolsDone."""
    session = await client.init()
    async with client.chat(session, '/call f {"a": 1}') as stream:
        frames = await stream.until(lambda all_: all_ and all_[-1].event == "functionCall")
        call = frames[-1].data["content"]
        assert call["arguments"] == call["parameters"] == {"a": 1}
        answer = await client.callback(session, call["id"], {"status": "ok"})
        assert answer.status_code == 200
        frames = await stream.all()
    assert shape(frames)[2:7] == [
        ("message", "toolsStart"),
        ("message", "toolCalls"),
        ("functionCall", "functionCall"),
        ("message", "toolReturn"),
        ("message", "toolsDone"),
    ]
    returned = next(frame.data["content"] for frame in frames if frame.data["type"] == "toolReturn")
    assert returned == {"id": call["id"], "result": {"status": "ok"}}
    assert shape(frames)[-1] == ("message", "done")


async def test_an_approval(client: Client) -> None:
    """An approval is a functionCall with the tool's name, answered with a decision."""
    session = await client.init()
    async with client.chat(session, "/approve", stream=False) as stream:
        frames = await stream.until(lambda all_: all_ and all_[-1].event == "functionCall")
        call = frames[-1].data["content"]
        assert call["name"] == "delete_everything"
        await client.callback(session, call["id"], {"approve": True})
        frames = await stream.all()
    assert shape(frames)[-1] == ("message", "done")
    assert "everything is gone." in frames[-2].data["content"]


async def test_dispatch_and_reflection(client: Client) -> None:
    """Sub-agents speak as subagent with their parent's task; critics as reflection."""
    session = await client.init()
    frames = await chat(client, session, "/dispatch", stream=False)
    dispatched = [frame.data for frame in frames if frame.data["type"] == "dispatch"]
    assert [each["role"] for each in dispatched] == ["subagent", "subagent"]
    said = next(
        frame.data for frame in frames if frame.data["type"] == "text" and frame.data["role"] == "subagent"
    )
    assert said["parentTaskId"] == said["taskId"]
    frames = await chat(client, session, "/reflect", stream=False)
    reflections = [frame.data["content"] for frame in frames if frame.data["type"] == "reflection"]
    assert [each["isPass"] for each in reflections] == [False, True]


async def test_a_failure_is_an_exception(client: Client) -> None:
    """`exception` with code and error."""
    session = await client.init()
    last = (await chat(client, session, "/fail boom"))[-1].data["content"]
    assert last["status"] == "exception"
    assert last["description"] == {"code": "demo_failure", "error": "boom"}


async def test_history_shows_the_conversation(client: Client) -> None:
    """A bare array, both field names, no task status; stop and clear do as they say."""
    session = await client.init()
    await chat(client, session, "/tool add 1 2")
    history = (await client.http.get("/liteAgent/v1/history", params={"sessionId": session})).json()
    assert [each["type"] for each in history] == ["contentList", "toolCalls", "toolReturn", "text"]
    assert all(each["content"] == each["message"] for each in history)
    assert history[-1]["content"] == "The result is 3."
    cleared = await client.http.get("/liteAgent/v1/clear", params={"sessionId": session})
    assert cleared.content == b'{"id":"%b","sessionId":"%b"}' % (session.encode(), session.encode())
    assert cleared.headers["cache-control"] == "no-store"
    assert (await client.http.get("/liteAgent/v1/history", params={"sessionId": session})).json() == []


async def test_following_by_get_and_resuming(client: Client) -> None:
    """GET follows a task in either form; a known taskId is resumed, never started again."""
    session = await client.init()
    whole = await chat(client, session, "/tokens 5", taskId="t1")
    params = {"sessionId": session, "taskId": "t1", "stream": "true"}
    async with client.open("GET", "/liteAgent/v1/chat", params=params) as stream:
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in whole]
    async with client.chat(
        session, "/tokens 5", taskId="t1", headers={"Last-Event-ID": whole[1].id}
    ) as stream:
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in whole[2:]]
    async with client.chat(session, "/tokens 5", headers={"Last-Event-ID": whole[1].id}) as stream:
        assert [frame.raw for frame in await stream.all()] == [frame.raw for frame in whole[2:]]


async def test_a_stopped_turn_says_stop(client: Client, stack: Stack) -> None:
    """The stream ends with taskStatus stop."""
    session = await client.init()
    async with client.chat(session, "/tokens 1000 10", taskId="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 5)
        stopped = await client.http.get("/liteAgent/v1/stop", params={"sessionId": session, "taskId": "t1"})
        assert stopped.content == b'{"sessionId":"%b","taskId":"t1"}' % session.encode()
        frames = await stream.all()
    stopped = await client.http.get("/liteAgent/v1/stop", params={"sessionId": session})
    assert stopped.content == b'{"sessionId":"%b"}' % session.encode()
    assert shape(frames)[-1] == ("message", "stop")
    assert shape(frames)[-3:-1] == [("chunk", "text"), ("message", "text")]


async def test_clear_ends_what_runs(client: Client, stack: Stack) -> None:
    """Clearing a session in mid-turn ends the turn, and the worker gives it up."""
    session = await client.init()
    async with client.chat(session, "/tokens 1000 10") as stream:
        await stream.until(lambda frames: len(frames) >= 5)
        await client.http.post("/liteAgent/v1/clear", params={"sessionId": session})
        await stream.all()
    worker = stack.workers[0][0]
    await wait_until(lambda: not len(worker.leases), "the worker to give up the cleared turn")


async def test_a_clear_that_is_repeated_late_leaves_what_was_said_since(client: Client) -> None:
    """Its key tells: one whose answer was lost may still be on its way when the next turn begins. Another key is another clear."""
    session = await client.init()
    await chat(client, session, "/echo one")

    async def clear(key: str) -> None:
        answer = await client.http.post(
            "/liteAgent/v1/clear", params={"sessionId": session}, headers={"Idempotency-Key": key}
        )
        assert answer.json() == {"id": session, "sessionId": session}

    async def said() -> list[str]:
        history = await client.http.get("/liteAgent/v1/history", params={"sessionId": session})
        return [each["content"] for each in history.json() if each["role"] == "assistant"]

    await clear("first")
    assert await said() == []
    await chat(client, session, "/tokens 2")
    kept = await said()
    assert kept
    async with client.chat(session, "/tokens 1000 10") as stream:
        await stream.until(lambda frames: len(frames) >= 5)
        await clear("first")
        assert (await said())[:1] == kept
        await clear("second")
        await stream.all()
    assert await said() == []


async def test_the_stream_has_no_byte_that_clients_choke_on(client: Client) -> None:
    """No space after the colons, no comment, no CR, heartbeats as events."""
    session = await client.init()
    async with client.chat(session, "/tokens 3") as stream:
        await stream.all()
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert b"\r" not in stream.raw
    for line in stream.raw.split(b"\n"):
        assert line == b"" or line.startswith((b"id:", b"event:", b"data:"))
        assert b": " not in line[:7]


async def test_a_simple_agent_needs_no_session(place: Place) -> None:
    """One-shot: each chat has a session of its own, a known task is found again, and clear is refused."""
    demo = load_agents(None)["demo"]
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec.model_validate({**demo.model_dump(exclude_unset=True), "simple": True})
    stack = Stack(place, Agents(specs))
    await stack.worker()
    client = await stack.front_end()
    body = {"content": [{"type": "text", "message": "hi"}]}
    turns = []
    for task in ("t1", "t2", "t1"):
        async with client.open("POST", "/liteAgent/v1/chat", json=body | {"taskId": task}) as stream:
            turns.append(await stream.all())
    sessions = [frames[0].data["sessionId"] for frames in turns]
    assert sessions[0] != sessions[1]
    assert [frame.raw for frame in turns[0]] == [frame.raw for frame in turns[2]]
    refused = await client.http.post("/liteAgent/v1/clear", params={"sessionId": sessions[0]})
    assert refused.status_code == 400
    assert "one-shot" in refused.json()["message"]
    await stack.close()
