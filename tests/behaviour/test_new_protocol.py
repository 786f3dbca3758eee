"""A protocol that is added as CONTRIBUTING.md says: one new folder, one changed line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import orjson
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from deploy.ports import free_port
from tests.support import plain_protocol
from tests.support.client import calls_of, terminal
from tests.support.waiting import wait_until
from turnstream.api import protocols
from turnstream.api.openapi.table import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.client import Client
    from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests/support/plain_protocol.py"

LIST = "api/protocols/__init__.py"

KEY = "sk-a-key-of-the-third-protocol"
SECONDS = 60


def copied(folder: Path) -> Path:
    """A copy of what the server needs of the repository, with the toy protocol in it."""
    kept = ["api", "shared", "turnstream", "worker"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *kept],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    plain = folder / "api/protocols/plain"
    plain.mkdir()
    (plain / "__init__.py").write_text('"""A toy."""\n')
    shutil.copy(TOY, plain / "protocol.py")
    text = (folder / LIST).read_text("utf-8")
    line = '\n    "plain": "plain.protocol",'
    changed, lines = re.subn(r"^MODULES = {$", rf"\g<0>{line}", text, flags=re.MULTILINE)
    assert lines == 1
    (folder / LIST).write_text(changed, "utf-8")
    return folder


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of ``python -m turnstream serve`` in that folder."""
    port, log = free_port(), folder / "serve.log"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [sys.executable, "-m", "turnstream", "serve", "--port", str(port)],
            cwd=folder,
            env={**variables, "TURNSTREAM_DEV_KEY": KEY},
            stdout=out,
            stderr=out,
        )
    try:
        await wait_until(
            lambda: "Ctrl-C ends it" in log.read_text() or process.poll() is not None, "serve", SECONDS
        )
        assert process.poll() is None, log.read_text()
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=SECONDS) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


async def ask(client: httpx.AsyncClient, words: str) -> str:
    """Take a turn; its task."""
    answer = await client.post("/plain", params={"session": "s1"}, content=words)
    assert answer.status_code == 200, answer.text
    return answer.text.strip()


async def read(lines: AsyncIterator[str], most: int = 1000) -> list[tuple[str, str]]:
    """Cursor and words of each line, up to a turn's end or so many."""
    found: list[tuple[str, str]] = []
    async for line in lines:
        if line:
            cursor, _, words = line.partition(" ")
            found.append((cursor, orjson.loads(words)))
            if len(found) == most or found[-1][1] == "(completed)":
                break
    return found


async def test_a_third_protocol_is_a_folder_and_a_line(tmp_path: Path) -> None:
    """It streams live, resumes behind a cut, and is described."""
    async with serving(copied(tmp_path)) as client:
        first = await ask(client, "/tokens 6")
        # What the stream brings of the second turn is live: it was open before the turn was asked for.
        async with client.stream("GET", "/plain", params={"session": "s1"}) as stream:
            assert stream.headers["content-type"] == "text/plain; charset=utf-8"
            lines = stream.aiter_lines()
            whole = await read(lines)
            await ask(client, "/tokens 2")
            live = await read(lines)
        assert "".join(words for _, words in whole) == "tok0 tok1 tok2 tok3 tok4 tok5 (completed)"
        assert "".join(words for _, words in live) == "tok0 tok1 (completed)"

        task = {"session": "s1", "task": first}
        async with client.stream("GET", "/plain", params=task) as stream:
            seen = await read(stream.aiter_lines(), 3)
        async with client.stream(
            "GET", "/plain", params=task, headers={"Last-Event-ID": seen[-1][0]}
        ) as stream:
            rest = await read(stream.aiter_lines())
        assert seen + rest == whole

        document = (await client.get("/openapi.json")).json()
        described = document["paths"]["/plain"]
        assert set(described) == {"get", "post"}
        assert described["post"]["requestBody"]["content"] == {
            "text/plain": {"schema": {"type": "string"}, "example": "/tokens 3"}
        }
        named = {each["$ref"].rpartition("/")[2] for each in described["get"]["parameters"]}
        assert named == {"plainSession", "plainTask", "cursor", "Last-Event-ID"}
        assert named <= set(document["components"]["parameters"])
        assert described["get"]["responses"]["404"]["content"]["text/plain"]["schema"]["type"] == "string"

        refused = await client.get("/plain", params={"session": "s9"})
        assert (refused.status_code, refused.text.partition(":")[0]) == (404, "session_not_found")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy protocol is one of this process's, too."""
    name = f"{protocols.__name__}.plain.protocol"
    monkeypatch.setitem(sys.modules, name, plain_protocol)
    monkeypatch.setitem(protocols.MODULES, "plain", "plain.protocol")
    protocols.protocols.cache_clear()
    yield
    protocols.protocols.cache_clear()


async def asked(client: Client, words: str) -> dict[str, str]:
    """Take a turn; how to follow it."""
    return {"session": "s1", "task": await ask(client.http, words)}


async def to_the_end(answer: httpx.Response) -> list[tuple[str, str]]:
    """All lines of a stream that ends."""
    lines = [line.partition(" ") async for line in answer.aiter_lines() if line]
    return [(cursor, orjson.loads(words)) for cursor, _, words in lines]


@pytest.mark.usefixtures("plain")
async def test_half_an_answer_is_never_taken_for_all_of_it(client: Client, stack: Stack) -> None:
    """Where a front end stops in mid-turn, a client that would take the end of the stream for the turn's is cut off; others are not."""
    other = await stack.front_end()
    turn = await asked(other, "/call weather {}")
    get = partial(client.http.stream, "GET")
    async with (
        get("/plain", params=turn) as cut,
        get("/plain", params={"session": "s1"}) as cut_session,
        client.follow("s1", turn["task"]) as ended,
    ):
        await ended.until(calls_of)
        await stack.stop_front_end(client)
        await ended.all()
        for each in (cut, cut_session):
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
                await each.aread()
    call = calls_of(ended.frames)[0]["call_id"]
    async with other.http.stream("GET", "/plain", params=turn) as live:
        assert (await other.callback("s1", call, {"sky": "blue"})).status_code == 200
        lines = await to_the_end(live)
    assert lines[-1][1] == "(completed)"
    # Who comes back, whatever it has, is told the end, and that it is the end.
    for index, (cursor, _) in enumerate(lines):
        async with other.http.stream("GET", "/plain", params=turn, headers={"Last-Event-ID": cursor}) as rest:
            assert await to_the_end(rest) == lines[index + 1 :]


@pytest.mark.usefixtures("plain")
async def test_a_session_that_is_cleared_is_not_an_end(client: Client, stack: Stack) -> None:
    """What was followed is no more: only who knows how a turn ends sees a stream end."""
    turn = await asked(client, "/tokens 2")
    async with client.http.stream("GET", "/plain", params=turn) as whole:
        assert (await to_the_end(whole))[-1][1] == "(completed)"
    async with (
        client.http.stream("GET", "/plain", params={"session": "s1"}) as cut,
        client.follow("s1") as ended,
    ):
        await ended.until(terminal)
        assert (await client.http.post("/liteAgent/v1/clear", params={"sessionId": "s1"})).status_code == 200
        await ended.all()
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await cut.aread()


@pytest.mark.usefixtures("plain")
async def test_the_longest_time_for_a_session_is_not_an_end(stack: Stack) -> None:
    """A client that sees no end of anything comes back."""
    client = await stack.front_end(stream_seconds=1)
    async with client.http.stream("GET", "/plain", params={"session": await client.init()}) as cut:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await cut.aread()


async def broken(*_: object) -> None:
    """A defect."""
    raise ZeroDivisionError


async def away(*_: object) -> None:
    """The broker does not answer."""
    raise RedisConnectionError


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_errors_have_the_shape_of_their_protocol(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is refused under a protocol's prefix, wherever it is refused; elsewhere nothing changes."""
    client = await stack.front_end(max_body=2048, max_image_body=2048)
    asked = partial(client.http.post, "/plain", params={"session": "s1"})

    async def check(status: int, word: str, answer: httpx.Response) -> None:
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert re.fullmatch(f"{word}: [^\n]+\n", answer.text)

    await check(401, "bad_token", await asked(content="hi", headers={"Authorization": "none"}))
    await check(404, "not_found", await client.http.get("/plain/nothing"))
    await check(405, "method_not_allowed", await client.http.delete("/plain"))
    await check(413, "body_too_large", await asked(content="x" * 3000))
    await check(422, "invalid_body", await asked(content=" "))
    await check(431, "bad_request", await client.http.get("/plain?x=1", headers={"X-Long": "x" * 70_000}))
    monkeypatch.setattr(plain_protocol, "begin", broken)
    await check(500, "internal", await asked(content="hi"))
    monkeypatch.setattr(plain_protocol, "begin", away)
    away_answer = await asked(content="hi")
    await check(503, "broker_away", away_answer)
    assert away_answer.headers["retry-after"] == "2"

    for path in ("/plainly", "/process/nothing"):
        assert (await client.http.get(path)).json() == {"code": "not_found", "message": "Not Found"}
    numbered = (await client.http.get("/liteAgent/v1/nothing")).json()
    assert numbered == {"code": 40400, "reason": "not_found", "message": "Not Found"}


def test_each_protocol_has_a_prefix_of_its_own() -> None:
    """All of its operations are below it, and nobody else's."""
    for each in protocols.protocols().values():
        theirs = {operation.path for operation in OPERATIONS if each.has(operation.path)}
        assert theirs == {operation.path for operation in each.operations}
