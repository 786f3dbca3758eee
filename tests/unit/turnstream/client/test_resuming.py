"""The Python client comes back by itself, and every event comes once, whatever cuts its connections."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.client import large_text
from tests.support.waiting import wait_until
from tests.unit.turnstream.client.conftest import QUICK, port_of
from turnstream.client import Backoff, ConnectionLost, ConnectionRestored, Gone, TurnCanceled, Unavailable
from turnstream.shared.protocol import AgentResponse, TextContent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support import client as plain
    from tests.support.link import Link
    from tests.support.stack import Stack
    from tests.unit.turnstream.client.conftest import Clients
    from tests.unit.turnstream.client.scripted import ScriptedServer
    from turnstream import AsyncClient
    from turnstream.client import AsyncReply, ConnectionNews

# A step that shares no factor with anything in the stream, so that cuts fall everywhere in a frame.
STEP = 211


class Recording(httpx.AsyncBaseTransport):
    """Plays a recorded stream: the first request up to a byte, the next from the cursor that it names."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._client = httpx.AsyncClient(transport=self, trust_env=False)
        self.cut = 0
        self.breaks = False

    def client(self) -> httpx.AsyncClient:
        """A client that gets to hear it."""
        return self._client

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Play."""
        cursor = request.headers.get("last-event-id")
        start = 0
        if cursor:
            frame = re.search(rf"id: {cursor}\n.*?\n\n".encode(), self._raw, re.DOTALL)
            assert frame is not None, f"{cursor} was never sent whole"
            start = frame.end()
        if request.method == "POST" and self.cut < len(self._raw):
            end, self.cut = self.cut, len(self._raw)
            return _streamed(self._raw[:end], breaks=self.breaks)
        return _streamed(self._raw[start:], breaks=False)


def _streamed(body: bytes, *, breaks: bool) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield body
        if breaks:
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=pieces())


async def numbers(reply: AsyncReply) -> list[int | None]:
    """The sequence numbers of a reply's events."""
    return [event.sequence_number async for event in reply]


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_cut_anywhere_in_the_answer_loses_and_doubles_nothing(
    clients: Clients, proxy: Link, stack: Stack
) -> None:
    """Whatever byte comes last, of status line, headers, frames and chunks, the reply is the same."""
    session = clients.make(proxy.url, on_connection=lambda _: None).session("s")
    whole = await numbers(session.chat("hi", id="turn"))
    assert whole == list(range(len(whole)))
    for cut in range(0, proxy.sent[0], 23):
        # A connection of its own for each try, or an older one would be reused and never cut.
        proxy.cut_all()
        proxy.cuts = iter([cut])
        assert await numbers(session.chat("hi", id="turn")) == whole, f"cut after {cut} bytes"
    assert {entry.task for entry in await stack.entries("s")} == {"turn"}


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_stream_may_end_after_any_byte(client: plain.Client, clients: Clients) -> None:
    """Every byte of a stream in turn is the last one of its connection, broken off and ended in good order."""
    async with client.process("s", "/fail ünïcödé 🙂", id="turn") as stream:
        await stream.all()
    recording = Recording(stream.raw)
    ours = clients.make("http://recorded", http=recording.client())
    for breaks in (True, False):
        recording.breaks = breaks
        for cut in range(len(stream.raw) + 1):
            recording.cut = cut
            seen = await numbers(ours.session("s").chat("/fail", id="turn"))
            assert seen == [0, 1, 2, 3], f"cut after {cut} bytes"
    await recording.close()


async def test_a_turn_that_runs_survives_many_cuts(clients: Clients, proxy: Link) -> None:
    """A running turn, cut every few hundred bytes, is told whole; the turn is sent until its first event came."""
    news: list[ConnectionNews] = []
    ours = clients.make(proxy.url, on_connection=news.append)
    proxy.cuts = (STEP + 37 * number for number in range(40))
    reply = ours.chat("/tokens 60 5")
    pieces = "".join([piece async for piece in reply.deltas()])
    assert pieces == "".join(f"tok{number} " for number in range(60))
    assert sum(isinstance(each, ConnectionRestored) for each in news) >= 3
    methods = [head.split()[0] for head in proxy.requests]
    assert methods == sorted(methods, reverse=True), "once an event has come, the turn is only followed"
    assert methods.count(b"POST") >= 1
    cursors = [head for head in proxy.requests if head.startswith(b"GET")]
    assert all(b"last-event-id: " in head.lower() for head in cursors)


async def test_another_front_end_goes_on(
    client: plain.Client, clients: Clients, proxy: Link, stack: Stack
) -> None:
    """The front end stops in mid-stream, which ends the stream in good order; the next one brings the rest."""
    other = await stack.front_end()
    reply = clients.make(proxy.url).chat("/tokens 60 10")
    seen: list[int | None] = []
    async for event in reply:
        seen.append(event.sequence_number)
        if isinstance(event, TextContent) and event.delta and "tok5 " in (event.text or ""):
            await stack.stop_front_end(client)
            proxy.upstream = port_of(other)
    assert seen == list(range(len(seen)))
    assert reply.ended


async def test_a_clean_close_is_not_the_end(clients: Clients, scripted_server: ScriptedServer) -> None:
    """A server that ends the stream between two events has not ended the turn."""
    opening = scripted_server.event("1-1", 0, status="in_progress")
    scripted_server.answers = [opening, b"", scripted_server.event("1-2", 1, status="completed")]
    ours = clients.make(scripted_server.url)
    reply = ours.session("s").chat("hi", id="turn")
    assert await numbers(reply) == [0, 1]
    assert [head.split()[0] for head in scripted_server.requests] == [b"POST", b"GET", b"GET"]


async def test_a_server_that_asks_for_time_gets_it(clients: Clients, scripted_server: ScriptedServer) -> None:
    """429 and 503 are waited out for as long as Retry-After says, in seconds or as a date, and a little more at random."""
    end = scripted_server.event("1-1", 0, status="completed")
    scripted_server.answers = [429, 503, end]
    scripted_server.retry_after = "0.3"
    news: list[ConnectionNews] = []
    ours = clients.make(scripted_server.url, on_connection=news.append)
    response = await ours.session("s").chat("hi", id="turn").finished()
    assert response.status == "completed"
    lost = [each for each in news if isinstance(each, ConnectionLost)]
    first, second = (each.retry_in for each in lost)
    assert 0.3 < first <= 0.3 + QUICK.first
    assert 0.3 < second <= 0.3 + 2 * QUICK.first
    assert "too many" in lost[0].reason
    scripted_server.answers = [503]
    scripted_server.retry_after = "Fri, 31 Dec 2100 23:59:59 GMT"
    with pytest.raises(Unavailable, match="follow it with the same id"):
        await ours.session("s").history()


async def test_patience_is_used_up_before_a_client_gives_up(
    clients: Clients, scripted_server: ScriptedServer
) -> None:
    """A random wait that would end after it ends with it: the last try is made just before, and not left out."""
    scripted_server.answers = [503, scripted_server.event("1-1", 0, status="completed")]
    scripted_server.retry_after = "0.1"
    news: list[ConnectionNews] = []
    late = Backoff(first=1e6, most=1e6)
    ours = clients.make(scripted_server.url, backoff=late, patience=0.4, on_connection=news.append)
    async with asyncio.timeout(20):
        response = await ours.session("s").chat("hi", id="turn").finished()
    assert response.status == "completed"
    (lost,) = (each for each in news if isinstance(each, ConnectionLost))
    assert 0.1 < lost.retry_in < 0.41


async def test_a_client_gives_up_when_nobody_answers(clients: Clients, proxy: Link) -> None:
    """After its patience the client says where it tried, and what to do."""
    await proxy.close()
    ours = clients.make(proxy.url, patience=0.2)
    with pytest.raises(Unavailable, match=r"No connection; tried \d+ times .*POST /process") as raised:
        await ours.chat("hi").text()
    assert f"(POST /process at {proxy.url})" in str(raised.value)


async def test_a_session_cleared_in_mid_turn_ends_the_reply(clients: Clients, proxy: Link) -> None:
    """The turn's end is told if it still can be; a client that comes back later is told that all is gone."""
    ours = clients.make(proxy.url)
    session = ours.session("s")
    reply = session.chat("/tokens 1000 20", id="turn")
    async for event in reply:
        if isinstance(event, TextContent):
            break
    later = session.follow("turn", cursor=reply.cursor)
    await session.clear()
    with pytest.raises((TurnCanceled, Gone)):
        await reply.text()
    with pytest.raises(Gone, match="was cleared since this cursor"):
        await later.text()


async def test_a_broker_that_lost_events_is_told_of(clients: Clients, proxy: Link) -> None:
    """A cursor that is ahead of the server is no malformed request of the user's."""
    session = clients.make(proxy.url).session("s")
    reply = session.chat("hi", id="turn")
    await reply.finished()
    epoch, _, seq = reply.cursor.partition("-")
    with pytest.raises(Gone, match="follow it again without a cursor"):
        await session.follow("turn", cursor=f"{epoch}-{int(seq) + 5}").finished()


async def test_trimmed_history_still_gives_the_whole_text(stack: Stack, clients: Clients) -> None:
    """A reply whose middle was trimmed while the client was away has all of its text, once."""
    await stack.worker(log_max_bytes=65_536)
    front = await stack.front_end(log_max_bytes=65_536)
    session = clients.make(front.base_url).session("s")
    reply = session.chat(large_text(4), id="long")
    said = f"You said: {large_text(4)}"
    got = ""
    async for piece in reply.deltas():
        got += piece
        if len(got) > 8_000:
            break
    cursor = reply.cursor
    await reply.close()
    await session.chat("/tokens 5", id="next").text()
    # Another front end has nothing of it in memory.
    other = clients.make((await stack.front_end(log_max_bytes=65_536)).base_url).session("s")
    assert await other.follow("long", cursor=cursor).text() == said
    assert "".join([piece async for piece in other.follow("long").deltas()]) == said


async def test_many_replies_at_once_each_come_whole(clients: Clients, proxy: Link) -> None:
    """Twenty turns over one client, their connections cut now and then, do not mix."""
    ours = clients.make(proxy.url)
    proxy.cuts = (STEP * number if number % 3 else None for number in itertools.count(1))
    texts = await asyncio.gather(*(ours.chat(f"/tokens {number} 2").text() for number in range(1, 21)))
    assert texts == ["".join(f"tok{each} " for each in range(number)) for number in range(1, 21)]


async def test_leaving_stops_nothing(clients: Clients, proxy: Link, stack: Stack) -> None:
    """A client that is closed in mid-turn leaves the turn to go on, to be followed later."""
    ours = clients.make(proxy.url)
    reply = ours.chat("/tokens 30 5", session="s", id="turn")
    async for event in reply:
        if isinstance(event, AgentResponse):
            break
    await reply.close()
    await ours.close()

    async def status() -> bool:
        return await stack.status("s", "turn") == "completed"

    await wait_until(status, "the turn to end without its client")
    assert (await clients.make(proxy.url).session("s").follow("turn").text()).endswith("tok29 ")


async def test_a_turn_is_found_by_either_of_its_names(client: plain.Client, clients: Clients) -> None:
    """The task's id, as LiteAgent and the history tell it, and the response's: the end is known by both."""
    session = await client.init()
    async with client.chat(session, "hello", taskId="t1") as stream:
        await stream.all()
    await client.turn(session, "hello", id="response_t2")
    ours = clients.make(client.base_url, patience=1).session(session)
    for name in ("t1", "response_t1", "t2", "response_t2"):
        assert await ours.follow(name).text() == "You said: hello"


async def test_a_reply_whose_wait_was_cut_off_goes_on(ours: AsyncClient) -> None:
    """A time limit around it ends the wait, neither the turn nor the reply."""
    reply = ours.chat("/tokens 100000 20")
    await anext(reply)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reply.finished()
    event = await anext(reply, None)
    assert event is not None
    assert (event.sequence_number or 0) > 0
    await reply.stop()
    assert (await reply.finished()).status == "canceled"
