"""Runs while everything around them breaks: who connects is told all of them, whoever died."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.behaviour.ag_ui.conftest import Talk
from tests.support.agui_events import check_run, events_of, read, text_of
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session import batch
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack


@pytest.mark.parametrize("backend", ["valkey"], indirect=True)
async def test_a_cut_at_every_event_of_a_long_turn(
    talk: Talk, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred events and more: who was cut off behind any of them connects to another front end, and has the same at the end."""
    # Each piece is an event of its own.
    monkeypatch.setattr(batch, "JOINED_BYTES", 0)
    await talk.run("before")
    other = await stack.front_end()
    connected: list[asyncio.Task[httpx.Response]] = []
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {stack.key}"}
    async with httpx.AsyncClient(
        base_url=other.base_url, headers=headers, limits=limits, timeout=60, verify=False
    ) as http:
        async with talk.client.http.stream("POST", "/ag-ui", json=talk.say("/tokens 110 2").body()) as answer:
            raw = b""
            async for piece in answer.aiter_raw():
                raw += piece
                for _ in range(raw.count(b"\n\n") - len(connected)):
                    connected.append(
                        asyncio.create_task(http.post("/ag-ui/connect", json=talk.body(messages=[])))
                    )
        frames = [frame for frame in raw.split(b"\n\n")[:-1] if not frame.startswith(b":")]
        assert len(frames) > 100
        check_run(read(frames))
        for got in await asyncio.gather(*connected):
            begun, snapshot, *rest = got.content.split(b"\n\n")[:-1]
            assert [begun, *rest] == frames
            (event,) = read([snapshot])
            said = [message["content"] for message in event["messages"]]
            assert said == ["before", "You said: before", "/tokens 110 2"]


async def test_a_worker_is_lost_in_mid_answer(talk: Talk, stack: Stack) -> None:
    """What was begun is closed, the text is said anew in another message."""
    raw, drained = b"", None
    async with talk.client.http.stream("POST", "/ag-ui", json=talk.say("/tokens 40 50").body()) as answer:
        async for piece in answer.aiter_raw():
            raw += piece
            if drained is None and b"TEXT_MESSAGE_CONTENT" in raw:
                # Its drain is over before its turn is: what it had not said is said by another one.
                await stack.worker()
                drained = asyncio.create_task(stack.stop_worker(stack.workers[0][0]))
    assert drained is not None
    await drained
    events = events_of(raw)
    check_run(events)
    names = [event["messageId"] for event in events if event["type"] == "TEXT_MESSAGE_START"]
    assert len(names) == 2
    last = [event for event in events if event.get("messageId") == names[-1]]
    assert text_of(last) == "".join(f"tok{number} " for number in range(40))


async def test_heartbeats_disturb_nobody(stack: Stack) -> None:
    """They are comments between the events, while a tool runs and while a turn waits for its place."""
    await stack.worker()
    hasty = await stack.front_end(heartbeat_seconds=0.05)
    talk = Talk(hasty)
    answer = await hasty.http.post("/ag-ui", json=talk.say("/slow 1").body())
    assert answer.content.count(b": ping\n\n") > 5
    assert check_run(events_of(answer.content))["outcome"] == {"type": "success"}


async def test_a_front_end_stops_in_mid_run(talk: Talk, stack: Stack) -> None:
    """The connection is cut, which is an error to every client."""
    other = await stack.front_end()
    talk.client = other
    async with other.http.stream("POST", "/ag-ui", json=talk.say("/slow 60").body()) as answer:
        pieces = answer.aiter_raw()
        await anext(pieces)
        await stack.stop_front_end(other)
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in pieces:
                pass


async def test_what_was_cut_from_the_log(talk: Talk, stack: Stack) -> None:
    """Who connects is told the same messages, the newest run's as whole ones."""
    await talk.run("/dispatch")
    whole = await talk.run("/think")
    keys = SessionKeys("dev", talk.thread)
    meta = await stack.log.meta(keys)
    assert meta is not None
    before = await talk.connect()
    redis: Any = stack.broker.sessions
    await redis.xtrim(keys.log, minid=str(Cursor(meta.epoch, meta.seq + 1)), approximate=False)
    await redis.hset(keys.meta, "head", str(meta.seq + 1))
    # Another front end has nothing in its ring.
    other = await stack.front_end()
    events = await talk.connect(other)
    check_run(events)
    assert events[:2] == before[:2]
    assert text_of(events) == text_of(whole)
    # A new run goes on from there.
    talk.client = other
    assert text_of(await talk.run("hi")) == "You said: hi"


async def test_two_runs_at_once(client: Client) -> None:
    """The second one waits for its turn; who connects meanwhile is told the first, and both users' messages."""
    talk = Talk(client)
    async with client.open("POST", "/ag-ui", json=talk.say("/tokens 60 20").body()) as first:
        await first.until(lambda frames: len(frames) > 3)
        async with client.open("POST", "/ag-ui", json=talk.say("second").body()) as second:
            await second.until(lambda frames: frames)
            events = await talk.connect()
            frames = await second.all()
        told = await first.all()
    assert [frame.data for frame in told][1:] == events[2:]
    assert [message["content"] for message in events[1]["messages"]] == ["/tokens 60 20", "second"]
    check_run([frame.data for frame in frames])
    assert text_of([frame.data for frame in frames]) == "You said: second"
