"""Coded agents: async generators and pydantic-ai agents that somebody wrote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.agents.config import Agents, AgentSpec
from turnstream.shared.agents.config import load as load_agents
from turnstream.shared.errors import ConfigurationError
from turnstream.worker.agents import registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client


def coded(name: str) -> Agents:
    """A deployment's agents with one from `tests.support.coded`."""
    specs = {spec.name: spec for spec in load_agents(None)}
    specs["demo"] = AgentSpec(name="demo", python=f"tests.support.coded:{name}")
    return Agents(specs)


@pytest.fixture
async def serving(place: Place) -> AsyncIterator[Any]:
    """Makes a client of a deployment that serves one coded agent."""
    stacks: list[Stack] = []

    async def serve(name: str) -> tuple[Client, Stack]:
        stack = Stack(place, coded(name))
        stacks.append(stack)
        await stack.worker()
        return await stack.front_end(), stack

    yield serve
    for stack in stacks:
        await stack.close()


async def test_a_generator_says_every_kind_of_content(serving: Any) -> None:
    """Text and thinking stream; other parts join the message; a message stands alone."""
    client, _ = await serving("everything")
    frames = await client.turn("s1", "go")
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert [message["type"] for message in ended["output"]] == ["reasoning", "message", "message"]
    assert [part["type"] for part in ended["output"][1]["content"]] == [
        "text",
        "image",
        "data",
        "audio",
        "file",
        "video",
        "refusal",
    ]
    assert ended["output"][1]["content"][0]["text"] == "Hello, world."
    assert ended["output"][2]["content"][0]["text"] == "Another message."


async def test_a_text_that_was_given_whole_reaches_a_streaming_liteagent_client(serving: Any) -> None:
    """Clients that join chunks hear a message that its agent gave in one piece."""
    client, _ = await serving("everything")
    session = await client.init()
    async with client.chat(session, "go") as stream:
        frames = await stream.all()
    chunks = [frame.data["part"] for frame in frames if frame.event == "chunk"]
    assert "Another message." in chunks


async def test_a_generator_asks_its_client_and_goes_on(serving: Any) -> None:
    """Two calls at once, then a third; results and state come back in each run."""
    client, _ = await serving("guide")
    async with client.process("s1", "go", id="t1") as stream:
        frames = await stream.until(lambda all_: len(calls_of(all_)) == 2)
        for call, answer in zip(calls_of(frames), ("Rome", "noon"), strict=True):
            await client.callback("s1", call["call_id"], answer)
        frames = await stream.until(lambda all_: len(calls_of(all_)) == 3)
        await client.callback("s1", calls_of(frames)[2]["call_id"], "yes")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "Let me ask. Rome at noon: yes, 2 rounds."


async def test_a_generator_knows_earlier_turns(serving: Any) -> None:
    """`Turn.history` has what was said, by whom; `Turn.count` adds to the usage."""
    client, _ = await serving("recalls")
    assert text_of(await client.turn("s1", "one")) == "nothing"
    frames = await client.turn("s1", "two")
    assert text_of(frames) == "user: one; assistant: nothing"
    ended = terminal(frames)
    assert ended is not None
    assert ended["usage"] == {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("known", "out_of_stock", "There is none left."),
        (
            "odd",
            "agent_error",
            "The agent failed: coded.py:107: an agent yields text, Thinking, Content, Message or ClientCall, not int",
        ),
        ("unknown", "agent_error", "The agent failed (RuntimeError)."),
    ],
)
async def test_a_failing_generator_ends_the_turn(serving: Any, text: str, code: str, said: str) -> None:
    """What was said stays, incomplete; only a deliberate error's text reaches the client."""
    client, _ = await serving("breaks")
    frames = await client.turn("s1", text)
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["error"] == {"code": code, "message": said}
    assert [message["status"] for message in ended["output"]] == ["incomplete"]
    assert ended["output"][0]["content"][0]["text"] == "Before. "


async def test_a_stopped_generator_is_closed(serving: Any) -> None:
    """A stop reaches a generator between two yields."""
    client, stack = await serving("echo")
    async with client.process("s1", "go", id="t1") as stream:
        await client.stop("s1")
        assert terminal(await stream.all())
    worker = stack.workers[0][0]
    await wait_until(lambda: not len(worker.leases), "the worker to be free again")


async def test_a_pydantic_ai_agent_is_served_as_it_is(serving: Any) -> None:
    """Its own tools are said, and their results kept, as configured ones are."""
    client, _ = await serving("scripted")
    frames = await client.turn("s1", "/tool add 1 2")
    check_whole(frames)
    assert calls_of(frames, "plugin_call_output")[0]["output"] == "3"
    assert text_of(frames) == "The result is 3."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("validated", ("output validators",)),
        ("not_an_agent", ("neither",)),
        ("no_such_name", ("tests.support.coded:no_such_name",)),
    ],
)
def test_a_python_agent_that_cannot_be_served_is_named(name: str, words: tuple[str, ...]) -> None:
    """Refused at start, with the agent's name and the reason."""
    with pytest.raises(ConfigurationError) as caught:
        registry.build(coded(name))
    for word in ("'demo'", *words):
        assert word in caught.value.public_text


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("nothing", "agent_error", "yields text, Thinking, Content, Message or ClientCall, not NoneType"),
        ("bytes", "agent_error", "not bytes"),
        ("untyped", "agent_error", "not dict"),
        ("wrong fields", "agent_error", "this is no content part: text: "),
        ("mixed", "agent_error", "not list"),
        ("no json", "agent_error", "the arguments of ClientCall 'f' must be a dict of JSON"),
        ("no name", "agent_error", "each ClientCall needs a name"),
        ("twice", "agent_error", "need a key each"),
        ("state", "agent_error", "turn.state must be JSON"),
        ("surrogate", "agent_error", "The agent failed"),
        ("base", "agent_error", "The agent failed (Unheard)."),
        ("huge", "turn_too_large", "Ask for less"),
    ],
)
async def test_a_generator_that_yields_what_nobody_can_say(
    serving: Any, text: str, code: str, words: str, capsys: Any
) -> None:
    """The turn ends at once with words that its author can use; the log says where, and quotes nobody."""
    client, stack = await serving("odd")
    frames = await client.turn("s1", text)
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert ended["error"]["code"] == code
    assert words in ended["error"]["message"]
    entries = await stack.entries("s1")
    assert [entry.kind for entry in entries].count("end") == 1
    # What is too large for a turn never gets to the broker, not even once.
    assert max(len(entry.event) for entry in entries) < 100_000
    assert text_of(await client.turn("s2", "fine")) == "Before. "
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    if text == "base":
        assert "tests/support/coded.py" in said.out + said.err


async def test_a_generator_that_says_nothing(serving: Any) -> None:
    """The turn completes, with an empty output."""
    client, _ = await serving("silent")
    frames = await client.turn("s1", "go")
    check_whole(frames)
    ended = terminal(frames)
    assert ended is not None
    assert (ended["status"], ended["output"]) == ("completed", [])


async def test_a_generator_that_goes_on_after_a_stop(serving: Any) -> None:
    """What it says after the end is heard by nobody, and the worker is free again."""
    client, stack = await serving("stubborn")
    async with client.process("s1", "go", id="t1") as stream:
        await stream.until(text_of)
        await client.stop("s1")
        frames = await stream.all()
    check_whole(frames)
    assert text_of(frames) == "Here. "
    worker = stack.workers[0][0]
    await wait_until(lambda: not len(worker.leases), "the worker to be free again")
    assert [entry.kind for entry in await stack.entries("s1")][-1] == "end"


async def test_a_dict_of_a_messages_shape_is_a_message(serving: Any) -> None:
    """As it would be as a `Message`: with an id, in the output, and not inside another one."""
    client, _ = await serving("yields")
    event = terminal(await client.turn("s1", "message"))
    assert event is not None
    (message,) = event["output"]
    assert message["id"].startswith("msg_")
    assert [part["text"] for part in message["content"]] == ["I am a message"]
    event = terminal(await client.turn("s1", "part"))
    assert event is not None
    assert event["output"][0]["content"][0]["image_url"] == "https://example.com/a.png"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("hologram", "a content part's type must be one of text, image"),
        ("wrong", "this is no content part: text: "),
        ("inside", "a content part's type must be one of text, image"),
        ("pope", "a message's role must be one of assistant, user"),
        ("object", "a content part's type must be one of text, image"),
        ("nothing", "an agent yields text, Thinking, Content, Message or ClientCall, not dict"),
    ],
)
async def test_what_no_client_can_read_is_its_authors_mistake(serving: Any, what: str, words: str) -> None:
    """It never goes on the wire: clients would drop the whole response. The line that yielded it is named."""
    client, _ = await serving("yields")
    frames = await client.turn("s1", what)
    check_whole(frames)
    event = terminal(frames)
    assert event is not None
    assert event["status"] == "failed"
    assert event["error"]["code"] == "agent_error"
    assert re.match(r"The agent failed: coded\.py:\d+: ", event["error"]["message"])
    assert words in event["error"]["message"]
    assert "hologram" not in str(event["output"])
