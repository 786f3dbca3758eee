"""Providers that fail: tried again as their client does, then the turn ends with a stable code and no secrets.

Where a failure passes these agents do not wait for that: test_model_retries.py has those that do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import check_whole, terminal, text_of
from tests.support.fake_provider.responses import Refusal
from tests.support.fake_provider.server import KEY, Call, calls, says

if TYPE_CHECKING:
    from tests.support.client import Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Answer, Provider

SOON = {"retry-after-ms": "5"}


def error_of(frames: list[Frame]) -> dict[str, Any]:
    """The error that the turn ended with."""
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "failed"
    error: dict[str, Any] = event["error"]
    return error


def refusal(status: int, code: str = "", kind: str = "", message: str = "") -> Refusal:
    """A refusal as OpenAI words it, with things in it that nobody else should read."""
    text = message or f"Bad key {KEY}, see https://provider.invalid/account"
    return Refusal(status, {"error": {"message": text, "code": code, "type": kind}}, SOON)


@pytest.mark.parametrize(
    "trouble",
    [
        Refusal(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"}),
        refusal(500),
        refusal(503),
    ],
)
async def test_a_passing_trouble_is_not_noticed(
    deploy: Deployments, provider: Provider, trouble: Refusal
) -> None:
    """The provider's client tries again, after the time it is told; the turn completes."""
    client = await deploy()
    provider.script = [trouble, trouble, says("Here.")]
    frames = await client.turn("s1", "Hi")
    check_whole(frames)
    assert text_of(frames) == "Here."
    assert len(provider.requests) == 3


async def test_the_provider_says_when_to_come_back(deploy: Deployments, provider: Provider) -> None:
    """Not before the seconds of its Retry-After are over."""
    client = await deploy()
    provider.script = [Refusal(429, {"error": {"message": "slow down"}}, {"Retry-After": "2"}), says("Here.")]
    assert text_of(await client.turn("s1", "Hi")) == "Here."
    first, second = provider.times
    # By itself the provider's client would wait for half a second.
    assert second - first >= 2


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (refusal(429, "rate_limit_exceeded"), "model_rate_limited"),
        (refusal(429, "insufficient_quota"), "model_quota_exceeded"),
        (refusal(500), "model_unavailable"),
        (refusal(503, "overloaded"), "model_unavailable"),
        (refusal(401, "invalid_api_key"), "model_authentication"),
        (refusal(403), "model_authentication"),
        (refusal(404, "model_not_found"), "model_not_found"),
        (refusal(400, "context_length_exceeded"), "context_too_long"),
        (
            refusal(400, message="This model's maximum context length is 10 tokens, you gave 20"),
            "context_too_long",
        ),
        (refusal(400), "model_rejected"),
        (refusal(422), "model_rejected"),
        (refusal(413), "model_rejected"),
        (refusal(408), "model_timeout"),
    ],
)
async def test_a_provider_that_refuses_ends_the_turn_with_a_code(
    deploy: Deployments, provider: Provider, trouble: Refusal, code: str
) -> None:
    """The code is stable; the text quotes neither the provider nor its address nor the key."""
    client = await deploy(retry_for=0)
    provider.script = [trouble] * 3
    error = error_of(await client.turn("s1", "Hi"))
    assert error["code"] == code
    for secret in (KEY, "http", "provider.invalid", "127.0.0.1", "maximum context length"):
        assert secret not in error["message"]


@pytest.mark.parametrize(
    "answer", [says("Half a sen", cut=True), says("Half a sen", raw=b"data: {broken\n\n")]
)
async def test_a_stream_that_breaks_off_ends_the_turn(
    deploy: Deployments, provider: Provider, answer: Answer
) -> None:
    """What had come stays, incomplete; nothing is said twice."""
    client = await deploy(retry_for=0)
    provider.script = [answer]
    frames = await client.turn("s1", "Hi")
    assert error_of(frames)["code"] == "model_unavailable"
    (message,) = terminal(frames)["output"]  # type: ignore[index]
    assert message["status"] == "incomplete"
    assert message["content"][0]["text"] == "Half a sen"
    assert len(provider.requests) == 1


async def test_an_error_inside_a_stream_keeps_its_meaning(deploy: Deployments, provider: Provider) -> None:
    """Some providers answer 200 and then send an error: it has the same code as outside a stream."""
    client = await deploy(retry_for=0)
    provider.script = [
        says("Well", raw=b'data: {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}\n\n')
    ]
    assert error_of(await client.turn("s1", "Hi"))["code"] == "model_rate_limited"


async def test_a_provider_that_is_not_there(deploy: Deployments, provider: Provider) -> None:
    """A refused connection is the same as a provider that is down."""
    client = await deploy(base_url="http://127.0.0.1:9/v1", settings={"max_retries": 0}, retry_for=0)
    error = error_of(await client.turn("s1", "Hi"))
    assert error["code"] == "model_unavailable"
    assert "127.0.0.1" not in error["message"]


async def test_a_provider_that_takes_too_long(deploy: Deployments, provider: Provider) -> None:
    """The agent's own limit for a model call ends the turn, though words had come."""
    client = await deploy(settings={"timeout": 0.2, "max_retries": 0}, retry_for=0)
    provider.script = [says("Wait", until=asyncio.Event())]
    frames = await client.turn("s1", "Hi")
    assert error_of(frames)["code"] == "model_timeout"
    assert text_of(frames) == "Wait"


async def test_an_answer_that_is_cut_within_a_call(deploy: Deployments, provider: Provider) -> None:
    """The model runs out of tokens whenever it writes a call: there is nothing to run."""
    client = await deploy(tools=["tests.support.fake_provider.tools:get_weather"])
    provider.script = [calls(Call("get_weather", '{"city": "Ro'), finish="length")] * 3
    assert error_of(await client.turn("s1", "Hi"))["code"] == "output_too_long"


async def test_an_agent_that_goes_round_and_round(deploy: Deployments, provider: Provider) -> None:
    """A model that calls tools for ever is ended."""
    client = await deploy(tools=["tests.support.fake_provider.tools:get_weather"])
    provider.script = [calls(Call("get_weather", '{"city": "Rome"}')) for _ in range(60)]
    assert error_of(await client.turn("s1", "Hi"))["code"] == "too_many_model_calls"


async def test_a_turn_after_a_failure_is_accepted(deploy: Deployments, provider: Provider) -> None:
    """What failed is in the memory as far as it went, in a form that providers take."""
    client = await deploy()
    provider.script = [refusal(400), says("Better.")]
    await client.turn("s1", "One")
    assert text_of(await client.turn("s1", "Two")) == "Better."
    assert [message["role"] for message in provider.messages()] == ["user", "assistant", "user"]


async def test_a_tools_own_timeout_is_its_error(deploy: Deployments, provider: Provider) -> None:
    """A `TimeoutError` that a tool raises is not taken for the tool's deadline."""
    client = await deploy(tools=["tests.support.fake_provider.tools:times_out"])
    provider.script = [calls(Call("times_out"))]
    error = error_of(await client.turn("s1", "Hi"))
    assert error == {"code": "agent_error", "message": "The agent failed (TimeoutError)."}
