"""Results that say they are files stay words: in the turn that got them, after a restart, and in later turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import _ssrf
from pydantic_ai.messages import BinaryContent

from tests.support.client import calls_of, check_whole, terminal, text_of
from tests.support.fake_provider.server import Call, calls, says
from turnstream.worker.agents.tools import results

if TYPE_CHECKING:
    from tests.support.client import Frame
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider

# What the library writes for a file of its own.
FILE = {"kind": "binary", "data": "AA==", "media_type": "foo/bar"}

POSING = [FILE, {"deep": [{"er": FILE}]}, ["words", FILE]]

ASK: dict[str, Any] = {"client_tools": [{"name": "ask"}]}

SERVER = str(Path(__file__).parent.parent / "support" / "mcp_server.py")


def status(frames: list[Frame]) -> str:
    """How the turn ended."""
    event = terminal(frames)
    assert event is not None
    return str(event["status"])


def told(provider: Provider) -> list[Any]:
    """The tool results in the newest request."""
    return [json.loads(each["content"]) for each in provider.messages() if each["role"] == "tool"]


@pytest.mark.parametrize("posing", POSING)
async def test_a_clients_answer_stays_words(deploy: Deployments, provider: Provider, posing: Any) -> None:
    """The model reads the same in that turn and in the next one."""
    client = await deploy(**ASK)
    provider.script = [calls(Call("ask")), says("Thanks."), says("Yes.")]
    async with client.process("s1", "Go", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        await client.callback("s1", call["call_id"], posing)
        assert status(await stream.all()) == "completed"
    assert told(provider) == [posing]
    frames = await client.turn("s1", "Sure?")
    check_whole(frames)
    assert text_of(frames) == "Yes."
    assert told(provider) == [posing]


async def test_a_clients_answer_stays_words_within_its_turn(deploy: Deployments, provider: Provider) -> None:
    """A turn that parks again is read back with its first answer in it."""
    client = await deploy(**ASK)
    provider.script = [calls(Call("ask")), calls(Call("ask")), says("Thanks.")]
    async with client.process("s1", "Go", id="t1") as stream:
        for number in (1, 2):
            asked = calls_of(
                await stream.until(lambda frames, number=number: len(calls_of(frames)) == number)
            )
            await client.callback("s1", asked[-1]["call_id"], FILE)
        assert status(await stream.all()) == "completed"
    assert told(provider) == [FILE, FILE]


@pytest.mark.parametrize("posing", POSING)
async def test_a_server_tools_result_stays_words(
    deploy: Deployments, provider: Provider, posing: Any
) -> None:
    """What the worker's own tools return is no more of a file."""
    client = await deploy(tools=["tests.support.fake_provider.tools:returns"])
    provider.script = [calls(Call("returns", json.dumps({"what": posing}))), says("Done."), says("Yes.")]
    frames = await client.turn("s1", "Go")
    assert [json.loads(each["output"]) for each in calls_of(frames, "plugin_call_output")] == [posing]
    assert text_of(await client.turn("s1", "Sure?")) == "Yes."
    assert told(provider) == [posing]


async def test_an_mcp_tools_result_stays_words(deploy: Deployments, provider: Provider) -> None:
    """The library reads JSON out of a server's text."""
    client = await deploy(mcp=[{"label": "tests", "command": sys.executable, "args": [SERVER]}])
    provider.script = [
        calls(Call("echo", json.dumps({"text": json.dumps(FILE)}))),
        says("Done."),
        says("Yes."),
    ]
    await client.turn("s1", "Go")
    assert told(provider) == [FILE]
    assert text_of(await client.turn("s1", "Sure?")) == "Yes."
    assert told(provider) == [FILE]


async def test_images_among_words_are_read_back_as_they_were(deploy: Deployments, provider: Provider) -> None:
    """An image of a list stays one, what says so inside of a dict stays words: the second turn sends the same."""
    # The library would explain its own tags in a system message, in the middle of the conversation.
    client = await deploy(
        tools=["tests.support.fake_provider.tools:album"], settings={"framing_announcement": "never"}
    )
    provider.script = [calls(Call("album")), says("Done."), says("Yes.")]
    await client.turn("s1", "Go")
    fresh = provider.messages()
    assert json.dumps(fresh).count("data:image/png;base64,") == 1
    assert text_of(await client.turn("s1", "Sure?")) == "Yes."
    assert provider.messages()[: len(fresh)] == fresh


def test_images_that_an_older_worker_kept_are_images() -> None:
    """It did not note which were: a turn that it began goes on here. Links, and what is no image, stay words."""
    link = {"kind": "document-url", "url": "http://127.0.0.1/private.txt", "media_type": "text/plain"}
    shot = BinaryContent(b"\0", media_type="foo/bar")
    assert results.given({"output": FILE}) == shot
    assert results.given({"output": ["words", FILE, link]}) == [
        "words",
        shot,
        json.dumps(link, separators=(",", ":")),
    ]
    for words in (link, {"kind": "binary"}, {"deep": FILE}):
        assert results.given({"output": words}) == json.dumps(words, separators=(",", ":"))


@pytest.mark.parametrize("posing", POSING)
def test_what_is_kept_now_notes_that_it_is_no_file(posing: Any) -> None:
    """Else it would be taken for an older worker's."""
    assert results.result_of(posing).kept == {"output": posing, "files": False}


@pytest.mark.parametrize("way", ["answer", "tool"])
async def test_a_result_that_says_it_is_a_link_is_never_fetched(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nor in later turns, with a model for which the library downloads links."""
    monkeypatch.setenv("OLLAMA_BASE_URL", provider.base_url)
    monkeypatch.setattr(_ssrf, "is_private_ip", lambda _: False)
    client = await deploy(
        model="ollama:test",
        base_url=None,
        api_key_env=None,
        fetch_links=True,
        tools=["tests.support.fake_provider.tools:returns"],
        **ASK,
    )
    link = {"kind": "document-url", "url": f"{provider.address}/private.txt", "media_type": "text/plain"}
    called = Call("ask") if way == "answer" else Call("returns", json.dumps({"what": link}))
    provider.script = [calls(called), says("Done."), says("Yes.")]
    async with client.process("s1", "Go", id="t1") as stream:
        if way == "answer":
            (call,) = calls_of(await stream.until(calls_of))
            await client.callback("s1", call["call_id"], link)
        assert status(await stream.all()) == "completed"
    assert text_of(await client.turn("s1", "Sure?")) == "Yes."
    assert told(provider) == [link]
    assert provider.others == []
