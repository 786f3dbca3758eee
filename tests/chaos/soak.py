"""Many turns, and nothing grows: ``python -m tests.chaos.soak --turns 50000``.

A front end and two workers serve a cheap agent, in sessions that expire after ten seconds. Ten times the
clients pause until all sessions have expired; what is left then, at the broker and in each process, is
counted. The first two of these counts are the warm-up; from then on nothing may grow.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from redis.asyncio import Redis

from tests.processes.broker import Broker
from tests.processes.deployment import Deployment
from tests.support.client import asked
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.client import Client

AGENTS = """
[agents.echo]
python = "tests.chaos.soak:echo"
"""

PAUSES = 10
CLIENTS = 20

# Turns of one session, so that memory and history are read and written too.
TURNS_OF_A_SESSION = 5

# What a process, or the broker, may have more at the end than after two tenths. Allocators and garbage
# collectors give back late; a leak of 100 bytes a turn would be 4 MB in the 40,000 turns in between.
MOST_MORE_BYTES = 4 * 2**20


async def echo(turn: Any) -> Any:
    """The cheapest agent there is."""
    yield f"You said: {len(turn.input)}"


@dataclass(frozen=True)
class Sample:
    """What is there while nothing is done: bytes, but for the turns so far and the broker's keys."""

    turns: int
    seconds: float
    keys: int
    broker: int
    front_end: int
    workers: int

    def text(self) -> str:
        """One line of the table."""
        megabytes = (f"{each / 2**20:8.1f}" for each in (self.broker, self.front_end, self.workers))
        return f"{self.turns:8d} {self.seconds:8.0f} {self.keys:6d} {' '.join(megabytes)}"


async def soak(turns: int, folder: Path) -> list[Sample]:
    """Do that many turns; a sample after each tenth."""
    broker = Broker(folder / "data", "no")
    broker.start()
    agents = folder / "agents.toml"
    agents.write_text(AGENTS)
    deployment = Deployment(
        broker.port,
        folder,
        TURNSTREAM_AGENTS=str(agents),
        TURNSTREAM_DEV_AGENT="echo",
        TURNSTREAM_SESSION_TTL="10",
        TURNSTREAM_LOG_GRACE_SECONDS="1",
    )
    redis: Any = Redis(port=broker.port)
    begun = time.monotonic()
    samples: list[Sample] = []
    try:
        front, client = await deployment.front_end()
        workers = [await deployment.worker() for _ in range(2)]
        numbers = itertools.count()
        for pause in range(1, PAUSES + 1):
            share = iter(range(turns * (pause - 1) // PAUSES, turns * pause // PAUSES))
            await asyncio.gather(*(_chat(client, share, numbers) for _ in range(CLIENTS)))
            await wait_until(lambda: _all_expired(redis), "the sessions to expire", 120)
            memory = await redis.info("memory")
            # Bounded, but not before 10,000 turns: it would look like growth.
            listed = await redis.memory_usage("ts:recent") or 0
            sample = Sample(
                turns * pause // PAUSES,
                time.monotonic() - begun,
                await redis.dbsize(),
                memory["used_memory_dataset"] - listed,
                _resident(front.popen.pid),
                sum(_resident(worker.popen.pid) for worker in workers),
            )
            samples.append(sample)
            print(sample.text(), flush=True)
        return samples
    finally:
        await redis.aclose()
        await deployment.close()
        broker.stop()


async def _chat(client: Client, share: Iterator[int], numbers: Iterator[int]) -> None:
    while True:
        session = f"s{next(numbers)}"
        for at in range(TURNS_OF_A_SESSION):
            if next(share, None) is None:
                return
            answer = await client.http.post("/process", json=asked(session, "hello", id=f"{session}t{at}"))
            assert b'"status":"completed"' in answer.content.splitlines()[-2], answer.content[-500:]


async def _all_expired(redis: Any) -> bool:
    return not [key async for key in redis.scan_iter("ts:{*", count=10_000)]


def _resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def grown(samples: list[Sample]) -> list[str]:
    """What grew from the second sample to the last two, in words."""
    first, last = samples[1], samples[-2:]
    found = []
    for name in ("broker", "front_end", "workers"):
        more = min(getattr(each, name) for each in last) - getattr(first, name)
        if more > MOST_MORE_BYTES * (2 if name == "workers" else 1):
            found.append(f"{name}: {more / 2**20:.1f} MB more")
    if min(each.keys for each in last) > first.keys + 2:
        found.append(f"keys: {first.keys} → {last[-1].keys}")
    return found


def main() -> int:
    """Soak; 1 when something grew."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=50_000)
    given = parser.parse_args()
    print("   turns        s   keys  broker front end workers (MB)")
    samples = asyncio.run(soak(given.turns, Path(tempfile.mkdtemp(prefix="soak-"))))
    found = grown(samples)
    print("; ".join(found) or "nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
