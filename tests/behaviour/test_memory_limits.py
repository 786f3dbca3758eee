"""Memory: how much of earlier turns a model sees, and how much is kept at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, terminal, text_of
from tests.support.fake_provider.server import Call, calls, says

if TYPE_CHECKING:
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider
    from tests.support.stack import Stack


def words_sent(provider: Provider) -> list[str]:
    """What the users said, as the newest request has it."""
    return [each["content"] for each in provider.messages() if each["role"] == "user"]


async def kept(deploy: Deployments) -> int:
    """Turns in the session's memory."""
    length: int = await deploy.stack.broker.sessions.llen("ts:{dev/s1}:memory")  # type: ignore[misc]
    return length


async def test_only_the_newest_turns_are_seen_and_kept(deploy: Deployments, provider: Provider) -> None:
    """With `turns = 2` the third turn back is forgotten, by the model and by the broker."""
    client = await deploy(memory={"turns": 2})
    for word in ("one", "two", "three", "four"):
        provider.script = [says("Yes.")]
        await client.turn("s1", word)
    assert words_sent(provider) == ["two", "three", "four"]
    assert await kept(deploy) == 2


async def test_turns_are_dropped_whole(deploy: Deployments, provider: Provider) -> None:
    """What is left begins with a user's words, never with a result without its call."""
    client = await deploy(memory={"turns": 1}, tools=["tests.support.fake_provider.tools:get_weather"])
    for word in ("one", "two"):
        provider.script = [calls(Call("get_weather", '{"city": "Rome"}')), says("Sunny.")]
        await client.turn("s1", word)
    provider.script = [says("Bye.")]
    await client.turn("s1", "three")
    roles = [message["role"] for message in provider.messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert words_sent(provider) == ["two", "three"]


async def test_memory_is_bounded_by_tokens(deploy: Deployments, provider: Provider) -> None:
    """A long turn pushes out those before it; a turn that alone is too long is not seen either."""
    client = await deploy(memory={"tokens": 50})
    for word in ("a", "b" * 160, "c", "d" * 400, "e"):
        provider.script = [says("Yes.")]
        await client.turn("s1", word)
        if word == "c":
            assert words_sent(provider) == ["a", "b" * 160, "c"]
    assert words_sent(provider) == ["e"]


async def test_an_agent_without_memory(deploy: Deployments, provider: Provider) -> None:
    """With `turns = 0` each turn is the first one, and nothing is kept."""
    client = await deploy(memory={"turns": 0})
    for word in ("one", "two"):
        provider.script = [says("Yes.")]
        await client.turn("s1", word)
    assert words_sent(provider) == ["two"]
    assert await kept(deploy) == 0


async def test_a_limit_holds_for_turns_that_were_stopped(deploy: Deployments, provider: Provider) -> None:
    """Ended from outside, a turn counts like any other."""
    client = await deploy(memory={"turns": 1}, client_tools=[{"name": "ask"}])
    for word in ("one", "two"):
        provider.script = [calls(Call("ask"))]
        async with client.process("s1", word) as stream:
            await stream.until(calls_of)
            await client.stop("s1")
    assert await kept(deploy) == 1
    provider.script = [says("Yes.")]
    await client.turn("s1", "three")
    assert words_sent(provider) == ["two", "three"]


async def test_a_generators_history_has_the_same_limit(deploy: Deployments) -> None:
    """`Turn.history` goes back as far as the spec says."""
    client = await deploy(python="tests.support.coded:recalls", memory={"turns": 1})
    for word in ("one", "two"):
        await client.turn("s1", word)
    assert text_of(await client.turn("s1", "three")).startswith("user: two")


async def test_what_made_a_turn_fail_does_not_fail_the_next(deploy: Deployments, provider: Provider) -> None:
    """An attachment that no model reads ends its own turn; later turns know the words around it only."""
    client = await deploy()
    odd = {"type": "file", "file_data": "data:foo/bar;base64,aGk="}
    content = [{"type": "text", "text": "Look at this"}, odd]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": content}]}
    async with client.open("POST", "/process", json=asked) as stream:
        failed = terminal(await stream.all())
    assert failed is not None
    assert failed["status"] == "failed"
    provider.script = [says("Hello.")]
    ended = terminal(await client.turn("s1", "hello"))
    assert ended is not None
    assert ended["status"] == "completed"
    sent = words_sent(provider)
    assert sent[-1] == "hello"
    assert sent[0].startswith("Look at this")


async def test_a_turn_that_failed_counts_as_short_as_it_is_told(
    deploy: Deployments, provider: Provider
) -> None:
    """What it attached, and most of a long input, costs later turns nothing."""
    client = await deploy(memory={"tokens": 1500})
    provider.script = [says("Yes.")]
    await client.turn("s1", "one")
    odd = {"type": "file", "file_data": "data:foo/bar;base64,aGk="}
    content = [{"type": "text", "text": "x" * 40_000}, odd]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": content}]}
    async with client.open("POST", "/process", json=asked) as stream:
        failed = terminal(await stream.all())
    assert failed is not None
    assert failed["status"] == "failed"
    provider.script = [says("Yes.")]
    await client.turn("s1", "three")
    assert words_sent(provider) == ["one", "x" * 4000, "three"]


ODD = [{"kind": 1}, {"type": 3}, [{"type": ["x"]}], {"kind": None, "type": {}}, {"text": 5}]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("way", ["answer", "tool"])
async def test_what_results_call_themselves_breaks_no_later_turn(
    deploy: Deployments, provider: Provider, odd: Any, way: str
) -> None:
    """A result may have a `kind` and a `type` of its own."""
    client = await deploy(
        memory={"tokens": 1000},
        client_tools=[{"name": "ask"}],
        tools=["tests.support.fake_provider.tools:returns"],
    )
    called = Call("ask") if way == "answer" else Call("returns", json.dumps({"what": odd}))
    provider.script = [calls(called), says("Done."), says("Yes.")]
    async with client.process("s1", "one") as stream:
        if way == "answer":
            (call,) = calls_of(await stream.until(calls_of))
            await client.callback("s1", call["call_id"], odd)
        await stream.all()
    assert text_of(await client.turn("s1", "two")) == "Yes."
    assert words_sent(provider) == ["one", "two"]


@pytest.mark.parametrize("named", [{"type": "image"}, {"kind": "binary"}, {"text": "short"}])
async def test_a_long_result_counts_as_long_as_it_is(
    deploy: Deployments, provider: Provider, named: dict[str, str]
) -> None:
    """However it calls itself: its turn is dropped."""
    client = await deploy(memory={"tokens": 2000}, tools=["tests.support.fake_provider.tools:much"])
    provider.script = [calls(Call("much", json.dumps({"more": named}))), says("Done."), says("Yes.")]
    await client.turn("s1", "one")
    await client.turn("s1", "two")
    assert words_sent(provider) == ["two"]


async def test_memory_is_bounded_by_bytes(stack: Stack) -> None:
    """Sixty turns that together are a dozen times what a session may remember: it never remembers more."""
    await stack.worker(memory_max_bytes=300_000)
    client = await stack.front_end()
    word = "x" * 30_000
    for number in range(60):
        assert text_of(await client.turn("s1", f"{number} {word}")).endswith(f"{number} {word}")
        elements = await stack.broker.sessions.lrange("ts:{dev/s1}:memory", 0, -1)  # type: ignore[misc]
        assert sum(map(len, elements)) <= 300_000
        assert f'"{number} '.encode() in elements[-1]
    assert len(elements) > 1
