"""The worker's CPU from the agent's delta to the appended event, under load, without the agent's own.

Many chats of an agent that says a thousand tokens; their clients leave at once, so that nobody follows. The
same generators, run bare in a process with the same event loop, are what the agent itself costs.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from typing import TYPE_CHECKING

import uvloop

from bench import agents, streams
from bench.accounts import Spent
from bench.processes import helper
from bench.table import Row, number
from bench.topology import HOST, OWNER
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.status import TERMINAL
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.scale import Scale
    from bench.topology import Topology

CHATS = 64
TOKENS = 1000

ENDED_SECONDS = 60


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """CPU per token, without the agent's."""
    chats, tokens = scale.many(CHATS), scale.count(TOKENS, 50)
    with helper(bare) as alone:
        load_of(built, 4, 50)
        spent = Spent(built.pids)
        names, seconds = load_of(built, chats, tokens)
        count = chats * tokens
        micros = spent.micros(count)
        check(built, names, tokens)
        agent = 1e6 * alone.ask(chats, tokens) / count
        yield Row(
            f"worker's CPU from the agent's token to the log, {chats} chats",
            micros["worker"] - agent,
            "µs",
            note=f"worker {number(micros['worker'])} less the agent's own {number(agent)}; broker "
            f"{number(micros['broker'])}; {number(count / seconds)} tokens/s",
        ).at_most(25)


def load_of(built: Topology, chats: int, tokens: int) -> tuple[list[str], float]:
    """Run so many chats to their end: the sessions (each one's response has its name too), and the seconds."""
    key = built.key("stream")
    names = [uuid.uuid4().hex for _ in range(chats)]
    begun = time.perf_counter()
    for name in names:
        _post_and_leave(built.port, streams.post(key, str(tokens), name, id=name))
    asyncio.run(_ended(built.url, names))
    return names, time.perf_counter() - begun


def check(built: Topology, names: list[str], tokens: int) -> None:
    """Each chat said everything, once, in order.

    Raises:
        AssertionError: it did not.
    """
    key = built.key("stream")
    asks = [streams.head("GET", f"/process?session_id={name}&response_id={name}", key) for name in names]
    arrived, _ = uvloop.run(streams.closed_loop(built.port, 4, asks))
    for each in arrived:
        each.check(tokens)


def bare(pipe: Connection) -> None:
    """Run the agent's generators with nothing behind them; answers the CPU seconds."""
    while True:
        chats, tokens = pipe.recv()
        begun = time.process_time()
        uvloop.run(_all(chats, tokens))
        pipe.send((True, time.process_time() - begun))


async def _all(chats: int, tokens: int) -> None:
    async def one() -> None:
        async for _ in agents.tokens(tokens):
            pass

    await asyncio.gather(*(one() for _ in range(chats)))


def _post_and_leave(port: int, request: bytes) -> None:
    with socket.create_connection((HOST, port), timeout=30) as connection:
        connection.sendall(request)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


async def _ended(url: str, names: list[str]) -> None:
    settings = load(redis_url=url)
    broker = Broker(settings)
    log = Log(broker.sessions)
    waiting = list(names)
    try:
        async with asyncio.timeout(ENDED_SECONDS):
            while waiting:
                task = await log.task(SessionKeys(OWNER, waiting[-1]), waiting[-1])
                if task.get("status") in TERMINAL:
                    waiting.pop()
                else:
                    await asyncio.sleep(0.05)
    finally:
        await broker.close()
