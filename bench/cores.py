"""Two front ends and two workers, each pair under one supervisor (``--processes 2``), beside one of each, on two cores.

The agent is pydantic-ai's with a model that costs nothing, so that a worker's core is what one of each lacks. Both
deployments have a broker of their own and get the same chats in turns; broker and load share the cores.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil

from bench import streams
from bench.agents import TOKENS
from bench.chats import Cell, Server
from bench.table import Row, number
from bench.topology import READY_SECONDS, topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

PROCESSES = 2
AT_ONCE = 50


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Tokens per second of both, and what a token costs."""
    with topology(TURNSTREAM_PROCESSES=str(PROCESSES)) as several:
        asyncio.run(_whole(several))
        deployments = [_server(several), _server(built)]
        for deployment in deployments:
            deployment.round(10, scale.count(40), Cell())
        cells = [Cell(), Cell()]
        for _ in range(scale.count(4)):
            for deployment, cell in zip(deployments, cells, strict=True):
                deployment.round(AT_ONCE, scale.count(200), cell)
    ours, alone = cells
    row = Row(
        f"{PROCESSES} front ends and {PROCESSES} workers by --processes, {AT_ONCE} chats at once: events delivered",
        ours.rate,
        "/s",
        alone.rate,
        "one of each",
        note=f"CPU an event {number(ours.micros())} µs against {number(alone.micros())}: {ours.parts()}; "
        f"of one of each {alone.parts()}",
    )
    yield row.ratio_at_least(1.6)


async def _whole(built: Topology) -> None:
    """Wait until all processes have shown that they live: what is ready already is one of each."""
    async with asyncio.timeout(READY_SECONDS):
        while {built.client.hlen(listed) for listed in ("ts:workers", "ts:frontends")} != {PROCESSES}:
            await asyncio.sleep(0.02)


def _server(built: Topology) -> Server:
    """The processes that work: those under a supervisor instead of it."""
    pids = {
        f"{name} {place}" if under else name: pid
        for name, top in built.pids.items()
        for under in [[each.pid for each in psutil.Process(top).children()] if name != "broker" else []]
        for place, pid in enumerate(under or [top], 1)
    }
    key = built.key("pydantic")
    return Server(built.port, pids, lambda: streams.post(key, f"/tokens {TOKENS}"))
