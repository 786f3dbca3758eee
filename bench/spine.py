"""One chat and fifty: time to the first agent event, events per second, time from stop to the end.

Run it with `make bench`. One front end, one worker and a real Valkey, each a process, share the machine
with this load. Each turn is checked: every event arrived, once, in order.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import load
from bench.topology import Topology, topology

HOST = "127.0.0.1"
TOKENS = 50


async def chats(built: Topology, at_once: int, total: int) -> tuple[list[float], float]:
    """Run ``total`` turns, ``at_once`` at a time: times to the first event (ms), events per second."""
    slots = asyncio.Semaphore(at_once)

    async def one() -> load.Turn:
        async with slots:
            return await load.turn(HOST, built.ports[0], built.key, uuid.uuid4().hex, f"/tokens {TOKENS}")

    begun = time.perf_counter()
    turns = await asyncio.gather(*(one() for _ in range(total)))
    seconds = time.perf_counter() - begun
    for turn in turns:
        turn.check(TOKENS)
    return [1000 * (turn.first_event - turn.sent) for turn in turns], sum(
        len(t.events) for t in turns
    ) / seconds


async def stops(built: Topology, at_once: int, text: str) -> list[float]:
    """Begin turns, stop them, and time from the stop to the terminal event at another follower (ms)."""

    async def one() -> float:
        session, turn_id = uuid.uuid4().hex, uuid.uuid4().hex
        posted = asyncio.create_task(load.turn(HOST, built.ports[0], built.key, session, text, turn_id))
        await asyncio.sleep(0.5)
        following = asyncio.create_task(load.follow(HOST, built.ports[0], built.key, session, turn_id))
        await asyncio.sleep(0.3)
        stopped = time.perf_counter()
        path = f"/liteAgent/v1/stop?sessionId={session}"
        status, _ = await load.request(HOST, built.ports[0], "POST", path, built.key)
        assert status == 200
        followed, first = await following, await posted
        assert followed.events[-1]["status"] == first.events[-1]["status"] == "canceled"
        return 1000 * (followed.ended - stopped)

    return await asyncio.gather(*(one() for _ in range(at_once)))


def spread(values: list[float]) -> str:
    """Median and 99th percentile."""
    ordered = sorted(values)
    return (
        f"{statistics.median(ordered):8.1f} {ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:8.1f}"
    )


async def measure(built: Topology) -> None:
    """Warm up, measure, print."""
    await chats(built, 4, 20)
    print(f"{'':34}{'p50':>8} {'p99':>8}")
    for at_once, total in ((1, 100), (50, 400)):
        first, rate = await chats(built, at_once, total)
        print(
            f"{f'first agent event, {at_once} at once, ms':34}{spread(first)}   {rate:8.0f} events/s delivered"
        )
    for text, name in (("/tokens 100000 20", "speaking"), ("/slow 60", "silent in a tool")):
        for at_once in (1, 25):
            times = [
                each for _ in range(5 if at_once == 1 else 1) for each in await stops(built, at_once, text)
            ]
            print(f"{f'stop to end, {at_once} {name}, ms':34}{spread(times)}")


def main() -> None:
    """Start everything, measure, end everything."""
    with topology() as built:
        asyncio.run(measure(built))


if __name__ == "__main__":
    main()
