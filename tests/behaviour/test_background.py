"""Background responses: what the provider has generated is read on, or again, and not paid twice; and canceled with the turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import check_whole, terminal, text_of
from tests.support.fake_provider import tools
from tests.support.fake_provider.responses import Cut, Refusal, Reply
from tests.support.waiting import wait_until
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.errors import ConfigurationError
from turnstream.worker.agents import models, registry
from turnstream.worker.agents.background import MOST_EMPTY

if TYPE_CHECKING:
    from tests.support.client import Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.responses import Made
    from tests.support.fake_provider.server import Provider

TOKENS = tuple(f"{number} " for number in range(20))
TEXT = "".join(TOKENS)

# No retries in place: a connection that fails is this project's to see to.
AGENT: dict[str, Any] = {
    "model": "openai-responses:test",
    "settings": {"openai_background": True, "max_retries": 0},
}
# With this the library's own client reads the stream.
PLAIN = {**AGENT, "settings": {**AGENT["settings"], "openai_include_unmapped_response_data": True}}


def messages_of(frames: list[Frame]) -> list[tuple[str, str]]:
    """Status and text of the turn's messages; checks that the turn was completed, and the stream is whole."""
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "completed", event
    return [(each["status"], each["content"][0]["text"]) for each in event["output"]]


def only(provider: Provider) -> Made:
    """The one response that was made; all that was generated is in it."""
    (made,) = provider.responses.made.values()
    return made


@pytest.mark.parametrize("agent", [AGENT, PLAIN], ids=["lean", "plain"])
async def test_a_cut_stream_is_read_on(
    deploy: Deployments, provider: Provider, agent: dict[str, Any]
) -> None:
    """In the same message, behind the last event that came; the client sees nothing of it, from whatever cursor."""
    client = await deploy(**agent)
    provider.responses.script = [Reply(TOKENS)]
    provider.responses.cuts = [Cut(7, clean=True), Cut(9, clean=True), Cut(1, clean=True)]
    frames = await client.turn("s1", "Hi", id="t1")
    assert messages_of(frames) == [("completed", TEXT)]
    assert provider.responses.asked == ["create", "resp_1 after 6", "resp_1 after 15", "resp_1 after 16"]
    assert (only(provider).generated, (terminal(frames) or {})["usage"]["output_tokens"]) == (20, 20)
    async with client.follow("s1", "t1", frames[5].id) as stream:
        assert [each.raw for each in await stream.all()] == [each.raw for each in frames[6:]]


async def test_a_lost_begin_is_found_by_its_key(deploy: Deployments, provider: Provider) -> None:
    """Reset before the provider's first word came: a provider that honours the key begins nothing anew."""
    client = await deploy(**AGENT)
    provider.responses.script = [Reply(TOKENS)]
    provider.responses.keys = {}
    provider.responses.cuts = [Cut(0), Cut(0), Cut(12)]
    assert messages_of(await client.turn("s1", "Hi"))[-1] == ("completed", TEXT)
    assert only(provider).generated == 20


@pytest.mark.parametrize("streams", [True, False], ids=["events", "whole"])
async def test_the_next_attempt_reads_what_there_is(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch, *, streams: bool
) -> None:
    """Drained in mid-answer: closed as incomplete, and whole in the next message, by its events or, where they are gone, as a whole."""
    monkeypatch.setattr(models, "POLL_SECONDS", 0.05)
    client = await deploy(**AGENT)
    go_on = asyncio.Event()
    provider.responses.script = [Reply(TOKENS, hold=go_on, before=5)]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: text_of(frames) == "".join(TOKENS[:5]))
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        provider.responses.streams = streams
        await deploy.stack.worker()
        await wait_until(lambda: "resp_1 stream" in provider.responses.asked, "the stream to be asked for")
        go_on.set()
        frames = await stream.all()
    assert messages_of(frames) == [("incomplete", "".join(TOKENS[:5])), ("completed", TEXT)]
    assert only(provider).generated == 20
    assert "resp_1 cancel" not in provider.responses.asked


async def test_what_ended_meanwhile_is_not_asked_for_again(deploy: Deployments, provider: Provider) -> None:
    """The provider had gone on without a reader; the answer is there at once."""
    client = await deploy(**AGENT)
    go_on = asyncio.Event()
    provider.responses.script = [Reply(TOKENS, hold=go_on, before=5)]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: text_of(frames) == "".join(TOKENS[:5]))
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        go_on.set()
        await wait_until(lambda: only(provider).over, "the provider to end the answer")
        await deploy.stack.worker()
        frames = await stream.all()
    assert messages_of(frames)[-1] == ("completed", TEXT)
    assert provider.responses.asked == ["create", "resp_1"]


async def test_connections_that_bring_nothing_release_the_turn(
    deploy: Deployments, provider: Provider
) -> None:
    """After a few of them the turn waits without a worker, and then reads the same response."""
    client = await deploy(**AGENT)
    go_on = asyncio.Event()
    provider.responses.script = [Reply(TOKENS, hold=go_on, before=5)]
    provider.responses.cuts = [Cut(9, clean=True), *[Cut(0, clean=True)] * MOST_EMPTY]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: "resp_1 stream" in provider.responses.asked, "the next attempt")
        go_on.set()
        frames = await stream.all()
    assert messages_of(frames) == [("incomplete", "".join(TOKENS[:5])), ("completed", TEXT)]
    assert only(provider).generated == 20


@pytest.mark.parametrize("held", [True, False], ids=["running", "waiting"])
async def test_a_stop_cancels_the_response(deploy: Deployments, provider: Provider, *, held: bool) -> None:
    """Once, whichever worker has the turn, and if none has it."""
    client = await deploy(**AGENT, retry_for=3600)
    await deploy.stack.worker()
    provider.responses.script = [Reply(TOKENS, hold=asyncio.Event(), before=5)]
    if not held:
        provider.responses.cuts = [Cut(9, clean=True)]
        provider.responses.refusals = [Refusal(503, {}, {"Retry-After": "600"})]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: text_of(frames) == "".join(TOKENS[:5]))
        if not held:
            await wait_until(
                lambda: not any(len(worker.leases) for worker, _ in deploy.stack.workers), "the turn to wait"
            )
        assert (await client.stop("s1", "t1")).status_code == 200
        frames = await stream.all()
    assert (terminal(frames) or {})["status"] == "canceled"
    await wait_until(lambda: only(provider).over, "the response to be canceled")
    await wait_until(lambda: not any(len(worker.leases) for worker, _ in deploy.stack.workers), "the worker")
    assert provider.responses.asked.count("resp_1 cancel") == 1
    assert only(provider).generated == 5


async def test_a_deadline_cancels_the_response(deploy: Deployments, provider: Provider) -> None:
    """Its worker ends the turn, and has nobody to read it any more."""
    client = await deploy(**AGENT, deadline=1)
    provider.responses.script = [Reply(TOKENS, hold=asyncio.Event(), before=5)]
    frames = await client.turn("s1", "Hi")
    assert (terminal(frames) or {})["error"]["code"] == "deadline"
    await wait_until(lambda: all(each.over for each in provider.responses.made.values()), "the cancellation")


async def test_a_response_that_fails_is_begun_anew(deploy: Deployments, provider: Provider) -> None:
    """It gives no answer any more: the next attempt begins another one, under another key."""
    client = await deploy(**AGENT)
    provider.responses.script = [Reply(TOKENS[:3], fails="server_error"), Reply(TOKENS)]
    provider.responses.keys = {}
    assert messages_of(await client.turn("s1", "Hi"))[-1] == ("completed", TEXT)
    assert provider.responses.asked == ["create", "create"]


async def test_responses_that_keep_failing_end_the_turn(deploy: Deployments, provider: Provider) -> None:
    """That one was begun is no progress: the turn does not wait, and pay, for ever."""
    client = await deploy(**AGENT, retry_for=0.6)
    provider.responses.script = [Reply(TOKENS[:3], fails="server_error") for _ in range(50)]
    frames = await client.turn("s1", "Hi")
    assert (terminal(frames) or {})["error"]["code"] == "model_unavailable"
    assert len(provider.responses.made) < 50


async def test_a_response_that_is_forgotten_is_begun_anew(deploy: Deployments, provider: Provider) -> None:
    """Providers keep them for a while only."""
    client = await deploy(**AGENT)
    provider.responses.script = [Reply(TOKENS, hold=asyncio.Event(), before=5), Reply(TOKENS)]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: text_of(frames) == "".join(TOKENS[:5]))
        provider.responses.remembers = False
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        await deploy.stack.worker()
        assert messages_of(await stream.all())[-1] == ("completed", TEXT)
    assert provider.responses.asked == ["create", "resp_1", "create"]


async def test_each_answer_of_a_turn_has_its_own(deploy: Deployments, provider: Provider) -> None:
    """A call that was cut in its arguments is made once, and what follows is another response."""
    tools.called.clear()
    client = await deploy(**AGENT, tools=["tests.support.fake_provider.tools:get_weather"])
    provider.responses.script = [Reply(call=("get_weather", '{"city": "Rome"}')), Reply(TOKENS)]
    provider.responses.cuts = [Cut(4, clean=True), None, Cut(9, clean=True)]
    frames = await client.turn("s1", "Weather?")
    check_whole(frames)
    output = (terminal(frames) or {})["output"]
    assert [each["type"] for each in output] == ["plugin_call", "plugin_call_output", "message"]
    assert output[-1]["content"][0]["text"] == TEXT
    assert tools.called == ["Rome"]
    assert [each.generated for each in provider.responses.made.values()] == [1, 20]
    keys = [headers["idempotency-key"] for headers in provider.headers]
    assert len(set(keys)) == 2


async def test_a_stop_closes_the_call_of_a_response_in_the_foreground(
    deploy: Deployments, provider: Provider
) -> None:
    """Nothing is canceled there: the provider sees that nobody reads on."""
    client = await deploy(model=AGENT["model"], settings={"max_retries": 0})
    provider.responses.script = [Reply(TOKENS, hold=asyncio.Event(), before=5)]
    async with client.process("s1", "Hi", id="t1") as stream:
        await stream.until(lambda frames: text_of(frames) == "".join(TOKENS[:5]))
        assert (await client.stop("s1", "t1")).status_code == 200
        await wait_until(lambda: only(provider).left, "the connection to be closed")
    assert provider.responses.asked == ["create"]


def test_it_is_for_the_responses_api_only() -> None:
    """An endpoint of chat completions would be asked for what it does not have, and the author think it does."""
    spec = AgentSpec(
        name="a",
        model="openai:m",
        base_url="http://provider.example/v1",
        settings={"openai_background": True},
    )
    with pytest.raises(ConfigurationError, match="openai-responses:NAME"):
        registry.build(Agents({"a": spec}))
