"""Requests to models as operators are told of them: when each was made, when its answer came, what it took, how it failed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.test_model_gate import named, other
from tests.behaviour.test_model_retries import ONCE, refusal, shown
from tests.behaviour.test_real_models import PICK, WEATHER
from tests.behaviour.test_reflection import JUDGE, drafts
from tests.support.client import calls_of, check_whole, text_of
from tests.support.fake_provider.server import Call, calls, says
from tests.support.scripted import script
from tests.support.waiting import wait_until
from turnstream.shared import model_states
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session import model_calls
from turnstream.worker.agents import failures

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack

WEATHER_CALL = calls(Call("get_weather", '{"city": "Rome"}'), usage=(20, 7))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried soon."""
    monkeypatch.setattr(failures, "FIRST_RETRY_SECONDS", 0.01)


async def asked(stack: Stack, client: Client, task: str = "dev/s1/t1") -> dict[str, Any]:
    """The task as operators see it, its requests checked: none ends before it was made."""
    admin = stack.client(client.base_url, stack.admin)
    told: dict[str, Any] = (await admin.http.get(f"/admin/v1/tasks/{task}")).json()
    for each in told["model_calls"]:
        assert each["asked_ms"] <= each.get("first_token_ms", each["asked_ms"])
        assert each.get("first_token_ms", each["asked_ms"]) <= each.get("ended_ms", 2**53)
    return told


def models(told: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The model of each request, and as what it failed."""
    return [(each["model"], each.get("error")) for each in told["model_calls"]]


async def test_a_request_is_told_with_its_times_and_tokens(deploy: Deployments, provider: Provider) -> None:
    """While its answer comes, too; and the log, which clients are told of, knows nothing of it."""
    client = await deploy(tools=[WEATHER])
    go_on = asyncio.Event()
    provider.script = [WEATHER_CALL, says("Sunny", until=go_on, usage=(30, 9))]
    before = int(time.time() * 1000)
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: "Sunny" in text_of(frames))
        told = await asked(deploy.stack, client)
        first, second = told["model_calls"]
        assert (first["input_tokens"], first["output_tokens"]) == (20, 7)
        assert "first_token_ms" in second
        assert "ended_ms" not in second
        go_on.set()
        check_whole(await stream.all())
    told = await asked(deploy.stack, client)
    after = int(time.time() * 1000)
    assert told["model_calls"][0] == first
    ended = told["model_calls"][1]
    assert (ended["input_tokens"], ended["output_tokens"]) == (30, 9)
    assert ended["first_token_ms"] == second["first_token_ms"]
    assert before <= first["asked_ms"]
    assert first["ended_ms"] <= second["asked_ms"]
    assert ended["ended_ms"] <= after
    assert {each["agent"] for each in told["model_calls"]} == {"demo"}
    assert {each["path"] for each in told["model_calls"]} == {""}
    assert models(told) == [(named(provider), None)] * 2
    assert "model_calls_left_out" not in told
    for entry in await deploy.stack.entries("s1"):
        assert b"asked_ms" not in entry.event + (entry.extra or b"")
        assert b"model_calls" not in entry.event + (entry.extra or b"")


async def test_the_requests_before_a_park_stay(deploy: Deployments, provider: Provider) -> None:
    """They are told while the turn waits for its client, and when another worker has gone on with it."""
    client = await deploy.front_end(client_tools=[PICK])
    first = await deploy.stack.worker()
    provider.script = [calls(Call("pick_color", '{"shade": "light"}')), says("White.")]

    async def parked() -> bool:
        return await deploy.stack.status("s1", "t1") == "parked"

    async with client.process("s1", "Pick", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await wait_until(parked, "the turn to park")
        (before,) = (await asked(deploy.stack, client))["model_calls"]
        assert before["output_tokens"] == 5
        await deploy.stack.worker()
        await deploy.stack.stop_worker(first)
        await client.callback("s1", call["call_id"], {"color": "white"})
        check_whole(await stream.all())
    told = (await asked(deploy.stack, client))["model_calls"]
    assert told[0] == before
    assert len(told) == 2
    assert before["ended_ms"] <= told[1]["asked_ms"]


async def test_sub_agents_have_their_own(serve: Any) -> None:
    """By agent, and by the path under which it speaks."""
    client, stack = await serve(lead={"subagents": ["helper"]}, helper={})
    await client.turn("s1", script([("helper", ["fine"])], "{results}"), id="t1")
    told = (await asked(stack, client))["model_calls"]
    assert [(each["agent"], each["path"]) for each in told] == [
        ("lead", ""),
        ("helper", "helper"),
        ("lead", ""),
    ]


async def test_drafts_and_critics_have_their_own(serve: Any) -> None:
    """A critic's answer comes as a whole: nobody knows when it began to come."""
    client, stack = await serve(lead={"critics": ["critic"]}, critic=JUDGE)
    await client.turn("s1", drafts("bad [7]", "good [8]"), id="t1")
    told = (await asked(stack, client))["model_calls"]
    assert [(each["agent"], "first_token_ms" in each) for each in told] == [
        ("lead", True),
        ("critic", False),
    ] * 2
    assert all(each["output_tokens"] for each in told)


async def test_a_failed_request_is_told_with_its_code(deploy: Deployments, provider: Provider) -> None:
    """So are the fallback's, which takes over; and the one that a worker broke off when it went."""
    client = await deploy(settings=ONCE, retry_for=0, fallback=[other(provider)], tools=[WEATHER])
    go_on = asyncio.Event()
    provider.script = [WEATHER_CALL, refusal(503), says("Sun", until=go_on), says("Sunny.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: "Sun" in text_of(frames))
        await deploy.stack.worker()
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        await stream.until(lambda frames: "Sunny." in text_of(frames))
        go_on.set()
        check_whole(await stream.all())
    told = await asked(deploy.stack, client)
    fallback = named(provider, "openai:other")
    assert models(told) == [
        (named(provider), None),
        (named(provider), "model_unavailable"),
        (fallback, "canceled"),
        (fallback, None),
    ]
    failed = told["model_calls"][1]
    assert "first_token_ms" not in failed
    assert "input_tokens" not in failed
    assert failed["ended_ms"] >= failed["asked_ms"]


async def test_a_turn_that_fails_tells_what_failed(deploy: Deployments, provider: Provider) -> None:
    """With the code that the turn has."""
    client = await deploy(settings=ONCE, retry_for=0)
    provider.script = [refusal(429)]
    await client.turn("s1", "Hi", id="t1")
    assert models(await asked(deploy.stack, client)) == [(named(provider), "model_rate_limited")]


async def test_a_deadline_breaks_a_request_off(deploy: Deployments, provider: Provider) -> None:
    """So the model that a turn hung on is told."""
    client = await deploy(settings=ONCE, deadline=0.5)
    provider.script = [says("Well", until=asyncio.Event())]
    await client.turn("s1", "Hi", id="t1")
    told = await asked(deploy.stack, client)
    assert (told["why"], models(told)) == ("deadline", [(named(provider), "canceled")])


async def test_a_request_that_was_stopped_has_no_end(deploy: Deployments, provider: Provider) -> None:
    """Nobody but its worker knows when it ended; what was kept of it with its first words is told."""
    client = await deploy()
    provider.script = [says("Well", until=asyncio.Event())]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: "Well" in text_of(frames))
        assert (await client.stop("s1")).status_code == 200
        await stream.all()
    (call,) = (await asked(deploy.stack, client))["model_calls"]
    assert "first_token_ms" in call
    assert "ended_ms" not in call


async def test_failures_are_no_progress(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That each is kept does not begin the turn's retries anew: they are spent in the end, with no breaker that ends them."""
    monkeypatch.setattr(model_states, "MOST_FAILURES", 1_000_000)
    client = await deploy(settings=ONCE, retry_for=0.2)
    provider.answer = lambda _: refusal(503)

    async def failed() -> bool:
        return await deploy.stack.status("s1", "t1") == "failed"

    async with client.process("s1", "Hi", id="t1"):
        await wait_until(failed, "the turn's retries to be spent")
    told = await shown(deploy, client)
    assert told["why"] == "model_unavailable"
    assert len(told["model_calls"]) > 1
    assert set(models(told)) == {(named(provider), "model_unavailable")}


async def test_of_many_requests_the_longest_are_told(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are counted, with their time."""
    monkeypatch.setattr(model_calls, "MOST_CALLS", 2)
    client = await deploy(tools=[WEATHER])
    go_on = asyncio.Event()
    long = calls(Call("get_weather", '{"city": "Rome"}'), until=go_on)
    provider.script = [WEATHER_CALL, long, WEATHER_CALL, WEATHER_CALL, says("Sunny.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: len(provider.requests) == 2, "the second request")
        begun = time.monotonic()
        await wait_until(lambda: time.monotonic() - begun > 0.3, "the second request to be a long one")
        go_on.set()
        check_whole(await stream.all())
    told = await asked(deploy.stack, client)
    assert len(told["model_calls"]) == 2
    assert told["model_calls"][0]["ended_ms"] - told["model_calls"][0]["asked_ms"] >= 290
    assert told["model_calls_left_out"]["calls"] == 3
    assert told["model_calls_left_out"]["ms"] >= 0


@pytest.mark.parametrize(
    "kept",
    [
        b"{",
        b"[]",
        b'{"calls": [["a", "", "m", null, null, null, null, null, null]], "more": 0, "more_ms": 0}',
        b'{"calls": [["a", "", "m", 1]], "more": 0, "more_ms": 0}',
        b'{"calls": [], "more": "many", "more_ms": 0}',
    ],
)
async def test_requests_that_cannot_be_read_are_left_out(
    deploy: Deployments, provider: Provider, kept: bytes
) -> None:
    """Those of another release, say: operators are told of the task, and the turn goes on."""
    client = await deploy()
    stack = deploy.stack
    provider.script = [says("Fine.")]
    await client.turn("s1", "Hi", id="t1")
    key = SessionKeys("dev", "s1").task("t1")
    assert await command(stack.broker.sessions, "HSET", key, "model_calls", kept) == 0
    assert (await asked(stack, client))["model_calls"] == []
