"""Many who follow one front end and say nothing: each hears what comes, none costs much, none is left behind."""

from __future__ import annotations

import asyncio
import resource
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.client import check_whole
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import Desk, delta, opened, ref
from turnstream.shared.session.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Place
    from tests.processes.deployment import Deployment, Process
    from tests.support.client import Client
    from turnstream.shared.session.outcomes import Attempt

FOLLOWERS = 5_000

# A loose bound: some 26 KiB are usual.
MOST_EACH = 100 * 1024

# Connections that are being opened at once.
AT_ONCE = 500

# Sessions that all speak at the same time, each with a follower of its own; how often, and how many words at once.
SPEAKERS = 800
TIMES, WORDS = 8, 10
# What the process makes once is made for so many more.
FIRST_SPEAKERS = 50
# What such a follower may cost when all is said: some 25 KiB are usual, 1 more than before.
MOST_SPOKEN_TO = 32 * 1024


@pytest.fixture
def many_files() -> Iterator[None]:
    """Files enough for both ends of every connection, here and in the processes that are started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FOLLOWERS + 1_000
    assert hard == resource.RLIM_INFINITY or hard >= needed, f"RLIMIT_NOFILE must be {needed} at least"
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Follower(asyncio.Protocol):
    """One connection, read as fast as it comes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.transport: asyncio.Transport | None = None
        self.heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask at once."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        self.heard += data


async def _come(client: Client, requests: list[bytes]) -> list[Follower]:
    """All of them connect and ask."""
    address = urlsplit(client.base_url)
    assert address.hostname is not None
    assert address.port is not None
    loop = asyncio.get_running_loop()
    crowd: list[Follower] = []
    while len(crowd) < len(requests):
        some = await asyncio.gather(
            *(
                loop.create_connection(partial(Follower, request), address.hostname, address.port)
                for request in requests[len(crowd) : len(crowd) + AT_ONCE]
            )
        )
        came = [follower for _, follower in some]
        await wait_until(partial(_answered, came), "answers to all of them")
        crowd += came
    return crowd


def _answered(crowd: list[Follower]) -> bool:
    return all(follower.heard for follower in crowd)


def _rss(process: Process) -> int:
    """Bytes of memory that the process has."""
    return int(psutil.Process(process.popen.pid).memory_info().rss)


async def _followers(client: Client) -> int:
    """How many the front end counts."""
    metrics = (await client.http.get("/metrics")).text
    return next(
        int(float(line.split()[1]))
        for line in metrics.splitlines()
        if line.startswith("turnstream_followers ")
    )


async def test_thousands_of_idle_followers(many_files: None, deployment: Deployment) -> None:
    """Five thousand streams of one session: all get the next turn, for less than 100 KiB each; then all leave."""
    (front, client), _ = await asyncio.gather(deployment.front_end(), deployment.worker())
    begun = await client.turn("s1", "hi", id="t1")
    check_whole(begun)
    request = (
        f"GET /process?session_id=s1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.key}\r\n"
        f"Last-Event-ID: {begun[-1].id}\r\n\r\n"
    )
    before = _rss(front)
    crowd = await _come(client, [request.encode()] * FOLLOWERS)
    assert {follower.heard.split(b"\r\n", 1)[0] for follower in crowd} == {b"HTTP/1.1 200 OK"}
    assert await _followers(client) == FOLLOWERS

    told = await client.turn("s1", "to whom it may concern", id="t2")
    check_whole(told)
    await wait_until(
        lambda: all(told[-1].raw in follower.heard for follower in crowd), "all to hear the turn's end"
    )
    for frame in told:
        assert all(frame.raw in follower.heard for follower in crowd)
    assert (_rss(front) - before) / FOLLOWERS < MOST_EACH

    for follower in crowd:
        assert follower.transport is not None
        follower.transport.abort()

    async def nobody() -> bool:
        return await _followers(client) == 0

    await wait_until(nobody, "the front end to count nobody any more")
    assert front.popen.poll() is None


def _words(text: str) -> Batch:
    batch = Batch()
    for _ in range(WORDS):
        delta("m1", text, batch)
    return batch


async def _speak(desk: Desk, attempts: list[Attempt]) -> None:
    """Every session says its words, a few at a time and all together."""
    for number in range(TIMES):
        text = f"words {number} of {TIMES - 1}"
        await asyncio.gather(*(desk.append(attempt, _words(text)) for attempt in attempts))


async def test_followers_of_sessions_that_all_speak_at_once(deployment: Deployment, real: Place) -> None:
    """What was said to all of them leaves nothing behind: each costs 32 KiB at most, as if its session were silent."""
    front, client = await deployment.front_end()
    desk = Desk(real, lease_seconds=300)
    refs = [ref(session=f"s{number}", owner="dev") for number in range(FIRST_SPEAKERS + SPEAKERS)]
    attempts = await asyncio.gather(*map(desk.running, refs))
    await asyncio.gather(*(desk.append(attempt, opened("m1")) for attempt in attempts))
    requests = [
        f"GET /process?session_id={each.session} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {client.key}\r\n\r\n".encode()
        for each in refs
    ]
    crowd = await _come(client, requests[:FIRST_SPEAKERS])
    await _speak(desk, attempts[:FIRST_SPEAKERS])
    before = _rss(front)
    crowd += await _come(client, requests[FIRST_SPEAKERS:])
    await _speak(desk, attempts[FIRST_SPEAKERS:])
    last = f"words {TIMES - 1} of {TIMES - 1}".encode()
    await wait_until(
        lambda: all(follower.heard.count(last) == WORDS for follower in crowd),
        "all to hear the last words",
        60,
    )
    each = (_rss(front) - before) / SPEAKERS
    for follower in crowd:
        assert follower.transport is not None
        follower.transport.abort()
    assert each < MOST_SPOKEN_TO, f"{each / 1024:.1f} KiB each"
