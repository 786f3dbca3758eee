"""What a server sends over HTTP keeps the rules, tells the conversation, and can be resumed, as the log promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.conformance.capture import Capture, Frame, Wire
from tests.conformance.captures import agents_of_features, capture_http
from tests.conformance.checker import WAYS, broken, check
from tests.conformance.features import FEATURES, Feature
from tests.conformance.reducers import (
    AGENT_API_CLIENTS,
    LITEAGENT_CLIENTS,
    as_liteagent,
    history_of,
    in_common,
    java_edition,
    output_of,
    web_page,
    without_requests,
)
from tests.support.client import calls_of
from tests.support.stack import Stack
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents
from turnstream.shared.api_keys import ApiKeys, make_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conftest import Place
    from tests.support.client import Client

# Resumed after each of their events; of all others three places are tried.
EVERYWHERE = frozenset({"text", "client_call", "dispatch_client_call"})


@dataclass(frozen=True)
class Heard:
    """A feature as one kind of client heard it."""

    wire: Wire
    stream: bool
    capture: Capture

    @property
    def session(self) -> str:
        """The session's id, as the stream names it."""
        event = self.capture.said[0].json
        for key in ("sessionId", "session_id"):
            if key in event:
                return str(event[key])
        raise AssertionError(f"the first event names no session: {event}")

    @property
    def task(self) -> str:
        """The last turn's id, as a client of this wire names it."""
        first = self.capture.turns[-1][0].json
        return str(first["taskId"] if self.wire == "liteagent" else first["id"])


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """A deployment of the agents that answer."""
    stack = Stack(place, agents_of_features())
    yield stack
    await stack.close()


async def _hear(client: Client, key: str, feature: Feature) -> list[Heard]:
    ways = [(wire, stream) for wire, stream in WAYS if feature.plain or wire != "liteagent"]
    return [
        Heard(wire, stream, await capture_http(client.base_url, key, feature.name, wire=wire, stream=stream))
        for wire, stream in ways
    ]


async def _history(client: Client, heard: Heard) -> Capture:
    """The capture with the session's history, which LiteAgent's route gives for sessions of both wires."""
    answer = await client.http.get("/liteAgent/v1/history", params={"sessionId": heard.session})
    assert answer.status_code == 200, answer.text
    return Capture("liteagent", (), history=answer.content)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
async def test_streams_over_http(client: Client, stack: Stack, feature: Feature) -> None:
    """Each feature, asked for in every way, breaks no rule, is rebuilt by every client, and can be resumed."""
    if feature.agent != "demo":
        token = make_token()
        await ApiKeys(stack.broker.primary).register(token, owner="dev", agent=feature.agent)
        client = stack.client(client.base_url, token)
    for heard in await _hear(client, client.key, feature):
        where = f"{heard.wire}, {'stream' if heard.stream else 'whole'}"
        assert [str(violation) for violation in check(heard.capture)] == [], where
        await _compare(client, heard)
        await _resume(client, feature, heard, where)


async def _compare(client: Client, heard: Heard) -> None:
    """What each client rebuilt is what the server keeps."""
    kept = history_of(await _history(client, heard))
    capture = heard.capture
    if heard.wire == "liteagent":
        assert history_of(capture) == kept
        for name, rebuild in LITEAGENT_CLIENTS.items():
            assert without_requests(rebuild(_by_frame(capture))) == kept, name
        return
    told = output_of(capture)
    if heard.wire == "java":
        assert java_edition(capture) == told
    else:
        for name, rebuild in AGENT_API_CLIENTS.items():
            assert rebuild(capture) == told, name
        assert as_liteagent(web_page(capture)) == in_common(kept)


def _by_frame(capture: Capture) -> Capture:
    """As if each network read were a frame: where the network cuts a stream is not ours to promise."""
    return capture.rewritten(capture.frames)


async def _resume(client: Client, feature: Feature, heard: Heard, where: str) -> None:
    """After any of its events, a server brings exactly the rest of the last turn."""
    turn = heard.capture.turns[-1]
    whole = Capture(heard.wire, tuple(frame.raw for frame in turn), stream=heard.stream)
    for cursor, rest in _places(turn, everywhere=feature.name in EVERYWHERE):
        resumed = await _come_back(client, heard, cursor)
        assert resumed.body == b"".join(frame.raw for frame in rest), f"{where}, after {cursor}"
        assert broken(resumed) <= broken(whole), f"{where}, after {cursor}"


async def _come_back(client: Client, heard: Heard, cursor: str) -> Capture:
    """What the server tells, on a connection that is used again: there are hundreds of these."""
    if heard.wire == "liteagent":
        path = "/liteAgent/v1/chat"
        params = {"sessionId": heard.session, "taskId": heard.task, "stream": str(heard.stream).lower()}
    else:
        path = "/process"
        params = {"session_id": heard.session, "response_id": heard.task}
        params |= {"dialect": "java"} if heard.wire == "java" else {}
    answer = await client.http.get(path, params=params, headers={"Last-Event-ID": cursor})
    assert answer.status_code == 200, answer.text
    return Capture(heard.wire, (answer.content,), stream=heard.stream, resumed=True)


def _places(turn: tuple[Frame, ...], *, everywhere: bool) -> Iterator[tuple[str, tuple[Frame, ...]]]:
    """Cursors of a turn, and the frames behind each: before its first event, and after each that has an id."""
    first = next(frame for frame in turn if frame.id)
    places = [(f"{first.id.partition('-')[0]}-{first.seq - 1}", turn)]
    places += [(frame.id, turn[place + 1 :]) for place, frame in enumerate(turn) if frame.id]
    yield from places if everywhere else (places[0], places[len(places) // 2], places[-1])


async def test_the_output_is_whole_after_an_answer(place: Place) -> None:
    """A turn that went on after its client's answers lists all that it said, to its very end."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python="tests.support.coded:guide")
    stack = Stack(place, Agents(specs))
    try:
        await stack.worker()
        client = await stack.front_end()
        async with client.process("s1", "go") as stream:
            answered: set[str] = set()
            for count in (2, 3):
                await stream.until(lambda frames, count=count: len(calls_of(frames)) == count)
                for call in calls_of(stream.frames):
                    if call["call_id"] not in answered:
                        answered.add(call["call_id"])
                        assert (await client.callback("s1", call["call_id"], "yes")).status_code == 200
            await stream.all()
        assert [str(each) for each in check(Capture("agentscope", (stream.raw,)))] == []
    finally:
        await stack.close()
