"""What a hostile or careless client can do to a front end: nothing that it should not."""

from __future__ import annotations

import ast
import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from tests.support.client import asked
from tests.support.waiting import wait_until
from turnstream.api.app import create_app
from turnstream.shared import metrics
from turnstream.shared.agents import config
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

DANGEROUS = {"pickle", "marshal", "shelve", "dill", "yaml", "eval", "exec", "__import__"}

ROOT = Path(__file__).parent.parent.parent


async def neighbour(stack: Stack, client: Client, agent: str = "demo") -> Client:
    """Somebody else's client at the same front end."""
    token = make_token()
    await ApiKeys(stack.broker.primary).register(token, owner="neighbour", agent=agent)
    return stack.client(client.base_url, token)


async def test_a_key_is_taken_from_its_header_only(client: Client, stack: Stack) -> None:
    """In an address keys end up in logs and histories: there, and in cookies, they are worth nothing."""
    bare = {"Authorization": ""}
    for name in ("key", "api_key", "token", "access_token", "authorization"):
        answer = await client.http.get("/process", params={"session_id": "s1", name: stack.key}, headers=bare)
        assert answer.status_code == 401
    answer = await client.http.get("/admin/v1/stats", headers={**bare, "Cookie": f"key={stack.admin}"})
    assert answer.status_code == 401
    assert answer.json()["code"] == 10001


async def test_what_changes_state_by_get_is_safe_from_browsers(client: Client) -> None:
    """Stop and clear want the header, set no cookie, are never cached, answer no foreign page, and exist as POST."""
    await client.turn("s1", "hello")
    for name in ("stop", "clear"):
        for method in ("GET", "POST"):
            path = f"/liteAgent/v1/{name}"
            answer = await client.http.request(
                method, path, params={"sessionId": "s1"}, headers={"Origin": "https://evil.example"}
            )
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-store"
            assert "set-cookie" not in answer.headers
            assert not [header for header in answer.headers if header.startswith("access-control-")]
            bare = await client.http.request(
                method, path, params={"sessionId": "s1"}, headers={"Authorization": ""}
            )
            assert bare.status_code == 401


async def test_every_answer_has_the_headers_of_a_careful_server(client: Client) -> None:
    """Streams, errors and documents alike; nothing says what we run on, and no other origin is let in."""
    async with client.process("s1", "hello") as stream:
        answers: list[Any] = [stream.response]
        assert stream.response.headers["x-accel-buffering"] == "no"
        await stream.all()
    paths = ("/healthz", "/openapi.json", "/nowhere", "/admin/v1/stats", "/metrics")
    answers += [await client.http.get(path) for path in paths]
    answers.append(await client.http.post("/process", content=b"{"))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert "set-cookie" not in answer.headers
    preflight = await client.http.options(
        "/process", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 405
    assert not [header for header in preflight.headers if header.startswith("access-control-")]


async def test_what_proxies_claim_is_not_believed(client: Client) -> None:
    """No answer depends on forwarded addresses or hosts: nobody here redirects to what a request says."""
    claims = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "evil.example", "Host": "evil.example"}
    for path in ("/healthz", "/healthz/", "/admin/v1/tasks/"):
        answer = await client.http.get(path, headers=claims)
        assert "evil" not in str(answer.headers) + answer.text
        assert "location" not in answer.headers


async def test_linked_images_are_not_fetched(client: Client) -> None:
    """An address inside our network goes to the model as text; nothing of ours connects to it."""
    asked_of_us = asyncio.Event()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_of_us.set()
        writer.close()

    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/latest/meta-data"
        await client.turn("s1", f"/image {url}")
        body = asked("s2", "look")
        body["input"][0]["content"].append({"type": "image", "image_url": url})
        answer = await client.http.post("/process", json={**body, "stream": False})
        assert answer.status_code == 200
    assert not asked_of_us.is_set()


async def test_a_body_that_never_comes_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that announces a body and sends none is told so, and its connection is free again."""
    monkeypatch.setattr("turnstream.api.http.body.BODY_SECONDS", 0.2)
    host, _, port = client.base_url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nAuthorization: "
        + client.http.headers["authorization"].encode()
        + b"\r\n\r\n{"
    )
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    writer.close()
    assert b" 408 " in answer.splitlines()[0]


async def test_a_reader_that_stops_reading_is_cut(stack: Stack) -> None:
    """Its connection ends after the time for one write, and with it what it held; the turn went on without it."""
    await stack.worker()
    client = await stack.front_end(send_seconds=0.3)
    (front_end, _) = stack._front_ends[0]
    assert front_end._socket is not None
    # Small buffers in between, so that little has to be sent until nothing fits any more.
    front_end._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await client.turn("s1", "/tokens 3000", id="t1")
    before = metrics.cut_readers.n
    host, _, port = client.base_url.removeprefix("http://").rpartition(":")
    key = client.http.headers["authorization"]
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(reader, (host, int(port)))
        path = "/process?session_id=s1&response_id=t1"
        await loop.sock_sendall(
            reader, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n".encode()
        )
        await wait_until(lambda: metrics.cut_readers.n > before, "the reader to be cut")
    hub = front_end.app.state.services.hub
    await wait_until(lambda: hub.followers == 0, "its place to be free")
    await client.turn("s1", "hello")


async def test_nothing_that_is_said_can_forge_an_event_or_a_header(client: Client) -> None:
    """Line ends in words stay inside one data line; in ids they are refused."""
    words = "a\r\n\r\nid: 1-1\nevent: end\ndata: {}\n\n\x00\u2028b"
    frames = await client.turn("s1", words)
    assert all(frame.raw.count(b"\n") == 1 and b"\r" not in frame.raw for frame in frames)
    assert all(frame.id and not frame.event for frame in frames)
    for session in ("a\r\nSet-Cookie: x", "a\nb", "a\x00b", "../x", "a/b", "{a}"):
        answer = await client.http.get("/process", params={"session_id": session})
        assert answer.status_code == 404
        assert (await client.http.post("/process", json=asked(session, "hi"))).status_code == 422


def test_nothing_reads_code_as_data() -> None:
    """No module of ours unpickles, evaluates or loads what could run code."""
    found = []
    for folder in ("api", "shared", "worker", "turnstream"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    names.append(node.func.id)
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name in DANGEROUS]
    assert found == []


def test_a_weak_admin_key_is_not_taken() -> None:
    """Sixteen letters can be guessed by whoever has the time, and it opens everything."""
    configured = config.load(None)
    with pytest.raises(ConfigurationError, match=r"TURNSTREAM_ADMIN_KEY.*32 characters") as refused:
        create_app(Settings(admin_key=SecretStr("sk-" + "a" * 28)), configured)
    assert "aaaa" not in refused.value.public_text
    create_app(Settings(admin_key=SecretStr("sk-" + "a" * 29)), configured)
