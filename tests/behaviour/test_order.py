"""Several turns of one session: what happens when one comes while another is live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.client import asked, calls_of, terminal, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client

import pytest


def agents_with(**given: Any) -> Agents:
    """The demo agent, differently configured."""
    demo = load_agents(None)["demo"]
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec.model_validate({**demo.model_dump(), **given})
    return Agents(specs)


@pytest.fixture
async def configured(place: Place) -> AsyncIterator[Any]:
    """Makes a client of a deployment whose demo agent is configured differently."""
    stacks: list[Stack] = []

    async def make(**given: Any) -> tuple[Client, Stack]:
        settings = {name: given.pop(name) for name in ("max_live",) if name in given}
        stack = Stack(place, agents_with(**given), **settings)
        stacks.append(stack)
        await stack.worker()
        return await stack.front_end(), stack

    yield make
    for stack in stacks:
        await stack.close()


async def test_serial_turns_run_one_after_the_other(client: Client, stack: Stack) -> None:
    """The second and third turn wait, in order, and each sees the memory of those before."""
    async with (
        client.process("s1", "/tokens 30 5", id="t1") as first,
        client.process("s1", "two", id="t2") as second,
        client.process("s1", "three", id="t3") as third,
    ):
        for stream in (first, second, third):
            assert terminal(await stream.all())
    order = [entry.task for entry in await stack.entries("s1") if entry.kind == "end"]
    assert order == ["t1", "t2", "t3"]
    began = [
        entry.task
        for entry in await stack.entries("s1")
        if b'"status":"created","id":"response' in entry.event
    ]
    entries = await stack.entries("s1")
    ends = {entry.task: entry.seq for entry in entries if entry.kind == "end"}
    speaks = {
        task: min(
            e.seq for e in entries if e.task == task and e.kind == "message" and b"assistant" in e.event
        )
        for task in ends
    }
    assert speaks["t2"] > ends["t1"]
    assert speaks["t3"] > ends["t2"]
    assert began == sorted(began)


async def test_parallel_turns_run_at_once(configured: Any) -> None:
    """A parallel agent answers the second turn while the first still speaks."""
    client, _ = await configured(busy="parallel")
    async with client.process("s1", "/tokens 1000 10", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 8)
        assert text_of(await client.turn("s1", "two")) == "You said: two"
        await client.stop("s1")
        assert terminal(await first.all())


async def test_a_rejecting_agent_says_so(configured: Any) -> None:
    """A 409 whose body is a rejected response; LiteAgent gets an error body."""
    client, _ = await configured(busy="reject")
    async with client.process("s1", "/tokens 1000 10", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 8)
        answer = await client.http.post("/process", json=asked("s1", "two", id="t2"))
        assert answer.status_code == 409
        assert (answer.json()["object"], answer.json()["status"], answer.json()["id"]) == (
            "response",
            "rejected",
            "t2",
        )
        body = {"content": [{"type": "text", "message": "two"}]}
        lite = await client.http.post("/liteAgent/v1/chat", params={"sessionId": "s1"}, json=body)
        assert (lite.status_code, lite.json()["code"]) == (409, 409)
        await client.stop("s1")


async def test_an_interrupting_turn_ends_the_running_one(configured: Any) -> None:
    """The running turn ends as canceled, then the new one runs."""
    client, _ = await configured(busy="interrupt")
    async with client.process("s1", "/tokens 1000 10", id="t1") as first:
        await first.until(lambda frames: len(frames) >= 8)
        assert text_of(await client.turn("s1", "two")) == "You said: two"
        ended = terminal(await first.all())
        assert ended is not None
        assert ended["status"] == "canceled"


async def test_a_parked_turn_blocks_the_next_one(client: Client, stack: Stack) -> None:
    """By default the session waits until the client has answered."""
    async with client.process("s1", "/call f {}", id="t1") as first:
        (call,) = calls_of(await first.until(calls_of))
        async with client.process("s1", "two", id="t2") as second:
            await second.until(lambda frames: len(frames) >= 1)
            assert await stack.status("s1", "t2") == "queued"
            await client.callback("s1", call["call_id"], "x")
            assert text_of(await second.all()) == "You said: two"


async def test_a_parked_turn_gives_way_when_configured_so(configured: Any) -> None:
    """With `parked = "supersede"` the parked turn ends as canceled."""
    client, stack = await configured(parked="supersede")
    async with client.process("s1", "/call f {}", id="t1") as first:
        await first.until(calls_of)

        async def parked() -> bool:
            return bool(await stack.status("s1", "t1") == "parked")

        await wait_until(parked, "the turn to park")
        assert text_of(await client.turn("s1", "two")) == "You said: two"
        ended = terminal(await first.all())
        assert ended is not None
        assert ended["status"] == "canceled"


async def test_too_many_live_turns_are_refused(configured: Any) -> None:
    """A parallel session has a limit of its own, of turns that have not ended; stopping them makes room."""
    client, stack = await configured(busy="parallel", max_live=3)
    for number in range(3):
        async with client.process("s1", "/call f {}", id=f"t{number}") as stream:
            await stream.until(calls_of)
    answer = await client.http.post("/process", json=asked("s1", "four"))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    await client.stop("s1")
    assert [await stack.status("s1", f"t{number}") for number in range(3)] == ["canceled"] * 3
    assert text_of(await client.turn("s1", "five")) == "You said: five"


async def test_too_many_waiting_turns_are_refused(stack: Stack) -> None:
    """Beyond the limit a further turn gets 429 with `Retry-After`."""
    client = await stack.front_end(max_waiting=1)
    async with client.process("s1", "one", id="t1"), client.process("s1", "two", id="t2"):
        answer = await client.http.post("/process", json=asked("s1", "three"))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
