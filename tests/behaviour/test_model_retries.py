"""Providers that are away for a while: the turn waits without a worker, and goes on when they are back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import check_whole, terminal, text_of
from tests.support.fake_provider.responses import Refusal
from tests.support.fake_provider.server import Call, calls, says
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.client import Client, Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Answer, Provider

# No retries in place: each failure releases the attempt.
ONCE = {"max_retries": 0}
# With this the library's own client reads the stream.
PLAIN = {"openai_include_unmapped_response_data": True}
SOON = {"retry-after-ms": "20"}
LATER = {"Retry-After": "600"}
LONG: dict[str, Any] = {"settings": ONCE, "retry_for": 3600}


def refusal(status: int, headers: dict[str, str] | None = None, code: str = "") -> Refusal:
    """A refusal as OpenAI words it."""
    return Refusal(status, {"error": {"message": "not now", "code": code}}, headers or {})


def answer_of(frames: list[Frame]) -> str:
    """The text of the turn's last message, as its end has it."""
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "completed", event
    text: str = event["output"][-1]["content"][0]["text"]
    return text


async def shown(deploy: Deployments, client: Client, task: str = "dev/s1/t1") -> dict[str, Any]:
    """The task as operators see it."""
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    row: dict[str, Any] = (await admin.http.get(f"/admin/v1/tasks/{task}")).json()
    return row


async def waits(deploy: Deployments, client: Client, task: str = "dev/s1/t1") -> dict[str, Any]:
    """What the task waits for, as operators see it, once it does."""
    row: dict[str, Any] = {}

    async def waiting() -> bool:
        nonlocal row
        row = await shown(deploy, client, task)
        return "waiting" in row

    await wait_until(waiting, "the turn to wait")
    assert row["status"] == "queued"
    found: dict[str, Any] = row["waiting"]
    return found


@pytest.mark.parametrize(
    "trouble",
    [
        *(refusal(status, SOON) for status in (429, 408, 409, 425, 500, 503, 529)),
        says(raw=b'data: {"error": {"message": "overloaded", "type": "overloaded_error"}}\n\n'),
    ],
    ids=["429", "408", "409", "425", "500", "503", "529", "overloaded"],
)
async def test_a_refusal_that_passes_ends_no_turn(
    deploy: Deployments, provider: Provider, trouble: Answer | Refusal
) -> None:
    """The turn is taken up again, and says what the provider says then."""
    client = await deploy(settings=ONCE)
    provider.script = [trouble, says("He", "re.")]
    frames = await client.turn("s1", "Hi", id="t1")
    check_whole(frames)
    assert text_of(frames) == answer_of(frames) == "Here."
    assert len(provider.requests) == 2
    row = await shown(deploy, client)
    assert (row["attempt"], row["crashes"]) == (2, 0)
    assert "waiting" not in row


@pytest.mark.parametrize(
    "trouble",
    [
        says("Half a sen", cut=True),
        says("Half a sen", raw=b"data: {broken\n\n"),
        # As a proxy does it whose provider went away: HTTP has no word for that.
        says("Half a sen", raw=b""),
    ],
    ids=["cut", "broken", "closed"],
)
async def test_an_answer_that_breaks_off_is_said_anew(
    deploy: Deployments, provider: Provider, trouble: Answer
) -> None:
    """As after a worker's death: the message is incomplete, another one has the answer; from any cursor it is the same."""
    client = await deploy(settings=ONCE)
    provider.script = [trouble, says("A whole ", "sentence.")]
    frames = await client.turn("s1", "Hi", id="t1")
    check_whole(frames)
    event = terminal(frames) or {}
    assert [(each["status"], each["content"][0]["text"]) for each in event["output"]] == [
        ("incomplete", "Half a sen"),
        ("completed", "A whole sentence."),
    ]
    assert provider.messages(0) == provider.messages(1)
    for at, frame in enumerate(frames[:-1]):
        async with client.follow("s1", "t1", frame.id) as stream:
            assert [each.raw for each in await stream.all()] == [each.raw for each in frames[at + 1 :]]


@pytest.mark.parametrize("settings", [ONCE, {**ONCE, **PLAIN}], ids=["lean", "plain"])
async def test_an_answer_needs_an_end(
    deploy: Deployments, provider: Provider, settings: dict[str, Any]
) -> None:
    """A reason to finish, or `[DONE]`, which some send alone; a stream that is closed without either was cut."""
    client = await deploy(settings=settings)
    provider.script = [says("Ha", raw=b""), says("Half.", raw=b"data: [DONE]\n\n")]
    assert answer_of(await client.turn("s1", "Hi")) == "Half."
    assert len(provider.requests) == 2


async def test_a_liteagent_client_gets_the_answer_too(deploy: Deployments, provider: Provider) -> None:
    """Nothing changes in what its protocol says: pieces of text, and the end."""
    client = await deploy(settings=ONCE)
    provider.script = [says("Half", cut=True), refusal(503), says("Whole.")]
    session = await client.init()
    async with client.chat(session, "Hi") as stream:
        frames = await stream.all()
    assert b"Whole." in stream.raw
    assert frames[-1].data["content"]["status"] == "done"
    assert len(provider.requests) == 3


async def test_a_read_timeout_is_retried(deploy: Deployments, provider: Provider) -> None:
    """A provider that says nothing more for as long as the agent's settings allow."""
    client = await deploy(settings={**ONCE, "timeout": 0.5})
    never = asyncio.Event()
    # A slow machine may run into it again.
    provider.script = [says("Wai", until=never), *[says("Here.")] * 9]
    frames = await client.turn("s1", "Hi")
    never.set()
    assert answer_of(frames) == "Here."


async def test_a_provider_that_is_not_there_yet(deploy: Deployments, provider: Provider) -> None:
    """Refused connections; when the port is open the turn goes on."""
    client = await deploy(settings=ONCE)
    await provider.close()
    async with client.process("s1", "Hi", id="t1") as stream:
        assert (await waits(deploy, client))["reason"] == "model_unavailable"
        provider.script = [says("Here.")]
        await provider.start()
        assert answer_of(await stream.all()) == "Here."


async def test_no_slot_is_held_meanwhile(deploy: Deployments, provider: Provider) -> None:
    """A worker with one slot runs another turn; operators and metrics show what waits; a stop ends it, for good."""
    client = await deploy(deployment={"max_jobs": 1, "metrics_open": True}, **LONG)
    provider.script = [refusal(429, LATER), says("Other.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        waiting = await waits(deploy, client)
        row = await shown(deploy, client)
        assert waiting["reason"] == "model_rate_limited"
        assert 500 < waiting["until"] - row["submitted_at"] < 700
        assert answer_of(await client.turn("s2", "Hi")) == "Other."
        worker, _ = deploy.stack.workers[0]
        await wait_until(lambda: not len(worker.leases), "the slot to be free again")
        text = (await client.http.get("/metrics")).text
        assert 'turnstream_turns_waiting{reason="model_rate_limited"} 1' in text
        assert (await client.stop("s1", "t1")).status_code == 200
        frames = await stream.all()
    check_whole(frames)
    assert (terminal(frames) or {})["status"] == "canceled"
    assert len(provider.requests) == 2


async def test_a_deadline_holds_while_it_waits(deploy: Deployments, provider: Provider) -> None:
    """The turn fails when its deadline has passed, however long the provider wants to be left alone."""
    client = await deploy(deadline=1, **LONG)
    provider.script = [refusal(429, LATER)]
    frames = await client.turn("s1", "Hi", id="t1")
    check_whole(frames)
    assert (terminal(frames) or {})["error"]["code"] == "deadline"
    assert len(provider.requests) <= 1


async def test_a_clear_ends_what_waits(deploy: Deployments, provider: Provider) -> None:
    """A session is cleared at once, and what waited in it is over."""
    client = await deploy(**LONG)
    provider.script = [refusal(429, LATER), says("Afresh.")]
    session = await client.init()
    async with client.chat(session, "Hi") as stream:
        await wait_until(lambda: _waiting(deploy, client), "the turn to wait")
        cleared = await client.http.post("/liteAgent/v1/clear", params={"sessionId": session})
        assert cleared.status_code == 200, cleared.text
        await stream.all()
    async with client.chat(session, "Hi") as stream:
        await stream.all()
    assert b"Afresh." in stream.raw


async def _waiting(deploy: Deployments, client: Client) -> bool:
    admin = deploy.stack.client(client.base_url, deploy.stack.admin)
    stats = (await admin.http.get("/admin/v1/stats")).json()
    return bool(stats["tasks"]["waiting"])


async def test_a_drained_worker_leaves_it_to_others(deploy: Deployments, provider: Provider) -> None:
    """Who released the turn is gone when its time comes: another worker's rescuer launches it."""
    client = await deploy(deployment={"lease_seconds": 1, "drain_seconds": 10}, settings=ONCE)
    provider.script = [refusal(503, {"retry-after-ms": "1500"}), says("Here.")]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: provider.requests, "the provider to be asked")
        await deploy.stack.stop_worker(deploy.stack.workers[0][0])
        await deploy.stack.worker()
        assert answer_of(await stream.all()) == "Here."
    first, second = provider.times
    assert second - first >= 1.5


async def test_a_failure_that_lasts_ends_the_turn(deploy: Deployments, provider: Provider) -> None:
    """With the failure's own code, when the agent's `retry_for` would be over."""
    client = await deploy(settings=ONCE, retry_for=0.6)
    provider.script = [refusal(503, {"retry-after-ms": "200"}) for _ in range(10)]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    assert (terminal(frames) or {})["error"]["code"] == "model_unavailable"
    assert 1 <= len(provider.requests) < 5


async def test_a_longer_wait_than_the_agent_has_ends_the_turn_at_once(
    deploy: Deployments, provider: Provider
) -> None:
    """There is nothing to wait for; the provider is not asked again."""
    client = await deploy(retry_for=5)
    provider.script = [refusal(429, LATER)]
    frames = await client.turn("s1", "Hi")
    assert (terminal(frames) or {})["error"]["code"] == "model_rate_limited"
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (refusal(400), "model_rejected"),
        (refusal(401), "model_authentication"),
        (refusal(403), "model_authentication"),
        (refusal(404), "model_not_found"),
        (refusal(400, code="context_length_exceeded"), "context_too_long"),
        (refusal(429, code="insufficient_quota"), "model_quota_exceeded"),
        (says(finish="content_filter"), "content_filtered"),
    ],
)
async def test_what_does_not_pass_ends_the_turn_at_once(
    deploy: Deployments, provider: Provider, trouble: Answer | Refusal, code: str
) -> None:
    """One request, and the failure's own code."""
    client = await deploy(settings=ONCE)
    provider.script = [trouble]
    frames = await client.turn("s1", "Hi")
    assert (terminal(frames) or {})["error"]["code"] == code
    assert len(provider.requests) == 1


async def test_what_was_done_is_not_done_again(deploy: Deployments, provider: Provider) -> None:
    """It goes on from the last checkpoint: a tool that has run does not run again, and its call is said once."""
    client = await deploy(settings=ONCE, tools=["tests.support.fake_provider.tools:get_weather"])
    asks = calls(Call("get_weather", '{"city": "Rome"}'))
    provider.script = [asks, says("Half", cut=True), refusal(529), says("Sunny.")]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    assert answer_of(frames) == "Sunny."
    kinds = [each["type"] for each in (terminal(frames) or {})["output"]]
    assert kinds == ["plugin_call", "plugin_call_output", "message", "message"]
    assert provider.messages(1) == provider.messages(3)


@pytest.mark.parametrize("settings", [ONCE, {**ONCE, **PLAIN}], ids=["lean", "plain"])
@pytest.mark.parametrize("pieces", [("Half a sen",), ()], ids=["in the middle", "before the first word"])
async def test_a_stop_closes_the_call_of_the_model(
    deploy: Deployments, provider: Provider, settings: dict[str, Any], pieces: tuple[str, ...]
) -> None:
    """The provider sees at once that nobody reads on, and is not asked again."""
    client = await deploy(settings=settings)
    provider.script = [says(*pieces, until=asyncio.Event())]
    async with client.process("s1", "Hi", id="t1") as stream:
        await wait_until(lambda: provider.requests, "the provider to be asked")
        if pieces:
            await stream.until(lambda frames: text_of(frames) == "".join(pieces))
        assert (await client.stop("s1", "t1")).status_code == 200
        await wait_until(lambda: provider.left, "the provider's connection to be closed")
        assert (terminal(await stream.all()) or {})["status"] == "canceled"
    worker, _ = deploy.stack.workers[0]
    await wait_until(lambda: not len(worker.leases), "the worker to be done with the turn")
    assert (len(provider.requests), provider.left) == (1, 1)
