"""Connections that send no request, half of one, or too much of one: they are answered if possible, and closed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from tests.behaviour.test_bad_clients import Raw, _request, raw
from tests.support.client import asked, check_whole
from tests.support.waiting import wait_until
from turnstream.api import server
from turnstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.stack import Stack

HEALTH = "GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "more",
    [
        "X: y\r\n" * 101,
        f"X: {'y' * 65_536}\r\n\r\n",
        "X: " + "y" * 400_000,
        "X: y\r\n" * 2_000,
        "y" * 400_000,
    ],
    ids=["many", "large", "unended", "many in pieces", "a name"],
)
async def test_a_head_is_bounded_as_it_arrives(client: Client, more: str) -> None:
    """In bytes and headers, with or without an end: 431 in our shape, and the connection is closed."""
    async with raw(client, HEALTH + more) as connection:
        answer = await connection.answer()
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    assert b'"code":"bad_request"' in answer
    async with raw(client, f"GET /{'y' * 400_000}") as connection:
        assert (await connection.answer()).startswith(b"HTTP/1.1 431 ")
    async with raw(client, HEALTH.replace("/healthz", "/liteAgent/v1/version") + more) as connection:
        assert b'"code":43100,"reason":"bad_request"' in await connection.answer()


async def test_an_ordinary_head_passes(client: Client) -> None:
    """A hundred headers of together some sixty thousand bytes, whatever pieces they come in."""
    head = HEALTH + f"X: {'y' * 600}\r\n" * 98 + "Connection: close\r\n\r\n"
    async with raw(client, head[:30_000]) as connection:
        connection.writer.write(head[30_000:].encode())
        assert (await connection.answer()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("kind", ["request", "follower"])
async def test_what_a_request_held_is_given_back(client: Client, stack: Stack, kind: str) -> None:
    """No collection of cycles is needed: with the connection goes the request, and what followed for it."""
    (front_end, _) = stack._front_ends[0]
    sent, end = HEALTH + "\r\n", b'{"status":"up"}'
    if kind == "follower":
        sent, end = _request(client, "GET", "/process?session_id=s1"), (await client.turn("s1", "hi"))[-1].raw
    gc.collect()
    gc.disable()
    try:
        async with raw(client, sent) as connection:
            await connection.reader.readuntil(end)
            (ours,) = _at(front_end, connection)
            held = weakref.ref(ours.cycle)
            del ours
        await wait_until(lambda: held() is None, "the request to be let go")
    finally:
        gc.enable()


def _at(front_end: Any, connection: Raw) -> list[Any]:
    """The server's side of the connection, as long as it has one."""
    port = connection.writer.get_extra_info("sockname")[1]
    connections = front_end._server.server_state.connections
    return [each for each in connections if each.client and each.client[1] == port]


@pytest.mark.parametrize("path", ["/process", "/nowhere", "/healthz"])
async def test_who_is_answered_before_the_body_is_there_is_parted_with(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The answer says that it is the last one, and has its end at once; what still arrives disturbs no other connection."""
    monkeypatch.setattr(server, "PARTING_SECONDS", 3600)
    for kind in ("Content-Length: 5000000", "Transfer-Encoding: chunked", "Content-Length: 50000000"):
        sent = f"POST {path} HTTP/1.1\r\nHost: x\r\n{kind}\r\n\r\n"
        async with raw(client, sent) as connection:
            answer = await connection.answer()
            assert b"\r\nconnection: close\r\n" in answer.partition(b"\r\n\r\n")[0] + b"\r\n"
            assert answer.endswith(b"}")
            for _ in range(50):
                connection.writer.write(b"x" * 100_000)
                await asyncio.wait_for(connection.writer.drain(), 20)


async def test_who_goes_on_sending_after_the_answer_is_cut(
    client: Client, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listened to for a while, and no longer."""
    monkeypatch.setattr(server, "PARTING_SECONDS", 0.3)
    (front_end, _) = stack._front_ends[0]
    async with raw(
        client, "POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
    ) as connection:
        assert (await connection.answer()).startswith(b"HTTP/1.1 401 ")
        connection.writer.write(b"{")
        await wait_until(lambda: not _at(front_end, connection), "the connection to be cut")


async def test_a_refused_body_may_be_sent_to_its_end(client: Client) -> None:
    """Who first sends all and then reads finds the answer, not a broken connection."""
    head = "POST /process HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
    async with raw(client, head + "x" * 5_000_000) as connection:
        assert (await connection.answer()).startswith(b"HTTP/1.1 401 ")


async def test_what_comes_after_an_answer_has_its_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line ends, or the beginning of a head, do not keep a connection for longer than a head may take."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 3600)
    for drip in (b"\r\n", b"G"):
        async with raw(client, HEALTH + "\r\n") as connection:
            await connection.reader.readuntil(b"}")
            connection.writer.write(drip)
            assert await connection.answer() == b""


@pytest.mark.parametrize("apart", [False, True])
async def test_half_a_head_behind_a_stream_does_not_cut_it(
    client: Client, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """The time for a head begins when the answer before it is over, also where it comes while that is being given."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    data = orjson.dumps(asked("s1", "/tokens 40 20")).decode()
    request, half = (
        _request(client, "POST", "/process", f"Content-Length: {len(data)}"),
        "GET /healthz HTTP/1.1\r\nHost",
    )
    async with raw(client, request + data + ("" if apart else half)) as connection:
        answer = await connection.reader.readuntil(b"\r\n\r\n")
        if apart:
            connection.writer.write(half.encode())
        answer += await connection.answer()
    assert b"tok39" in answer
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("rubbish", ["\x00\x01\r\n\r\n", "X: " + "y" * 400_000])
async def test_what_is_wrong_behind_a_stream_does_not_spoil_it(client: Client, rubbish: str) -> None:
    """No other answer gets in between its events: the stream comes to its end, then the connection."""
    data = orjson.dumps(asked("s1", "/tokens 40 20")).decode()
    request = _request(client, "POST", "/process", f"Content-Length: {len(data)}")
    async with raw(client, request + data + HEALTH + rubbish) as connection:
        answer = await connection.answer()
    assert b"tok39" in answer
    assert answer.endswith(b"0\r\n\r\n")


async def test_clients_of_http_1_0_get_no_chunk_sizes(client: Client) -> None:
    """Neither in a stream nor elsewhere: the answer ends with the connection."""
    data = orjson.dumps(asked("s1", "/tokens 20 5")).decode()
    request = _request(client, "POST", "/process", f"Content-Length: {len(data)}").replace(
        "HTTP/1.1", "HTTP/1.0"
    )
    async with raw(client, request + data) as connection:
        head, _, stream = (await connection.answer()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    lines = stream.decode().split("\n")
    assert not [line for line in lines if line and line.partition(":")[0] not in {"id", "data", "event", ""}]
    async with raw(client, HEALTH.replace("1.1", "1.0") + "\r\n") as connection:
        assert (await connection.answer()).endswith(b'{"status":"up"}')


async def test_what_is_no_http_is_said_and_logged_in_our_shape(client: Client) -> None:
    """JSON, as every error; one line of our own log, without a byte of the sender's."""
    with capture_logs() as lines:
        async with raw(client, "RUBBISH secret\r\n\r\n") as connection:
            answer = await connection.answer()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"code":"bad_request","message":"This is not a valid HTTP request."}')
    assert [line["event"] for line in lines] == ["request.malformed"]
    assert "secret" not in str(lines)


async def test_an_idle_connection_is_kept_for_the_next_request(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer it may wait for longer than a head may take, and longer than others keep one that they do not use."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    async with raw(client, HEALTH + "\r\n") as connection:
        await connection.reader.readuntil(b"}")
        async with raw(client, "") as silent:
            assert await silent.answer() == b""
        connection.writer.write((HEALTH + "Connection: close\r\n\r\n").encode())
        assert (await connection.answer()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", ["", "GET /healthz", HEALTH + "\r\n"], ids=["silent", "half", "answered"])
async def test_idle_connections_give_way_to_new_ones(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    """At the limit the one that has waited for a request the longest is closed; who is being answered is not."""
    monkeypatch.setattr(server, "MOST_OTHERS", 3)
    await stack.worker()
    client = await stack.front_end(max_followers=3)
    check_whole(await client.turn("s1", "hello"))
    await client.close()
    async with AsyncExitStack() as stacked:

        async def opened(text: str) -> Raw:
            connection = await stacked.enter_async_context(raw(client, text))
            if text.endswith("\r\n\r\n"):
                assert (await connection.reader.readline()).startswith(b"HTTP/1.1 200 ")
            return connection

        follower = await opened(_request(client, "GET", "/process?session_id=s1"))
        idle = [await opened(sent) for _ in range(5)]
        for connection in idle:
            await opened(HEALTH + "\r\n")
            await connection.answer()
        assert not follower.reader.at_eof()


async def test_connections_are_counted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all that there may be are being answered, new ones are told so and closed; the others are served, and room comes back."""
    monkeypatch.setattr(server, "MOST_OTHERS", 1)
    await stack.worker()
    client = await stack.front_end(max_followers=3)
    check_whole(await client.turn("s1", "hello"))
    await client.close()
    last = HEALTH + "Connection: close\r\n\r\n"
    async with AsyncExitStack() as followers:
        for _ in range(3):
            follower = await followers.enter_async_context(
                raw(client, _request(client, "GET", "/process?session_id=s1"))
            )
            assert (await follower.reader.readline()).startswith(b"HTTP/1.1 200 ")
        head = _request(client, "POST", "/process", "Content-Length: 2")
        slow = await followers.enter_async_context(raw(client, head + "{"))
        await wait_until(lambda: _told(client, last, b"HTTP/1.1 503 "), "all to be taken")
        slow.writer.write(b"}")
        assert (await slow.reader.readline()).startswith(b"HTTP/1.1 422 ")
        await wait_until(lambda: _told(client, last, b"HTTP/1.1 200 "), "room to come back")


async def test_refused_connections_are_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections that their clients keep open are few at any time: the oldest one is cut for the next."""
    monkeypatch.setattr(server, "MOST_OTHERS", 0)
    monkeypatch.setattr(server, "MOST_REFUSED", 2)
    monkeypatch.setattr(server, "PARTING_SECONDS", 3600)
    await stack.worker()
    client = await stack.front_end(max_followers=3)
    check_whole(await client.turn("s1", "hello"))
    await client.close()
    async with AsyncExitStack() as stacked:
        for _ in range(3):
            follower = await stacked.enter_async_context(
                raw(client, _request(client, "GET", "/process?session_id=s1"))
            )
            assert (await follower.reader.readline()).startswith(b"HTTP/1.1 200 ")
        refused = []
        for _ in range(5):
            refused.append(await stacked.enter_async_context(raw(client, "")))
            assert (await refused[-1].answer()).startswith(b"HTTP/1.1 503 ")
        for connection in refused[:3]:
            await wait_until(partial(_is_cut, connection), "the oldest of the refused to be cut")
        assert not any(map(_is_cut, refused[3:]))


def _is_cut(connection: Raw) -> bool:
    """Whether what the client sends reaches nobody any more."""
    connection.writer.write(b"x")
    return connection.writer.transport.is_closing()


async def _told(client: Client, sent: str, status: bytes) -> bool:
    async with raw(client, sent) as connection:
        return (await connection.answer()).startswith(status)


async def test_who_does_not_take_the_answer_is_cut(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large answer that nobody reads is not kept for ever."""
    await client.turn("s1", "x" * 900_000)
    await client.turn("s1", "x" * 900_000)
    monkeypatch.setattr(server, "TAKING_SECONDS", 0.2)
    request = _request(client, "GET", "/liteAgent/v1/history?sessionId=s1")
    async with raw(client, request * 3, buffer=1024) as connection:
        assert (await connection.reader.readline()).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionError):
            await wait_until(lambda: _poke(connection.writer), "the connection to be cut")


def _poke(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"\r\n")
    if writer.transport.is_closing():
        raise ConnectionResetError
    return False


async def test_under_another_server_nothing_is_begun(client: Client, stack: Stack) -> None:
    """It is told at once what to use, not after a turn was taken that nobody can be shown."""
    (front_end, _) = stack._front_ends[0]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(front_end.app), base_url="http://x", headers=client.http.headers
    ) as other:
        with pytest.raises(RuntimeError, match="FrontEnd"):
            await other.post("/process", json=asked("s1", "hi"))
    assert (await client.http.get("/process", params={"session_id": "s1"})).status_code == 404


def test_another_http_server_is_noticed_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What we use of it is looked for before anything is served, and named."""
    server.check_server()
    monkeypatch.delattr("uvicorn.protocols.http.httptools_impl.HttpToolsProtocol.on_message_begin")
    with pytest.raises(ConfigurationError, match="on_message_begin"):
        server.check_server()


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("Transfer-Encoding: chunked", "zz\r\n"),
        ("Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n" + "X: y\r\n" * 200 + "\r\n"),
        ("Transfer-Encoding: unknown", "{}"),
    ],
    ids=["size", "trailers", "encoding"],
)
async def test_a_body_that_cannot_be_read_is_refused_at_once(client: Client, kind: str, sent: str) -> None:
    """Nothing more of it can come: nobody waits for the rest until its time is over."""
    head = _request(client, "POST", "/process", kind)
    async with raw(client, head) as connection:
        await connection.writer.drain()
        connection.writer.write(sent.encode())
        answer = await asyncio.wait_for(connection.answer(), 15)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_to_upgrade_is_a_request_with_its_body(client: Client, chunked: bool) -> None:
    """Java's own client offers HTTP/2 with each first request: its body is read, and is never taken for a request."""
    data = orjson.dumps({**asked("s1", "GET /version"), "stream": False}).decode()
    kind, body = f"Content-Length: {len(data)}", data
    if chunked:
        kind, body = "Transfer-Encoding: chunked", f"{len(data):x}\r\n{data}\r\n0\r\n\r\n"
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n{kind}"
    head = _request(client, "POST", "/process", offer)
    last = HEALTH + "Connection: close\r\n\r\n"
    for pieces in ((head + body + last,), (head, body, last), (head + body[:20], body[20:] + last)):
        async with raw(client, pieces[0]) as connection:
            for piece in pieces[1:]:
                await connection.writer.drain()
                connection.writer.write(piece.encode())
            answer = await connection.answer()
        assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 2, answer
        assert b"You said: GET /version" in answer
        assert answer.endswith(b'{"status":"up"}')


async def test_a_request_hidden_in_the_body_of_an_upgrade_is_none(client: Client) -> None:
    """Who passes a body on must not find an answer to what stood in it."""
    hidden = HEALTH + "Connection: close\r\n\r\n"
    offer = f"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: {len(hidden)}"
    async with raw(client, f"POST /process HTTP/1.1\r\nHost: x\r\n{offer}\r\n\r\n") as connection:
        answer = await asyncio.wait_for(connection.reader.readuntil(b"}"), 20)
        assert answer.startswith(b"HTTP/1.1 401 ")
        connection.writer.write(hidden.encode())
        assert await connection.answer() == b""


async def test_many_offers_to_upgrade_behind_each_other_are_answered(client: Client) -> None:
    """As many as fit into one piece."""
    offer = HEALTH + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with raw(client, offer * 1500 + HEALTH + "Connection: close\r\n\r\n") as connection:
        answer = await connection.answer()
    assert answer.count(b'{"status":"up"}') == 1501
