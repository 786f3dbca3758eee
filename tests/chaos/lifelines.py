"""How soon a killed worker is missed, and that no other is: ``python -m tests.chaos.lifelines --kills 40 --minutes 5``.

At default settings, with turns that speak all the time. First their workers are killed with SIGKILL, one after the other: what
is measured is what the client sees, from the signal to the next event, which another worker wrote. Then nobody is killed, but
workers stand still for less than a lease, are slow, and lose connections, also while they stand still; whoever is missed then,
is missed wrongly. ``--broker cluster`` and ``--broker sentinel``: the data is there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis

from tests.chaos.homes import HOMES
from tests.processes.deployment import Deployment
from tests.support.client import check_whole
from tests.support.waiting import wait_until
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.chaos.homes import Home
    from tests.processes.deployment import Process
    from tests.support.client import Client

WORKERS = 4

# Until it has been up for so long, and so long after a connection was cut, nobody judges.
CALM_SECONDS = Settings().lease_seconds + 2

# A turn speaks for so long at most before its worker is killed: at any moment between two looks of the others.
LONGEST_SECONDS = 3.0

# What the killed worker had written is with the client by then.
UNDER_WAY_SECONDS = 0.1

# A killed worker's turn must go on in this time (p99).
MOST_SECONDS = 2.0

# How long a worker stands still: others miss it after one second, if they do. A lease is renewed each third of it.
STILL_SECONDS = (1.0, 0.6 * Settings().lease_seconds)

# A slow one runs for so long at a time, and stands still for so long.
SLOW_SECONDS = (0.05, 0.4)

TALKING = 6


class Stand:
    """A front end and workers of a deployment."""

    def __init__(self, deployment: Deployment, home: Home) -> None:
        self.deployment = deployment
        self.home = home
        self.client: Client
        self.since: dict[Process, float] = {}

    async def start(self, workers: int) -> None:
        """Start them, and let them be up for so long that they judge."""
        _, self.client = await self.deployment.front_end()
        for _ in range(workers):
            await self.add()
        await asyncio.sleep(CALM_SECONDS)

    async def add(self) -> None:
        """One more worker."""
        self.since[await self.deployment.worker()] = time.monotonic()

    def calm(self) -> int:
        """How many have been up for so long that they judge."""
        return sum(time.monotonic() - since > CALM_SECONDS for since in self.since.values())

    def cut(self, kind: str, worker: Process | None = None) -> None:
        """Close connections of that kind, of one worker or all processes."""
        ports: set[int] = set()
        if worker is not None:
            process = psutil.Process(worker.popen.pid)
            ports = {each.laddr.port for each in process.net_connections("tcp") if each.raddr}
        for port in self.home.ports():
            with Redis(port=port) as broker:
                mine = broker.client_id()
                for each in broker.client_list(_type=kind):
                    if int(each["id"]) != mine and (
                        not ports or int(each["addr"].rpartition(":")[2]) in ports
                    ):
                        broker.client_kill_filter(_id=each["id"])

    async def holder(self, task: str, session: str) -> Process:
        """The worker that runs the task."""
        sessions = await self.home.sessions()
        name = await sessions.hget(f"ts:{{dev/{session}}}:task:{task}", "worker")
        await sessions.aclose()
        return self.deployment.named(name.decode())

    def missed(self) -> list[dict[str, Any]]:
        """What the workers logged of those that they missed."""
        return [line for worker in self.since for line in worker.logged("rescuer.worker_dead")]


async def kills(stand: Stand, count: int) -> list[float]:
    """Kill so many workers, one after the other; seconds until the next event, of each."""
    found: list[float] = []
    for number in range(count):
        await wait_until(lambda: stand.calm() > WORKERS // 2, "workers that judge", 10 * CALM_SECONDS)
        async with stand.client.process(f"k{number}", "/tokens 100000 50", id="t1") as stream:
            await stream.until(lambda frames: len(frames) >= 10)
            await asyncio.sleep(random.uniform(0, LONGEST_SECONDS))
            worker = await stand.holder("t1", f"k{number}")
            worker.signal(signal.SIGKILL)
            killed = time.monotonic()
            await stream.until(lambda _, killed=killed: time.monotonic() - killed > UNDER_WAY_SECONDS)
            found.append(time.monotonic() - killed)
            assert (await stand.client.stop(f"k{number}", "t1")).status_code == 200
        print(f"{number + 1:3d}  {found[-1]:.2f} s", flush=True)
        del stand.since[worker]
        await stand.add()
    return found


class Nuisance:
    """What is done to workers that live."""

    def __init__(self, stand: Stand, rng: random.Random) -> None:
        self._stand = stand
        self._rng = rng
        self.done = 0

    async def go_on(self, until: float) -> None:
        """One thing after the other; mostly after so long a pause that the others judge."""
        kinds: list[Callable[[Process], Awaitable[None]]] = [
            self.still, self.still_and_cut, self.still_and_cut, self.slow, self.slow_and_cut, self.cut_one, self.cut_all,
        ]  # fmt: skip
        while time.monotonic() < until:
            kind = self._rng.choice(kinds)
            began = time.monotonic()
            await kind(self._rng.choice(list(self._stand.since)))
            self.done += 1
            print(
                f"{kind.__name__:14s} {time.monotonic() - began:5.1f} s  missed {len(self._stand.missed())}",
                flush=True,
            )
            await asyncio.sleep(self._rng.choice((0.5, 1.0, CALM_SECONDS)))

    async def still(self, worker: Process) -> None:
        """It stands still, for less than its lease."""
        await self._stopped(worker, "")

    async def still_and_cut(self, worker: Process) -> None:
        """And meanwhile it loses its subscription, or the connection of its commands."""
        await self._stopped(worker, self._rng.choice(("pubsub", "pubsub", "normal")))

    async def _stopped(self, worker: Process, cut: str) -> None:
        worker.signal(signal.SIGSTOP)
        if cut:
            self._stand.cut(cut, worker)
        await asyncio.sleep(self._rng.uniform(*STILL_SECONDS))
        worker.signal(signal.SIGCONT)

    async def slow(self, worker: Process, cut: str = "") -> None:
        """It runs for a moment now and then."""
        until = time.monotonic() + self._rng.uniform(*STILL_SECONDS)
        while time.monotonic() < until:
            worker.signal(signal.SIGSTOP)
            if cut:
                self._stand.cut(cut, worker)
                cut = ""
            await asyncio.sleep(SLOW_SECONDS[1])
            worker.signal(signal.SIGCONT)
            await asyncio.sleep(SLOW_SECONDS[0])

    async def slow_and_cut(self, worker: Process) -> None:
        """And is to subscribe again meanwhile."""
        await self.slow(worker, "pubsub")

    async def cut_one(self, worker: Process) -> None:
        """It loses its connections, of both kinds, and makes others."""
        for kind in ("pubsub", "normal"):
            self._stand.cut(kind, worker)

    async def cut_all(self, worker: Process) -> None:
        """All processes do, of one kind; one of them stands still."""
        worker.signal(signal.SIGSTOP)
        self._stand.cut(self._rng.choice(("pubsub", "normal")))
        await asyncio.sleep(self._rng.uniform(*STILL_SECONDS))
        worker.signal(signal.SIGCONT)


async def steady(stand: Stand, minutes: float, seed: int) -> tuple[int, int, int]:
    """So long; what was done to workers, the turns that ended, and those whose worker was taken for dead."""
    until = time.monotonic() + 60 * minutes
    missed = len(stand.missed())
    nuisance = Nuisance(stand, random.Random(seed))
    numbers = itertools.count()
    turns = await asyncio.gather(
        nuisance.go_on(until), *(_talk(stand.client, numbers, until) for _ in range(TALKING))
    )
    return nuisance.done, sum(each or 0 for each in turns), len(stand.missed()) - missed


async def _talk(client: Client, numbers: itertools.count[int], until: float) -> int:
    done = 0
    while time.monotonic() < until:
        stream: AbstractAsyncContextManager[Any] = client.process(
            f"s{next(numbers)}", "/tokens 100 50", id="t1"
        )
        async with stream as frames:
            check_whole(await frames.all())
        done += 1
    return done


def quantile(values: list[float], share: float) -> float:
    """The least value that so large a share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


async def measure(given: argparse.Namespace, folder: Path) -> int:
    """Do both; how many promises were not kept."""
    broken = 0
    home = HOMES[given.broker](folder, "no", random.Random(given.seed), linked=False)
    deployment = Deployment(0, folder, **home.variables)
    try:
        await home.open()
        stand = Stand(deployment, home)
        await stand.start(WORKERS)
        if given.kills:
            found = await kills(stand, given.kills)
            print(
                f"p50 {quantile(found, 0.5):.2f} s, p99 {quantile(found, 0.99):.2f} s, most {max(found):.2f} s"
            )
            broken += quantile(found, 0.99) > MOST_SECONDS
        if given.minutes:
            done, turns, missed = await steady(stand, given.minutes, given.seed)
            print(f"{done} times disturbed, {turns} turns, {missed} times a living worker was missed")
            broken += missed > 0
    finally:
        await deployment.close()
        home.close()
    return broken


def main() -> int:
    """Measure; 1 when a killed worker is missed too late, or another one is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker", default="server", choices=sorted(HOMES), help="where the data is")
    return 1 if asyncio.run(measure(parser.parse_args(), Path(tempfile.mkdtemp(prefix="lifelines-")))) else 0


if __name__ == "__main__":
    sys.exit(main())
