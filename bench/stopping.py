"""From ``/stop`` being sent to the end of the turn being received by somebody else who follows it."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import TYPE_CHECKING

import uvloop

from bench import streams
from bench.table import Row, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

ONE_BY_ONE = 50
AT_ONCE = 25
ROUNDS = 4

ROUND_SECONDS = 30

_END = re.compile(rb'("status":"canceled")')

# agent → what it is asked: one that speaks, and one that says a word and is then silent.
SPEAKING = ("paced", "100000 50")
SILENT = ("silent", "60")


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """One, many at once, and with an agent that is silent."""
    uvloop.run(stop_some(built, *SPEAKING, at_once=2, rounds=1))
    for what, agent, at_once, rounds in (
        ("one that speaks", SPEAKING, 1, scale.count(ONE_BY_ONE)),
        (f"{AT_ONCE} at once", SPEAKING, AT_ONCE, scale.count(ROUNDS)),
        ("one that is silent", SILENT, 1, scale.count(ONE_BY_ONE)),
    ):
        times = uvloop.run(stop_some(built, *agent, at_once=at_once, rounds=rounds))
        for share, most in ((0.5, 8.0), (0.99, 40.0)):
            row = Row(
                f"stop to end at another follower, {what}, p{100 * share:.0f}",
                percentile(times, share),
                "ms",
            )
            yield row.at_most(most)


async def stop_some(built: Topology, agent: str, text: str, *, at_once: int, rounds: int) -> list[float]:
    """Milliseconds of each stop."""
    key = await asyncio.to_thread(built.key, agent)
    times: list[float] = []
    for _ in range(rounds):
        # Whatever goes wrong with one, the others would wait for it.
        async with asyncio.timeout(ROUND_SECONDS):
            times += await _stop_round(built.port, key, text, at_once)
    return times


async def _stop_round(port: int, key: str, text: str, at_once: int) -> list[float]:
    ready, go = asyncio.Barrier(at_once + 1), asyncio.Event()
    stops = [asyncio.create_task(_stop_one(port, key, text, ready, go)) for _ in range(at_once)]
    await ready.wait()
    go.set()
    return await asyncio.gather(*stops)


async def _stop_one(port: int, key: str, text: str, ready: asyncio.Barrier, go: asyncio.Event) -> float:
    name = uuid.uuid4().hex
    first, second = streams.Stream(), streams.Stream()
    mark = b'"delta":true'
    posted = asyncio.create_task(streams.stream(port, streams.post(key, text, name, id=name), mark, first))
    await first.reached.wait()
    watch = streams.head("GET", f"/process?session_id={name}&response_id={name}", key)
    watched = asyncio.create_task(streams.stream(port, watch, mark, second))
    await second.reached.wait()
    # The client is connected already, as one that has just asked is.
    reader, writer = await asyncio.open_connection(streams.HOST, port)
    await ready.wait()
    await go.wait()
    sent = time.perf_counter()
    writer.write(streams.head("POST", f"/liteAgent/v1/stop?sessionId={name}", key))
    streams.body_of(await reader.read())
    writer.close()
    await asyncio.gather(posted, watched)
    for each in (first, second):
        events = each.events()
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[-1]["object"], events[-1]["status"]) == ("response", "canceled"), events[-1]
    return 1000 * (second.arrivals(_END)[-1][1] - sent)
