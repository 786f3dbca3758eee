"""Models that may not be asked now: held by an operator, left alone by the breaker, with requests enough; and fallbacks."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.test_model_retries import LATER, ONCE, SOON, answer_of, refusal, shown, waits
from tests.behaviour.test_reflection import drafts
from tests.support.client import check_whole, terminal, text_of
from tests.support.commands import turnstream
from tests.support.fake_provider.server import KEY_VARIABLE, Call, calls, says
from tests.support.scripted import script
from tests.support.waiting import wait_until
from turnstream.shared import model_states, presence
from turnstream.shared.session import tasks
from turnstream.worker.agents import failures, model_gate

if TYPE_CHECKING:
    from tests.support.client import Client, Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times, since tests wait for what they cause; what workers must hear of they do not look for."""
    monkeypatch.setattr(model_gate, "QUIET_LOOK_SECONDS", 1_000)
    monkeypatch.setattr(model_gate, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(model_gate, "LEAST_HELD_SECONDS", 0.1)
    monkeypatch.setattr(model_gate, "MOST_HELD_SECONDS", 0.1)
    monkeypatch.setattr(model_gate, "LEAST_BUSY_SECONDS", 0.05)
    monkeypatch.setattr(model_gate, "PROBED_SECONDS", 0.05)
    monkeypatch.setattr(failures, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(model_states, "MOST_FAILURES", 3)
    monkeypatch.setattr(model_states, "FIRST_OPEN_MS", 200)


def named(provider: Provider, model: str = "openai:test") -> str:
    """The model's name as operators see it."""
    return f"{model}@{provider.address.removeprefix('http://')}"


def other(provider: Provider, model: str = "openai:other") -> dict[str, str]:
    """A fallback at the same provider."""
    return {"model": model, "base_url": provider.base_url, "api_key_env": KEY_VARIABLE}


def asked(provider: Provider) -> list[str]:
    """The models of all requests, in order."""
    return [request["model"] for request in provider.requests]


async def operate(deploy: Deployments, client: Client, what: str, model: str) -> Any:
    """Hold or resume a model."""
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    answer = await admin.http.post(f"/admin/v1/models/{what}", json={"model": model})
    return answer.json() if answer.status_code == 200 else answer.status_code


async def row(deploy: Deployments, client: Client, model: str) -> dict[str, Any]:
    """A model as operators see it."""
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    rows = (await admin.http.get("/admin/v1/models")).json()["models"]
    return next(each for each in rows if each["model"] == model)


async def hold(deploy: Deployments, client: Client, model: str) -> None:
    """Hold a model, and wait until every worker knows."""
    assert await operate(deploy, client, "hold", model) == {"model": model, "state": "held", "changed": True}
    gates = [worker.gate for worker, _ in deploy.stack.workers]
    await wait_until(lambda: all(gate.refusal(model) for gate in gates), "the workers to see the hold")


async def becomes(deploy: Deployments, client: Client, model: str, state: str) -> None:
    """Wait until the model is in that state."""

    async def is_so() -> bool:
        return bool((await row(deploy, client, model))["state"] == state)

    await wait_until(is_so, f"the model to be {state}")


def model_of(frames: list[Frame]) -> Any:
    """The model that the response names."""
    event = terminal(frames) or {}
    return event.get("metadata", {}).get("model")


async def test_a_held_model_is_not_asked(deploy: Deployments, provider: Provider) -> None:
    """Its turns wait, and go on when it is resumed; without a retry, which an agent may not want."""
    client = await deploy(settings=ONCE, retry_for=0, deployment={"metrics_open": True})
    model = named(provider)
    await hold(deploy, client, model)
    async with client.process("s1", "Hi", id="t1") as stream:
        assert (await waits(deploy, client))["reason"] == "model_held"
        assert (await row(deploy, client, model))["state"] == "held"
        text = (await client.http.get("/metrics")).text
        assert f'turnstream_model_state{{model="{model}"}} 3.0' in text
        assert provider.requests == []
        provider.script = [says("Here.")]
        assert (await operate(deploy, client, "resume", model))["changed"] is True
        frames = await stream.all()
    assert (answer_of(frames), model_of(frames)) == ("Here.", None)


async def test_a_turn_waits_for_a_held_model_as_often_as_it_takes(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To come back in vain is an attempt, but no crash, and writes nothing to the log."""
    monkeypatch.setattr(model_gate, "LEAST_HELD_SECONDS", 0.01)
    monkeypatch.setattr(model_gate, "MOST_HELD_SECONDS", 0.01)
    client = await deploy(settings=ONCE)
    await hold(deploy, client, named(provider))
    often = 3 * tasks.MAX_CRASHES

    async def came_back() -> bool:
        return bool((await shown(deploy, client))["attempt"] > often)

    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(came_back, "many attempts")
        provider.script = [says("Here.")]
        await operate(deploy, client, "resume", named(provider))
        frames = await stream.all()
    check_whole(frames)
    assert answer_of(frames) == "Here."
    assert (await shown(deploy, client))["crashes"] == 0
    provider.script = [says("Here.")]
    assert len(frames) == len(await client.turn("s2", "Hi"))


async def test_many_turns_come_back_one_after_the_other(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait for a model, few look at a time whether it may be asked again."""
    monkeypatch.setattr(model_gate, "RETURNS_PER_SECOND", 0.1)
    monkeypatch.setattr(model_gate, "MOST_ADDED_SECONDS", 3_600)
    client = await deploy(settings=ONCE)
    await hold(deploy, client, named(provider))
    sessions = [f"s{number}" for number in range(20)]
    async with AsyncExitStack() as streams:
        for session in sessions:
            await streams.enter_async_context(client.process(session, "Hi", id="t1"))
        waiting = [await waits(deploy, client, f"dev/{session}/t1") for session in sessions]
        until = [each["until"] for each in waiting]
        assert max(until) - min(until) > 30
        for session in sessions:
            assert (await client.stop(session, "t1")).status_code == 200


async def test_what_streams_when_it_is_held_goes_on(deploy: Deployments, provider: Provider) -> None:
    """A hold is for requests that are to begin."""
    client = await deploy(settings=ONCE)
    go_on = asyncio.Event()
    provider.script = [says("Here.", until=go_on)]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: provider.requests, "the provider to be asked")
        await hold(deploy, client, named(provider))
        go_on.set()
        assert answer_of(await stream.all()) == "Here."


async def test_a_stop_ends_what_waits_for_a_held_model(deploy: Deployments, provider: Provider) -> None:
    """As any queued turn; nothing was ever asked."""
    client = await deploy(settings=ONCE)
    await hold(deploy, client, named(provider))
    async with client.process("s1", "Hi", id="t1") as stream:
        await waits(deploy, client)
        assert (await client.stop("s1", "t1")).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert (terminal(frames) or {})["status"] == "canceled"
    assert provider.requests == []


async def test_operators_name_models_that_there_are(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the agents file, and those that code brings; a repeated hold changes nothing."""
    monkeypatch.setattr(presence, "SIGN_OF_LIFE_SECONDS", 0.05)
    client = await deploy(python="tests.support.scripted:player", allow_overrides=())
    assert await operate(deploy, client, "hold", "openai:typo") == 404

    async def told() -> bool:
        return bool(await operate(deploy, client, "hold", "function:scripted") != 404)

    await wait_until(told, "the worker to tell its models")
    assert (await operate(deploy, client, "hold", "function:scripted"))["changed"] is False
    assert (await row(deploy, client, "demo"))["state"] == "closed"
    assert (await row(deploy, client, "function:scripted"))["state"] == "held"


@pytest.mark.parametrize(
    "agent", [{}, {"python": "tests.support.coded:charges"}], ids=["of a model", "a generator"]
)
async def test_a_held_agent_begins_nothing(
    deploy: Deployments, provider: Provider, agent: dict[str, Any]
) -> None:
    """Its turns wait, and go on when it is resumed; operators see it among the agents, and no model of its name."""
    client = await deploy(**agent)
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)

    async def told(what: str, name: str = "demo") -> Any:
        answer = await admin.http.post(f"/admin/v1/agents/{what}", json={"agent": name})
        return answer.json() if answer.status_code == 200 else answer.status_code

    assert await told("hold") == {"agent": "demo", "state": "held", "changed": True}
    assert (await told("hold"))["changed"] is False
    assert await told("hold", "typo") == 404
    # It is no model, whatever it is called among them.
    assert await operate(deploy, client, "resume", "agent demo") == 404
    gates = [worker.gate for worker, _ in deploy.stack.workers]
    await wait_until(lambda: all(gate.refusal("agent demo") for gate in gates), "the workers to see the hold")
    (row,) = (
        each
        for each in (await admin.http.get("/admin/v1/agents")).json()["agents"]
        if each["agent"] == "demo"
    )
    assert row["held_since"] > 0
    models = (await admin.http.get("/admin/v1/models")).json()["models"]
    assert not [each for each in models if "agent" in each["model"]]
    async with client.process("s1", "Hi", id="t1") as stream:
        assert (await waits(deploy, client))["reason"] == "agent_held"
        assert provider.requests == []
        provider.script = [says("Here.")]
        assert (await told("resume"))["changed"] is True
        frames = await stream.all()
    assert (terminal(frames) or {})["status"] == "completed"
    assert (await told("resume"))["changed"] is False


@pytest.mark.parametrize(
    ("role", "agent", "prompt", "answer"),
    [
        ("subagents", {}, script([("helper", ["at last"])], "{results}"), "at last"),
        ("critics", {"python": "tests.support.scripted:judge"}, drafts("good [9]"), "good [9]"),
    ],
)
async def test_who_needs_a_held_agent_waits(
    serve: Any, role: str, agent: dict[str, Any], prompt: str, answer: str
) -> None:
    """A turn of another agent that has it as a sub-agent or critic; what it did so far stays."""
    client, stack = await serve(lead={role: ["helper"]}, helper=agent)
    admin = stack.client(client.base_url, stack.admin)
    assert (await admin.http.post("/admin/v1/agents/hold", json={"agent": "helper"})).status_code == 200
    gates = [worker.gate for worker, _ in stack.workers]
    await wait_until(
        lambda: all(gate.refusal("agent helper") for gate in gates), "the workers to see the hold"
    )
    async with client.process("s1", prompt, id="t1") as stream:

        async def waiting() -> bool:
            shown = (await admin.http.get("/admin/v1/tasks/dev/s1/t1")).json()
            return bool(shown.get("waiting", {}).get("reason") == "agent_held")

        await wait_until(waiting, "the turn to wait")
        await admin.http.post("/admin/v1/agents/resume", json={"agent": "helper"})
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames).strip().endswith(answer)
    assert (terminal(frames) or {})["status"] == "completed"


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_models_from_the_command_line(deploy: Deployments, provider: Provider) -> None:
    """List, hold, resume: the words are those of the admin API."""
    client = await deploy(limits={named(provider): 7})
    env = {"TURNSTREAM_ADMIN_KEY": deploy.stack.admin, "TURNSTREAM_URL": client.base_url}
    held = await turnstream("models", "hold", named(provider), **env)
    assert (held.code, held.out.split()) == (0, ["held", named(provider)])
    listed, wrong = await asyncio.gather(
        turnstream("models", "list", **env), turnstream("models", "hold", "typo", **env)
    )
    line = next(line for line in listed.out.splitlines() if named(provider) in line)
    assert line.split()[1] == "held"
    assert "0 of 7" in line
    assert (wrong.code, "404: No such model" in wrong.err) == (4, True)
    resumed = await turnstream("models", "resume", named(provider), **env)
    assert resumed.out.split() == ["closed", named(provider)]
    again = await turnstream("models", "resume", named(provider), "--json", **env)
    assert json.loads(again.out) == {"model": named(provider), "state": "closed", "changed": False}
    agent = await turnstream("agents", "hold", "demo", **env)
    assert (agent.code, agent.out.split()) == (0, ["held", "demo"])
    agents, none = await asyncio.gather(
        turnstream("agents", "list", **env), turnstream("agents", "hold", "typo", **env)
    )
    assert "held" in next(line for line in agents.out.splitlines() if line.startswith("demo ")).split()
    assert (none.code, "404: No such agent" in none.err) == (4, True)
    assert (await turnstream("agents", "resume", "demo", **env)).out.split() == ["open", "demo"]


async def test_the_breaker_spares_a_model_that_fails(deploy: Deployments, provider: Provider) -> None:
    """While it is open nobody asks; one probe that fails opens it again, one that succeeds lets all of them in."""
    client = await deploy(settings=ONCE)
    provider.script = [*[refusal(503, SOON)] * 3]
    async with client.process("s0", "Hi", id="t0") as first:
        await becomes(deploy, client, named(provider), "open")
        assert len(provider.requests) == 3
        assert (await row(deploy, client, named(provider)))["failures"] == 3
        provider.script = [refusal(503, SOON), *[says("Here.")] * 4]
        turns = [asyncio.create_task(client.turn(f"s{n}", "Hi")) for n in (1, 2, 3)]
        for frames in [await first.all(), *await asyncio.gather(*turns)]:
            assert answer_of(frames) == "Here."
    assert len(provider.requests) == 8
    # The fourth was the probe; nobody asked beside it, nor until it was allowed.
    opened, probe, after = provider.times[2:5]
    assert probe - opened >= 0.2
    assert after - probe >= 0.4
    assert (await row(deploy, client, named(provider)))["state"] == "closed"


async def test_all_workers_hear_that_the_breaker_opened(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, also those that none of its last requests met: they do not go on asking until they look again."""
    monkeypatch.setattr(model_gate, "LOOK_SECONDS", 1_000)
    monkeypatch.setattr(model_states, "FIRST_OPEN_MS", 60_000)
    client = await deploy(settings=ONCE, retry_for=3600, fallback=[other(provider)])
    await deploy.stack.worker()
    model = named(provider)
    provider.script = [refusal(503, LATER)] * 3
    async with AsyncExitStack() as streams:
        await streams.enter_async_context(client.process("s0", "Hi", id="t0"))
        await waits(deploy, client, "dev/s0/t0")
        # When they have seen the hold, they have seen the first failure.
        await hold(deploy, client, named(provider, "openai:other"))
        for n in (1, 2):
            await streams.enter_async_context(client.process(f"s{n}", "Hi", id=f"t{n}"))
        await becomes(deploy, client, model, "open")
        gates = [worker.gate for worker, _ in deploy.stack.workers]
        await wait_until(lambda: all(gate.refusal(model) for gate in gates), "the workers to see it")
        for n in range(3):
            await client.stop(f"s{n}", f"t{n}")


@pytest.mark.parametrize("ends", ["answered", "stopped"])
async def test_a_model_is_asked_by_no_more_than_its_limit(
    deploy: Deployments, provider: Provider, ends: str
) -> None:
    """The next turn waits without a worker, whichever has it; an answer that ends, or is stopped, makes room."""
    client = await deploy(settings=ONCE, limits={named(provider): 1})
    await deploy.stack.worker()
    go_on = asyncio.Event()
    provider.script = [says("One.", until=go_on), says("Two.")]
    async with client.process("s1", "Hi", id="t1") as one:
        await wait_until(lambda: provider.requests, "the provider to be asked")
        async with client.process("s2", "Hi", id="t2") as two:
            assert (await waits(deploy, client, "dev/s2/t2"))["reason"] == "model_busy"
            shown = await row(deploy, client, named(provider))
            assert (shown["running"], shown["limit"]) == (1, 1)
            assert len(provider.requests) == 1
            if ends == "stopped":
                assert (await client.stop("s1", "t1")).status_code == 200
            else:
                go_on.set()
            assert answer_of(await two.all()) == "Two."
            go_on.set()
        event = terminal(await one.all()) or {}
    assert event["status"] == ("canceled" if ends == "stopped" else "completed")


async def test_a_turn_of_several_requests_keeps_to_the_limit(deploy: Deployments, provider: Provider) -> None:
    """Each request has a permit of its own, which is free again for the next."""
    tools = ["tests.support.fake_provider.tools:get_weather"]
    client = await deploy(settings=ONCE, limits={named(provider): 1}, tools=tools)
    provider.script = [calls(Call("get_weather", '{"city": "Rome"}')), says("Sunny.")]
    frames = await client.turn("s1", "Hi", id="t1")
    assert answer_of(frames) == "Sunny."
    assert (await row(deploy, client, named(provider)))["running"] == 0
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    assert (await admin.http.get("/admin/v1/tasks/dev/s1/t1")).json()["attempt"] == 1


async def test_a_fallback_answers_for_a_held_model(deploy: Deployments, provider: Provider) -> None:
    """And the response says so; when the model is resumed, it answers again."""
    client = await deploy(settings=ONCE, fallback=[other(provider)])
    await hold(deploy, client, named(provider))
    provider.script = [says("Other."), says("Own.")]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    assert (answer_of(frames), model_of(frames)) == ("Other.", named(provider, "openai:other"))
    await operate(deploy, client, "resume", named(provider))
    (gate,) = [worker.gate for worker, _ in deploy.stack.workers]
    await wait_until(lambda: gate.refusal(named(provider)) is None, "the worker to see the end of the hold")
    frames = await client.turn("s1", "Hi")
    assert (answer_of(frames), model_of(frames)) == ("Own.", named(provider))
    assert asked(provider) == ["other", "test"]


async def test_a_fallback_takes_over_when_retries_are_spent(deploy: Deployments, provider: Provider) -> None:
    """It has retries of its own, goes on from the last checkpoint, and stays the turn's model, also after a shutdown."""
    tools = ["tests.support.fake_provider.tools:get_weather"]
    client = await deploy(settings=ONCE, retry_for=0, fallback=[other(provider)], tools=tools)
    go_on = asyncio.Event()
    asks = calls(Call("get_weather", '{"city": "Rome"}'))
    provider.script = [asks, says("Half", cut=True), says("Sun", until=go_on), says("Sunny.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: len(provider.requests) == 3, "the fallback to be asked")
        await deploy.stack.worker()
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        frames = await stream.all()
        go_on.set()
    check_whole(frames)
    assert (answer_of(frames), model_of(frames)) == ("Sunny.", named(provider, "openai:other"))
    assert asked(provider) == ["test", "test", "other", "other"]
    kinds = [each["type"] for each in (terminal(frames) or {})["output"]]
    assert kinds[:2] == ["plugin_call", "plugin_call_output"]


async def test_the_last_fallbacks_failure_ends_the_turn(deploy: Deployments, provider: Provider) -> None:
    """With the failure's own code."""
    client = await deploy(
        settings=ONCE, retry_for=0, fallback=[other(provider), other(provider, "openai:last")]
    )
    provider.script = [refusal(503), refusal(500), refusal(429)]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    assert (terminal(frames) or {})["error"]["code"] == "model_rate_limited"
    assert asked(provider) == ["test", "other", "last"]


async def test_what_does_not_pass_asks_no_fallback(deploy: Deployments, provider: Provider) -> None:
    """A request that is refused for what it is would be refused there, too."""
    client = await deploy(settings=ONCE, fallback=[other(provider)])
    provider.script = [refusal(400)]
    frames = await client.turn("s1", "Hi")
    assert (terminal(frames) or {})["error"]["code"] == "model_rejected"
    assert asked(provider) == ["test"]
