"""Every status is reached over HTTP, and every type of content reaches the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import asked, check_whole, terminal
from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents
from turnstream.shared.protocol import RunStatus

if TYPE_CHECKING:
    from tests.conftest import Place
    from tests.support.client import Client, Frame

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

# What a user may send, one of each kind.
PARTS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": "a\u2028b \U0001f600"},
    "image link": {"type": "image", "image_url": "https://example.com/a.png"},
    "image base64": {"type": "image", "image_url": PIXEL},
    "data": {"type": "data", "data": {"rows": [1, 2.5, None, True], "none": {}}},
    "audio base64": {"type": "audio", "data": "UklGRg==", "format": "wav"},
    "audio link": {"type": "audio", "data": "https://example.com/a.mp3", "format": "mp3"},
    "file link": {"type": "file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"},
    "file id": {"type": "file", "file_id": "file-1"},
    "file base64": {"type": "file", "file_data": "JVBERi0=", "filename": "b.pdf"},
    "video": {"type": "video", "video_url": "https://example.com/a.mp4"},
    "refusal": {"type": "refusal", "refusal": "I would rather not say."},
}


def statuses(frames: list[Frame], kind: str) -> list[str]:
    """The statuses of the events of one kind, in order; of a part's pieces only the first."""
    found: list[str] = []
    for frame in frames:
        if frame.data["object"] == kind and (kind != "content" or found[-1:] != [frame.data["status"]]):
            found.append(frame.data["status"])
    return found


async def serve(place: Place, agent: str, **more: Any) -> tuple[Client, Stack]:
    """A client of a deployment that serves one coded agent."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python=f"tests.support.coded:{agent}", **more)
    stack = Stack(place, Agents(specs))
    await stack.worker()
    return await stack.front_end(), stack


async def test_a_turn_that_goes_well(client: Client) -> None:
    """Queued, created, in_progress, completed: the response; created, in_progress, completed: its message."""
    frames = await client.turn("s1", "/tokens 3")
    assert statuses(frames, "response") == ["queued", "created", "in_progress", "completed"]
    assert statuses(frames, "message") == ["created", "in_progress", "completed"]
    assert statuses(frames, "content") == ["in_progress", "completed"]


async def test_a_turn_that_waits_is_queued(client: Client) -> None:
    """Behind another one a turn is queued and no more, until its turn comes; stopped there, it is canceled."""
    async with client.process("s1", "/call f {}", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 7)
        async with client.process("s1", "two", id="t2") as second:
            assert statuses(await second.until(bool), "response") == ["queued"]
            await client.stop("s1", "t2")
            frames = await second.all()
        assert statuses(frames, "response") == ["queued", "canceled"]
        await client.stop("s1")
        assert statuses(await first.all(), "response")[-1] == "canceled"


async def test_a_turn_that_fails(client: Client) -> None:
    """Failed, with an error."""
    frames = await client.turn("s1", "/fail boom")
    check_whole(frames)
    assert statuses(frames, "response")[-1] == "failed"
    assert frames[-1].data["error"] == {"code": "demo_failure", "message": "boom"}


async def test_a_turn_that_is_stopped(client: Client) -> None:
    """Canceled; the message that was being said, and its part, are incomplete, and hold what was said."""
    async with client.process("s1", "/tokens 1000 10", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 8)
        await client.stop("s1")
        frames = await stream.all()
    check_whole(frames)
    assert statuses(frames, "response")[-1] == "canceled"
    assert statuses(frames, "message") == ["created", "in_progress", "incomplete"]
    (message,) = frames[-1].data["output"]
    assert (message["status"], message["content"][0]["status"]) == ("incomplete", "incomplete")
    assert message["content"][0]["text"].startswith("tok0 tok1 ")


@pytest.mark.parametrize("java", [False, True])
async def test_a_turn_that_is_not_taken(place: Place, java: bool) -> None:
    """Rejected: the body of a 409, with an error, in the edition that was asked for."""
    client, stack = await serve(place, "guide", busy="reject")
    async with client.process("s1", "go", id="t1") as stream:
        await stream.until(lambda frames: len(frames) >= 5)
        params = {"dialect": "java"} if java else {}
        answer = await client.http.post("/process", json=asked("s1", "two", id="t2"), params=params)
        await client.stop("s1")
        await stream.all()
    body = answer.json()
    assert (answer.status_code, body["status"], body["error"]["code"]) == (409, "rejected", "session_busy")
    assert (body["id"], body["sessionId" if java else "session_id"]) == ("t2", "s1")
    await stack.close()


def test_no_status_is_forgotten() -> None:
    """The tests above show every status but unknown, which only clients meet."""
    shown = {"queued", "created", "in_progress", "completed", "canceled", "failed", "rejected", "incomplete"}
    assert {str(status) for status in RunStatus} - shown == {"unknown"}


async def test_every_type_of_content_reaches_the_agent(place: Place) -> None:
    """Text, images, data, audio, files, video and refusals are accepted, one by one and together, and arrive whole."""
    client, stack = await serve(place, "witness", file_ids=True)
    everything = list(PARTS.values())
    for session, parts in [
        *((f"s{number}", [part]) for number, part in enumerate(everything)),
        ("all", everything),
    ]:
        body = {"session_id": session, "input": [{"role": "user", "content": parts}]}
        async with client.open("POST", "/process", json=body) as stream:
            assert stream.response.status_code == 200, await stream.response.aread()
            ended = terminal(await stream.all())
        assert ended is not None
        assert ended["status"] == "completed", ended
        given = ended["output"][0]["content"][0]["data"]["given"]
        about = ("object", "status", "index", "delta", "msg_id")
        assert [{key: value for key, value in part.items() if key not in about} for part in given] == parts
    await stack.close()
