"""How captures are made: by a real worker on an embedded broker, or from a server over HTTP.

Within the process each feature is recorded once, as entries of a log, and every dialect writes the same
entries; so what differs between two captures of a feature is the dialect alone.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import orjson
from fakeredis import FakeServer

from tests.conformance.capture import Capture, Frame, Json, Wire, read
from tests.conformance.features import BY_NAME, FEATURES, Ask, Feature
from tests.support.logs import WholeLog
from tests.support.waiting import wait_until
from turnstream.api.access.auth import Caller
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE, AGENTSCOPE_JAVA
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, history
from turnstream.api.services import Services
from turnstream.api.streaming.gaps import GapFilter, Visibility
from turnstream.api.turns.callbacks import answer_call
from turnstream.api.turns.submit import NewTurn, submit
from turnstream.shared.agents import config
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.protocol import Message
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.entry import END, Cursor, Entry
from turnstream.shared.session.status import TERMINAL, TaskStatus
from turnstream.shared.settings import Settings
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from turnstream.api.streaming.dialect import Dialect

OWNER = "conformance"

# More than any feature writes.


@dataclass(frozen=True)
class Recording:
    """A feature's session.

    Attributes:
        entries: all of its log.
        kept: what of it is in the history: each closed message, and each end of a task.
        history: the body of ``GET /history``.
    """

    feature: Feature
    session: str
    epoch: int
    entries: tuple[Entry, ...]
    kept: tuple[Entry, ...]
    history: bytes

    @property
    def cursors(self) -> range:
        """Every place that a client may resume from: before each entry, and after the last one."""
        return range(self.entries[0].seq - 1, self.entries[-1].seq + 1)


# ── from entries ──


def dialect_of(wire: Wire, *, stream: bool) -> Dialect:
    """The dialect that writes a wire."""
    if wire == "liteagent":
        return LITEAGENT_STREAM if stream else LITEAGENT_WHOLE
    return AGENTSCOPE if wire == "agentscope" else AGENTSCOPE_JAVA


def from_entries(
    recording: Recording, wire: Wire, *, stream: bool = True, after: int = 0, pings: bool = False
) -> Capture:
    """The recording as a client of that wire gets it, from a cursor's seq on; one read per entry.

    With ``pings`` a heartbeat stands before and behind everything.
    """
    dialect = dialect_of(wire, stream=stream)
    reads: list[bytes] = [dialect.ping] if pings else []
    for entry in recording.entries:
        frames = dialect.frames(recording.session, recording.epoch, entry) if entry.seq > after else b""
        if frames:
            reads += [frames, dialect.ping] if pings else [frames]
    resumed = after >= recording.entries[0].seq
    return Capture(
        wire,
        tuple(reads),
        stream=stream,
        resumed=resumed,
        history=recording.history if wire == "liteagent" else None,
    )


def from_trimmed(recording: Recording, wire: Wire, *, stream: bool = True, head: int) -> Capture:
    """The recording as a client gets it when all before seq ``head`` is only in the history any more."""
    dialect = dialect_of(wire, stream=stream)
    session, epoch = recording.session, recording.epoch
    reads = [dialect.replay(session, epoch, entry) for entry in recording.kept if entry.seq < head]
    gap_filter = GapFilter()
    for entry in recording.entries:
        visibility = gap_filter.visibility(entry) if entry.seq >= head else Visibility.HIDDEN
        if visibility is Visibility.UNCHANGED:
            reads.append(dialect.frames(session, epoch, entry))
        elif visibility is Visibility.WHOLE:
            reads.append(dialect.replay(session, epoch, entry))
    said = recording.history if wire == "liteagent" else None
    return Capture(wire, tuple(filter(None, reads)), stream=stream, resumed=True, history=said)


def agents_of_features() -> Agents:
    """The agents that answer: the demo agent, and one that says every type of content."""
    said = AgentSpec(name="everything", python="tests.support.coded:everything")
    return Agents({spec.name: spec for spec in (*config.load(None), said)})


@cache
def recordings() -> dict[str, Recording]:
    """Every feature, recorded once."""
    return asyncio.run(_record_all())


def recorded(name: str) -> Recording:
    """The recording of one feature."""
    return recordings()[name]


async def _record_all() -> dict[str, Recording]:
    settings = Settings(redis_url="memory://", drain_seconds=0)
    known = agents_of_features()
    broker = Broker(settings, FakeServer())
    services = Services.make(settings, known, broker)
    worker = WorkerProcess(settings, broker, known)
    working = asyncio.create_task(worker.run())
    try:
        await worker.ready.wait()
        # One after the other: ids and times of two features never mix.
        return {feature.name: await _record(services, feature) for feature in FEATURES}
    finally:
        worker.stop()
        await working
        await broker.close()


async def _record(services: Services, feature: Feature) -> Recording:
    caller = Caller(OWNER, services.agents[feature.agent])
    session = uuid.uuid4().hex
    keys = caller.keys(session)
    for ask in feature.asks:
        ref = TaskRef(OWNER, session, str(uuid.uuid4()))
        await submit(services, caller, _turn(ref, ask))
        await _see_to_it(services, ref, ask)
    meta = await services.log.meta(keys)
    assert meta is not None
    entries = await WholeLog(services.broker.sessions).read(keys, Cursor(meta.epoch, 0))
    assert entries[-1].kind == END
    assert orjson.loads(entries[-1].event)["status"] == feature.end, entries[-1].event
    kept = await WholeLog(services.broker.sessions).history(keys)
    return Recording(feature, session, meta.epoch, tuple(entries), tuple(kept), history(session, kept))


def _turn(ref: TaskRef, ask: Ask) -> NewTurn:
    message = Message.model_validate({"role": "user", "type": "message", "content": list(ask.parts)})
    return NewTurn(
        ref=ref,
        response=f"response_{ref.task}",
        user="",
        create=True,
        input=[message],
        idempotency="",
        digest="",
        trace="",
    )


async def _see_to_it(services: Services, ref: TaskRef, ask: Ask) -> None:
    """Do what the client does in a turn, until it has ended."""
    if ask.stop_after:
        await wait_until(lambda: _pieces(services, ref, ask.stop_after), "the text to be stopped in")
        await end_from_outside(services.ender, ref, TaskStatus.CANCELED, "stop", who="client")
    answered: set[str] = set()
    while (
        await wait_until(lambda: _rests(services, ref, answered), "the turn to end or to wait")
        == TaskStatus.PARKED
    ):
        for call in await _calls(services, ref):
            if call not in answered:
                answered.add(call)
                await answer_call(services, ref, call, ask.answer)


async def _rests(services: Services, ref: TaskRef, answered: set[str]) -> str:
    """How the task rests: parked with a call that nobody answered, or ended; empty while it goes on."""
    status = (await services.log.task(ref.keys, ref.task))["status"]
    if status in TERMINAL:
        return status
    return status if status == TaskStatus.PARKED and set(await _calls(services, ref)) - answered else ""


async def _calls(services: Services, ref: TaskRef) -> list[str]:
    return [
        data.get("call_id") or data["id"]
        for entry in await WholeLog(services.broker.sessions).history(ref.keys)
        if entry.task == ref.task and entry.kind in ("function_call", "mcp_approval_request")
        for data in [orjson.loads(entry.event)["content"][0]["data"]]
    ]


async def _pieces(services: Services, ref: TaskRef, enough: int) -> bool:
    meta = await services.log.meta(ref.keys)
    assert meta is not None
    entries = await WholeLog(services.broker.sessions).read(ref.keys, Cursor(meta.epoch, 0))
    pieces = [entry for entry in entries if entry.task == ref.task and b'"delta":true' in entry.event]
    return len(pieces) >= enough


# ── over HTTP ──


async def capture_http(
    base_url: str, key: str, feature: str, *, wire: Wire = "agentscope", stream: bool = True
) -> Capture:
    """Have a server do the feature, as a client of that wire, and keep every byte of its streams.

    The turns of the session follow each other in the capture. Needs ``/process`` or ``/liteAgent/v1``,
    and the LiteAgent routes for stopping and for the history.
    """
    done = BY_NAME[feature]
    async with _client(base_url, key) as http:
        session = await _new_session(http, wire)
        reads: list[bytes] = []
        for ask in done.asks:
            reads += await _ask_over_http(http, session, ask, wire, stream=stream)
        said = None
        if wire == "liteagent":
            said = (await _ok(http.get("/liteAgent/v1/history", params={"sessionId": session}))).content
        return Capture(wire, tuple(reads), stream=stream, history=said)


async def resume_http(
    base_url: str, key: str, session: str, cursor: str, *, wire: Wire, task: str = "", stream: bool = True
) -> Capture:
    """What the server tells a client that comes back with a cursor; ``task`` is needed for one that ended."""
    async with _client(base_url, key) as http:
        if wire == "liteagent":
            params = {"sessionId": session, "taskId": task, "stream": str(stream).lower()}
            path = "/liteAgent/v1/chat"
        else:
            params = {"session_id": session, "response_id": task}
            path = "/process"
            if wire == "java":
                params["dialect"] = "java"
        given = {name: value for name, value in params.items() if value}
        async with http.stream("GET", path, params=given, headers={"Last-Event-ID": cursor}) as response:
            assert response.status_code == 200, await response.aread()
            reads = [piece async for piece in response.aiter_raw()]
        return Capture(wire, tuple(reads), stream=stream, resumed=True)


@asynccontextmanager
async def _client(base_url: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {key}"}
    # No certificates are needed, and loading them takes longer than most captures.
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=30, trust_env=False, verify=False
    ) as http:
        yield http


async def _new_session(http: httpx.AsyncClient, wire: Wire) -> str:
    if wire != "liteagent":
        return uuid.uuid4().hex
    session: str = (await _ok(http.post("/liteAgent/v1/initSession"))).json()["sessionId"]
    return session


async def _ok(asking: Any) -> httpx.Response:
    response: httpx.Response = await asking
    assert response.status_code == 200, response.text
    return response


async def _ask_over_http(
    http: httpx.AsyncClient, session: str, ask: Ask, wire: Wire, *, stream: bool
) -> list[bytes]:
    """One turn: its network reads, while calls are answered and the turn is stopped as the feature says."""
    request = _request(http, session, ask, wire, stream=stream)
    response = await http.send(request, stream=True)
    reads: list[bytes] = []
    answered: set[str] = set()
    stopped = not ask.stop_after
    try:
        assert response.status_code == 200, await response.aread()
        async for piece in response.aiter_raw():
            reads.append(piece)
            frames = read(b"".join(reads))
            for call in _asked_of_client(frames, wire):
                if call not in answered:
                    answered.add(call)
                    given = {"id": call, "result": ask.answer}
                    address = {"sessionId": session}
                    await _ok(http.post("/liteAgent/v1/callback", params=address, json=given))
            if not stopped and _heard(frames, wire, ask.stop_after, stream=stream):
                stopped = True
                await _ok(http.post("/liteAgent/v1/stop", params={"sessionId": session}))
    finally:
        await response.aclose()
    return reads


def _request(http: httpx.AsyncClient, session: str, ask: Ask, wire: Wire, *, stream: bool) -> httpx.Request:
    if wire == "liteagent":
        content = [
            {"type": "imageUrl", "message": part["image_url"]}
            if part["type"] == "image"
            else {"type": "text", "message": part["text"]}
            for part in ask.parts
        ]
        body: Json = {"content": content, "stream": stream}
        return http.build_request("POST", "/liteAgent/v1/chat", params={"sessionId": session}, json=body)
    message = {"role": "user", "type": "message", "content": list(ask.parts)}
    params = {"dialect": "java"} if wire == "java" else {}
    body = {"input": [message], "session_id": session, "stream": True}
    return http.build_request("POST", "/process", params=params, json=body)


def _asked_of_client(frames: Iterable[Frame], wire: Wire) -> list[str]:
    if wire == "liteagent":
        return [
            frame.json["content"]["id"] for frame in frames if frame.event == "functionCall" and frame.json
        ]
    kinds = ("function_call", "mcp_approval_request")
    calls = []
    for frame in frames:
        event = frame.json
        closed = event.get("object") == "message" and event.get("status") == "completed"
        if closed and str(event.get("type")).lower() in kinds:
            data = event["content"][0]["data"]
            calls.append(data.get("call_id") or data["id"])
    return calls


def _heard(frames: Iterable[Frame], wire: Wire, pieces: int, *, stream: bool) -> bool:
    if wire == "liteagent" and not stream:
        # Nothing of the text is seen before its end; the echo says that the turn is under way.
        return any(frame.json.get("type") == "contentList" for frame in frames)
    heard = [frame for frame in frames if frame.json.get("delta") or frame.json.get("part")]
    return len(heard) >= pieces
