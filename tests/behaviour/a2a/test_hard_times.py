"""Tasks while everything around them breaks: each event once, at whichever front end."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import SubscribeToTaskRequest
from google.protobuf.json_format import MessageToDict

from tests.support.a2a import VERSION, Seen, frames_of, request, said, seen_in, words
from turnstream.api.protocols.a2a.task_encoder import CURSORS
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session import batch
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

WANTED = {**VERSION, "A2A-Extensions": f"urn:other, {CURSORS}"}


def cursor_of(event: dict[str, Any]) -> str | None:
    """The cursor in an event's metadata."""
    (told,) = event.values()
    cursor: str | None = told.get("metadata", {}).get(CURSORS, {}).get("cursor")
    return cursor


def more_than(count: int, frames: list[Any]) -> bool:
    """Whether so many frames were read already, and more came."""
    return len(frames) > count


@pytest.mark.parametrize("backend", ["valkey"], indirect=True)
async def test_a_cut_at_every_event_of_a_long_task(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred events and more: behind each cursor another front end writes the same bytes, after the task as it was there."""
    # Each piece is an event of its own.
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    other = await stack.front_end()
    answer = await client.http.post("/a2a/demo/message:stream", json=said("/tokens 120"), headers=WANTED)
    assert answer.headers["a2a-extensions"] == CURSORS
    frames = [frame + b"\n\n" for frame in answer.content.split(b"\n\n")[:-1] if not frame.startswith(b":")]
    events = frames_of(answer.content)
    assert len(events) > 100
    task = events[0][1]["task"]["id"]
    seen = Seen()
    for index, (cursor, event) in enumerate(events):
        assert cursor_of(event) == (cursor or None)
        assert cursor, "each event of this turn leads somewhere"
        rest = await other.http.get(
            f"/a2a/demo/tasks/{task}:subscribe", headers={**WANTED, "Last-Event-ID": cursor}
        )
        at, behind = rest.content.split(b"\n\n", 1)
        assert behind == b"".join(frames[index + 1 :])
        seen.take(event)
        then = seen_in(at + b"\n\n")
        assert (then.text, then.status) == (seen.text, seen.status)


async def test_the_real_client_comes_back(
    client: Client, stack: Stack, a2a_at: Any, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cursor of the last event that it got: the task as it was there, and then every piece of the text once."""
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    a2a, other = await a2a_at(client, binding), await a2a_at(await stack.front_end(), binding)
    seen, last, wanted = Seen(), "", ClientCallContext(service_parameters={"A2A-Extensions": CURSORS})
    stream = a2a.send_message(request("/tokens 20 5"), context=wanted)
    async for event in stream:
        seen.take(MessageToDict(event))
        last = cursor_of(seen.events[-1]) or ""
        assert last, "each event of this turn leads somewhere"
        if len(seen.events) > 6:
            break
    await stream.aclose()
    there = seen.text
    back = ClientCallContext(service_parameters={"A2A-Extensions": CURSORS, "Last-Event-ID": last})
    again = Seen()
    async for event in other.subscribe(SubscribeToTaskRequest(id=seen.task["id"]), context=back):
        again.take(MessageToDict(event))
    assert again.text == "".join(f"tok{number} " for number in range(20))
    at = Seen()
    at.take(again.events[0])
    assert at.text == there
    for each in again.events[1:]:
        seen.take(each)
    assert (seen.text, seen.states[-1]) == (again.text, "TASK_STATE_COMPLETED")
    # An artifact of which a piece came twice is told anew at its end: the text alone does not show that.
    pieces = [
        words(each["artifactUpdate"]["artifact"]["parts"])
        for each in again.events
        if "artifactUpdate" in each
    ]
    assert there + "".join(pieces) == again.text


async def test_without_a_cursor_nothing_is_lost(client: Client, stack: Stack) -> None:
    """Who comes in the middle gets the task as it is, then the rest."""
    async with client.open(
        "POST", "/a2a/demo/message:stream", json=said("/tokens 30 20"), headers=VERSION
    ) as one:
        await one.until(lambda frames: len(frames) > 5)
        task = one.frames[0].data["task"]["id"]
        other = await stack.front_end()
        rest = await other.http.post(f"/a2a/demo/tasks/{task}:subscribe", headers=VERSION)
    seen = seen_in(rest.content)
    assert seen.text == "".join(f"tok{number} " for number in range(30))
    assert cursor_of(seen.events[-1]) is None, "nobody asked for them"


async def test_a_front_end_that_stops(client: Client, stack: Stack, a2a_at: Any, binding: str) -> None:
    """Its client gets an error, never half an answer for a whole one, and goes on elsewhere."""
    other = await a2a_at(await stack.front_end(), binding)
    a2a = await a2a_at(client, binding)
    seen = Seen()
    stopping: asyncio.Task[None] | None = None

    async def follow() -> None:
        nonlocal stopping
        async for event in a2a.send_message(request("/tokens 60 30")):
            seen.take(MessageToDict(event))
            if stopping is None and seen.text:
                stopping = asyncio.create_task(stack.stop_front_end(client))

    with pytest.raises(A2AClientError):
        await follow()
    assert stopping is not None
    await stopping
    again = Seen()
    async for event in other.subscribe(SubscribeToTaskRequest(id=seen.task["id"])):
        again.take(MessageToDict(event))
    assert again.text == "".join(f"tok{number} " for number in range(60))


async def test_a_worker_is_lost(client: Client, stack: Stack) -> None:
    """What it had begun to say is an artifact that ends there; another worker says it anew."""
    seen, drained = Seen(), None
    async with client.open(
        "POST", "/a2a/demo/message:stream", json=said("/tokens 40 30"), headers=VERSION
    ) as one:
        while not one.ended:
            count = len(one.frames)
            await one.until(partial(more_than, count))
            for frame in one.frames[count:]:
                seen.take(frame.data)
            if drained is None and seen.text:
                await stack.worker()
                drained = asyncio.create_task(stack.stop_worker(stack.workers[0][0]))
    assert drained is not None
    await drained
    assert seen.states[-1] == "TASK_STATE_COMPLETED"
    assert list(seen.texts.values())[-1] == "".join(f"tok{number} " for number in range(40))


async def test_heartbeats_disturb_nobody(stack: Stack, a2a_at: Any, binding: str) -> None:
    """A minute's worth of them, between the events."""
    await stack.worker()
    hasty = await stack.front_end(heartbeat_seconds=0.05)
    a2a = await a2a_at(hasty, binding)
    seen = Seen()
    async for event in a2a.send_message(request("/slow 2")):
        seen.take(MessageToDict(event))
    assert seen.text == "The result is That took 2 seconds."
    answer = await hasty.http.post("/a2a/demo/message:stream", json=said("/slow 1"), headers=VERSION)
    assert answer.content.count(b": ping\n\n") > 5


async def test_what_was_cut_from_the_log(client: Client, stack: Stack) -> None:
    """The task is the same; behind a cursor nothing can be told any more."""
    answer = await client.http.post("/a2a/demo/message:stream", json=said("/tokens 5"), headers=VERSION)
    seen = seen_in(answer.content)
    (first, *_) = frames_of(answer.content)
    path = f"/a2a/demo/tasks/{seen.task['id']}"
    whole = (await client.http.get(path, headers=VERSION)).json()
    keys = SessionKeys("dev", seen.task["contextId"])
    meta = await stack.log.meta(keys)
    assert meta is not None
    redis: Any = stack.broker.sessions
    await redis.xtrim(keys.log, minid=str(Cursor(meta.epoch, meta.seq + 1)), approximate=False)
    await redis.hset(keys.meta, "head", str(meta.seq + 1))
    other = await stack.front_end()
    again = (await other.http.get(path, headers=VERSION)).json()
    assert again == whole
    rest = await other.http.post(path + ":subscribe", headers={**VERSION, "Last-Event-ID": first[0]})
    assert rest.status_code == 400
    assert rest.json()["error"]["details"][0]["reason"] == "INVALID_PARAMS"
    wrong = await other.http.post(path + ":subscribe", headers={**VERSION, "Last-Event-ID": "x"})
    assert wrong.status_code == 400


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_cursor_of_a_former_task(client: Client) -> None:
    """Gives the task as it is, with its user's message; a cursor behind its end gives its end."""
    places, tasks = [], []
    for number in range(2):
        body = said(f"/tokens {number + 2}", contextId="both")
        answer = await client.http.post("/a2a/demo/message:stream", json=body, headers=VERSION)
        places.append(frames_of(answer.content)[0][0])
        tasks.append(seen_in(answer.content))
    former, newer = tasks
    for task, place in ((newer, places[0]), (former, places[1])):
        path = f"/a2a/demo/tasks/{task.task['id']}"
        rest = await client.http.post(path + ":subscribe", headers={**VERSION, "Last-Event-ID": place})
        (only,) = seen_in(rest.content).events
        assert only == {"task": (await client.http.get(path, headers=VERSION)).json()}
