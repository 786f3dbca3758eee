"""What followers cost a front end that take nothing of a full log."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from tests.support.client import check_whole
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.processes.deployment import Deployment, Process
    from tests.support.client import Client

# A thousand stalled ones may cost 150 MiB. What all of them share, the log's large entries, is as much for a hundred.
STALLED = 100
MOST_STALLED = (150 * STALLED // 1000 + 25) * 1024 * 1024

# Turns that fill the log, and the history.
TURNS = 17

# The last ones, of which all is still there.
KEPT = 4

LONG = " ".join("x" * 1_000 for _ in range(900))


def rss(process: Process) -> int:
    """What the process holds."""
    return int(psutil.Process(process.popen.pid).memory_info().rss)


async def _open(client: Client, path: str) -> socket.socket:
    """Ask, and read nothing."""
    address = urlsplit(client.base_url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (address.hostname, address.port))
    key = client.http.headers["authorization"]
    await loop.sock_sendall(
        connection, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n".encode()
    )
    return connection


async def _served(process: Process) -> None:
    """Wait until the process has nothing to do for a moment."""
    spent = [-1.0]

    def rests() -> bool | None:
        times = psutil.Process(process.popen.pid).cpu_times()
        spent.append(times.user + times.system)
        return (spent[-1] - spent[max(0, len(spent) - 50)] < 0.02 and len(spent) > 50) or None

    await wait_until(rests, "the front end to rest", 60)


async def test_stalled_readers_of_a_full_log_hold_little(deployment: Deployment) -> None:
    """Each takes nothing of 16 MiB, from places of its own: together they stay far below one log each."""
    front, client = await deployment.front_end(TURNSTREAM_SEND_SECONDS="120")
    await deployment.worker()
    cursors = []
    for number in range(TURNS):
        frames = await client.turn("s1", LONG, id=f"t{number}")
        check_whole(frames)
        if number >= TURNS - KEPT:
            cursors += [frame.id for frame in frames[:: len(frames) // 20]]
    before = rss(front)
    connections = []
    for number in range(STALLED):
        cursor = f"&cursor={cursors[number % len(cursors)]}" if number % 2 else ""
        connections.append(await _open(client, f"/process?session_id=s1{cursor}"))
    await _served(front)
    grown = rss(front) - before
    for connection in connections:
        assert connection.recv(13).startswith(b"HTTP/1.1 200")
        connection.close()
    assert grown <= MOST_STALLED, f"{grown / 1024 / STALLED:.0f} KiB each"
