"""Clients that stall, send half of what they should, come in floods or leave at random: they harm themselves alone."""

from __future__ import annotations

import asyncio
import random
import resource
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson
import pytest

from tests.support.client import asked, check_whole, text_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.api import server
from turnstream.api.http import body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import Place
    from tests.support.client import Client


class Raw:
    """A connection that sends what it is told, and reads only when it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        """All that comes until the other side closes."""
        return await asyncio.wait_for(self.reader.read(-1), 20)


@asynccontextmanager
async def raw(client: Client, sent: str, buffer: int = 2**16) -> AsyncIterator[Raw]:
    """A connection to the client's front end on which that much has been sent."""
    address = urlsplit(client.base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=buffer)
    writer.write(sent.encode())
    await writer.drain()
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def _request(client: Client, method: str, path: str, *more: str) -> str:
    key = client.http.headers["authorization"]
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: {key}", *more, "", ""))


async def test_half_sent_headers_are_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, or not all of its headers, is closed by the front end itself."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    for sent in ("", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        async with raw(client, sent) as connection:
            assert await connection.answer() == b""
    whole = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw(client, whole + "GET /healthz HTTP/1.1\r\n") as connection:
        assert (await connection.answer()).startswith(b"HTTP/1.1 200 ")


async def test_a_stream_outlives_the_time_for_headers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is limited is how long headers take to come, not what they ask for."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    check_whole(await client.turn("s1", "/tokens 40 20"))


async def test_half_sent_bodies_are_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not come in time is answered, and begins no turn."""
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    for path, code in (("/process", b'"request_timeout"'), ("/liteAgent/v1/chat?sessionId=s1", b"40800")):
        request = _request(client, "POST", path, "Content-Type: application/json", "Content-Length: 500")
        async with raw(client, request + '{"session_id": "s1"') as connection:
            answer = await connection.answer()
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"\r\nconnection: close\r\n" in answer
        assert b'"code":' + code in answer
    assert (await client.http.get("/process", params={"session_id": "s1"})).status_code == 404


async def test_readers_that_stall_are_cut_and_cost_no_memory(place: Place) -> None:
    """Twenty readers take nothing of 9 MB each: they are cut, memory stays, and nobody else is disturbed."""
    stack = Stack(place, send_seconds=0.5)
    long = " ".join("x" * 1_000 for _ in range(900))
    try:
        await stack.worker()
        client = await stack.front_end()
        check_whole(await client.turn("s1", long, id="t0"))
        async with AsyncExitStack() as readers:
            follow = _request(client, "GET", "/process?session_id=s1")
            opened = [await readers.enter_async_context(raw(client, follow, 2**10)) for _ in range(20)]
            for each in opened:
                assert (await each.reader.readline()).startswith(b"HTTP/1.1 200 ")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(1, 3):
                check_whole(await client.turn("s1", long, id=f"t{number}"))
            await wait_until(lambda: stack.hubs[0].followers == 0, "the stalled readers to be cut", 60)
            # Kept for each of them, what was said would be 180 MB. The broker, the worker and a client are here, too.
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000
        assert text_of(await client.turn("s2", "hi")) == "You said: hi"
    finally:
        await stack.close()


async def test_clients_that_leave_at_random_leave_nothing(client: Client, stack: Stack) -> None:
    """Thirty connections cut in the middle: the turns go on to their ends, and no follower is left behind."""
    chance = random.Random(5)

    async def leave(number: int) -> None:
        data = orjson.dumps(asked(f"s{number % 6}", "/tokens 15 2", id=f"t{number}"))
        request = _request(
            client, "POST", "/process", "Content-Type: application/json", f"Content-Length: {len(data)}"
        )
        async with raw(client, request + data.decode()) as connection:
            head = await connection.reader.readuntil(b"\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            await connection.reader.read(chance.randrange(1, 4000))

    await asyncio.gather(*(leave(number) for number in range(30)))
    await wait_until(lambda: stack.hubs[0].followers == 0, "every follower to be gone")
    for number in range(30):
        async with client.follow(f"s{number % 6}", f"t{number}") as stream:
            check_whole(await stream.all())
