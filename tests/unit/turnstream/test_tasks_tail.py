"""`turnstream tasks tail` over connections that break in every way: each event once, and never for ever."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.unit.turnstream.client.scripted import ScriptedServer
from turnstream import tasks
from turnstream.admin import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-00000000000000000000000000000000"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedServer]:
    """A front end that answers as it is told."""
    monkeypatch.setattr("turnstream.tasks.RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TURNSTREAM_ADMIN_KEY", KEY)
    server = ScriptedServer()
    await server.start()
    yield server
    await server.close()


def frame(number: int, **event: Any) -> bytes:
    """An event as a front end writes it."""
    told = {"sequence_number": number, **event}
    return f"id: 1-{number}\ndata: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


END = frame(2, object="response", status="completed")


async def tail(server: ScriptedServer, *options: str) -> Any:
    """Watch a task of that front end."""
    given = ["tail", "acme/s1/t1", "--url", server.url, *options]
    return await asyncio.to_thread(CliRunner().invoke, tasks.app, given)


def resumed_from(server: ScriptedServer) -> list[str]:
    """The cursor that each request came with."""
    heads = [head.decode().lower().split("\r\n") for head in server.requests]
    return [next((line[15:] for line in head if line.startswith("last-event-id: ")), "") for head in heads]


async def test_an_event_that_was_cut_is_asked_for_again(server: ScriptedServer) -> None:
    """Between its id and its data, or within its data: it comes with the next connection."""
    first, second = frame(0, object="message"), frame(1, object="content", text="two")
    id_line = second.partition(b"\n")[0] + b"\n"
    server.answers = [first + id_line, second[:-4], 503, second + END]
    done = await tail(server, "--json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["sequence_number"] for line in done.stdout.splitlines()] == [0, 1, 2]
    assert resumed_from(server) == ["", "1-0", "1-0", "1-0"]


async def test_a_text_may_hold_any_separator(server: ScriptedServer) -> None:
    """A line ends with a newline only, whatever Unicode says of others."""
    text = "one\u2028two\u2029three\x85four\x0bfive"
    server.answers = [frame(0, object="content", text=text) + END]
    done = await tail(server, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.split("\n")[0])["text"] == text


async def test_a_stream_that_never_brings_the_end_is_given_up(server: ScriptedServer) -> None:
    """It ends in good order each time: that is told after some tries."""
    server.answers = [frame(0, object="message"), b""]
    done = await tail(server)
    assert isinstance(done.exception, Refusal)
    assert "the stream ended before the task did. Tried 10 times more" in str(done.exception)
    assert len(server.requests) == 11


@pytest.mark.parametrize("answer", [404, 410, 503])
async def test_a_refusal_at_first_is_told_at_once(server: ScriptedServer, answer: int) -> None:
    """There is nothing to come back to."""
    server.answers = [answer]
    done = await tail(server)
    assert f"{answer}: too many, come again" in str(done.exception)
    assert len(server.requests) == 1


async def test_what_is_no_stream_is_told(server: ScriptedServer) -> None:
    """A proxy's own page, say."""
    server.content_type = "text/html"
    server.answers = [b"<p>Welcome</p>"]
    done = await tail(server)
    assert "is a proxy in between?" in str(done.exception)
