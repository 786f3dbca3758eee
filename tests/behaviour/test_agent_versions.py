"""Agents are upgraded while turns wait: each goes on at its version, and what happens when that is gone is the table's choice."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.conftest import team
from tests.support.client import Client, calls_of, check_whole, terminal, text_of
from tests.support.lost import taken
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.agents.versions import versions
from turnstream.shared.broker import keys
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.outcomes import Fenced
from turnstream.worker import agent_versions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Frame
    from turnstream.shared.agents.config import Agents
    from turnstream.worker.worker import WorkerProcess


def served(name: str, **fields: Any) -> Agents:
    """The agents of one release: ``first`` or ``second``."""
    return team(lead={"python": f"tests.support.versioned:{name}", **fields})


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """A deployment of the first release, without a worker."""
    stack = Stack(place, served("first"), dev_agent="lead")
    yield stack
    await stack.close()


async def _begun(stack: Stack, agents: Agents | None = None, **more: Any) -> WorkerProcess:
    """A worker, of which the others know what it serves."""
    worker = await stack.worker(agents, **more)
    redis: Any = stack.broker.primary
    await wait_until(lambda: redis.hexists(keys.WORKERS, worker.id), "its sign of life")
    return worker


async def _parked(stack: Stack, client: Client, count: int = 1) -> dict[str, str]:
    """Turns that wait for their client at the first release, whose worker has ended: session → call."""
    worker = await stack.worker()
    calls = {}
    for number in range(count):
        session = f"s{number}"
        async with client.process(session, "ask", id="t1") as stream:
            frames = await stream.until(calls_of)
            calls[session] = calls_of(frames)[0]["call_id"]
        await wait_until(partial(_is, stack, session, "parked"), "the turn to park")
    await stack.stop_worker(worker)
    return calls


async def _is(stack: Stack, session: str, status: str) -> bool:
    return await stack.status(session, "t1") == status


async def _answered(client: Client, calls: dict[str, str]) -> list[list[Frame]]:
    """What the turns say, once their clients have answered."""

    async def one(session: str, call: str) -> list[Frame]:
        assert (await client.callback(session, call, "Rome")).status_code == 200
        async with client.follow(session, "t1") as stream:
            frames: list[Frame] = await stream.all()
        check_whole(frames)
        return frames

    return await asyncio.gather(*(one(session, call) for session, call in calls.items()))


async def test_agents_are_upgraded_without_a_turn_that_changes_its_version(stack: Stack) -> None:
    """The documented upgrade: old workers retire, new ones come; parked turns end at the old, new turns begin at the new."""
    client = await stack.front_end()
    calls = await _parked(stack, client, 10)
    await _begun(stack, retiring=True)
    await _begun(stack, served("second"))
    for frames in await _answered(client, calls):
        assert text_of(frames) == "first heard Rome"
    assert text_of(await client.turn("new", "hello")) == "second heard None"
    admin = stack.client(client.base_url, stack.admin)
    workers = (await admin.http.get("/admin/v1/workers")).json()["workers"]
    assert sorted(each["retiring"] for each in workers) == [False, True]
    assert len({each["agents"]["lead"] for each in workers}) == 2


async def test_an_interrupted_turn_goes_on_at_its_version(stack: Stack) -> None:
    """Its worker is shut down in mid-turn; of those that are left one serves its version."""
    client = await stack.front_end()
    worker = await stack.worker()
    async with client.process("s0", "hang", id="t1") as stream:
        await stream.until(text_of)
        await _begun(stack, served("second"))
        await _begun(stack, retiring=True)
        worker.stop(0)
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("first heard None")


async def test_by_default_it_moves_when_its_version_is_gone(stack: Stack) -> None:
    """As before there were versions. The new version is the turn's from then on, as operators see, too."""
    client = await stack.front_end()
    calls = await _parked(stack, client)
    assert await _shown(stack, client) == versions(served("first"))["lead"]
    await stack.worker(served("second"))
    (frames,) = await _answered(client, calls)
    assert text_of(frames) == "second heard Rome"
    assert await _shown(stack, client) == versions(served("second"))["lead"]


async def test_what_a_lost_worker_was_saying_is_closed_at_another_version(stack: Stack) -> None:
    """It was killed in mid-message, and took the turn's version with it."""
    client = await stack.front_end()
    worker = await stack.worker()
    async with client.process("s1", "hang", id="t1") as stream:
        await stream.until(text_of)
        for held in worker.leases:
            held.refused(Fenced())
        await stack.stop_worker(worker)
        await stack.worker(served("second"))
        await taken(stack)
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("second heard None")


async def _shown(stack: Stack, client: Client) -> Any:
    """The turn's version as operators see it."""
    admin = stack.client(client.base_url, stack.admin)
    return (await admin.http.get("/admin/v1/tasks/dev/s0/t1")).json()["agent_version"]


async def test_it_fails_where_the_table_says_so(stack: Stack) -> None:
    """At once, with a code of its own."""
    client = await stack.front_end()
    calls = await _parked(stack, client)
    await stack.worker(served("second", on_version="fail"))
    (frames,) = await _answered(client, calls)
    ended = terminal(frames)
    assert ended is not None
    assert (ended["status"], ended["error"]["code"]) == ("failed", "agent_version_gone")


async def test_it_waits_for_its_version_visibly(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators read what it waits for; a worker that serves its version is offered it."""
    monkeypatch.setattr(agent_versions, "UNSERVED_MS", 200)
    client = await stack.front_end()
    calls = await _parked(stack, client)
    await stack.worker(served("second", on_version="wait"))
    admin = stack.client(client.base_url, stack.admin)
    answering = asyncio.create_task(_answered(client, calls))
    try:
        await wait_until(lambda: _waits(admin), "the turn to wait for its version")
        await _begun(stack, retiring=True)
        (frames,) = await answering
    finally:
        answering.cancel()
    assert text_of(frames) == "first heard Rome"


async def _waits(admin: Client) -> bool:
    (task,) = (await admin.http.get("/admin/v1/tasks")).json()["tasks"]
    waiting = task.get("waiting") or {}
    return bool(waiting.get("reason") == "agent_version" and waiting["until"] > 0)


async def test_it_waits_no_longer_than_it_may(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it fails with the same code."""
    monkeypatch.setattr(agent_versions, "UNSERVED_MS", 20)
    client = await stack.front_end()
    calls = await _parked(stack, client)
    await stack.worker(served("second", on_version="wait", version_wait=0.1))
    (frames,) = await _answered(client, calls)
    ended = terminal(frames)
    assert ended is not None
    assert (ended["status"], ended["error"]["code"]) == ("failed", "agent_version_gone")


async def test_a_turn_that_waits_for_its_version_is_stopped(stack: Stack) -> None:
    """As any queued turn; the answer that it had stays."""
    client = await stack.front_end()
    calls = await _parked(stack, client)
    await stack.worker(served("second", on_version="wait", version_wait=3600))
    admin = stack.client(client.base_url, stack.admin)
    async with client.follow("s0", "t1") as stream:
        assert (await client.callback("s0", calls["s0"], "Rome")).status_code == 200
        await wait_until(lambda: _waits(admin), "the turn to wait for its version")
        assert (await client.stop("s0")).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert (terminal(frames) or {})["status"] == "canceled"


async def test_who_has_the_agent_decides_where_its_version_is_gone(stack: Stack) -> None:
    """A worker that does not know the agent leaves the turn to one with another version, and its policy."""
    client = await stack.front_end()
    calls = await _parked(stack, client)
    await _begun(stack, served("second"), retiring=True)
    await _begun(stack, team())
    (frames,) = await _answered(client, calls)
    assert text_of(frames) == "second heard Rome"


async def test_a_turn_of_a_release_without_versions_runs_at_any(stack: Stack) -> None:
    """Its checkpoints do not say what wrote it."""
    client = await stack.front_end()
    calls = await _parked(stack, client)
    redis: Any = stack.broker.sessions
    assert await redis.hdel(SessionKeys("dev", "s0").state("t1"), agent_versions.VERSION) == 1
    await stack.worker(served("second", on_version="fail"))
    (frames,) = await _answered(client, calls)
    assert text_of(frames) == "second heard Rome"


async def test_an_agent_that_only_others_know_is_left_to_them(stack: Stack) -> None:
    """While an upgrade adds an agent, not every worker has it yet."""
    client = await stack.front_end()
    await _begun(stack, retiring=True)
    await _begun(stack, team())
    assert text_of(await client.turn("s1", "hello")) == "first heard None"
