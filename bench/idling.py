"""What is spent when nothing happens, and until something can: an idle worker, a front end's start."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

import psutil

from bench.accounts import Spent, memory
from bench.table import Row, number
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

IDLE_SECONDS = 10.0
STARTS = 3


# What `run` is given, where it is not one front end and one worker.
NEEDS = {"front_ends": 0}


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Idle worker, then starts."""
    seconds = max(1.0, IDLE_SECONDS * scale.length)
    # What it does once, at its start, is over: its rescuer first waits for one lease, then recalls what is live.
    time.sleep(load().lease_seconds + 2)
    commands, spent = _commands(built), Spent(built.pids)
    time.sleep(seconds)
    used = spent.seconds()
    yield Row("idle worker: broker commands", (_commands(built) - commands) / seconds, "/s").at_most(5)
    yield Row("idle worker: CPU", 100 * used["worker"] / seconds, "%").at_most(1)
    starts = [_start(built) for _ in range(1 + scale.count(STARTS))][1:]
    took, cpu, rss, pss = (statistics.median(each) for each in zip(*starts, strict=True))
    yield Row("turnstream api: start to ready", took, "s", note=f"CPU {number(cpu)} s").at_most(1.5)
    yield Row("turnstream api: RSS when ready", rss, "MiB", note=f"PSS {number(pss)} MiB").at_most(85)


def _commands(built: Topology) -> int:
    """Commands that others than we have sent on the connections that they have now."""
    mine = built.client.client_id()
    return sum(int(each["tot-cmds"]) for each in built.client.client_list() if int(each["id"]) != mine)


def _start(built: Topology) -> tuple[float, float, float, float]:
    """Seconds until a front end is ready, its CPU seconds until then, its RSS and PSS."""
    begun = time.perf_counter()
    process = built.start("api")
    try:
        asyncio.run(built.ready())
        took = time.perf_counter() - begun
        times = psutil.Process(process.pid).cpu_times()
        return took, times.user + times.system, *memory(process.pid)
    finally:
        built.end(process)
