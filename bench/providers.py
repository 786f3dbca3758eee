"""Chats of a real model: tokens that a provider writes at its pace, each as an event of its own, until clients have them.

`bench.provider` answers through HTTP as OpenAI does. What its tokens cost by themselves, in a process of their own, stands
beside: read from raw sockets, and through pydantic-ai's own loop. Everything is counted in the same seconds of a load that
runs already, and by tokens, however many of them an event carries.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from bench import bare_model, provider, streams
from bench.accounts import Spent
from bench.processes import Helper, helper
from bench.table import Row, number, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

# Chats, tokens a second of each, and the share of the library's own cost that is wanted.
LOADS = ((50, 50, 0.35), (20, 200, 0.12))
# What all processes of Agno 3.1.10's durable queue (Postgres and Redis) take for a token of 50 chats × 50 tokens/s, by what the
# raw socket takes: at least 2,339 µs of 28.5, measured once on a machine like this one. It needs a Postgres, so it is not run.
AGNO = 82

SECONDS = 5.0
SEARCH_SECONDS = 3.0

# From the first token of all chats until counting begins.
LEAD_SECONDS = 1.0

# Chats that began first still run when counting ends.
TAIL_SECONDS = 1.0

SEARCH_RATE = 50
SEARCH_FROM = 8
SEARCH_STEP = 1.4
SEARCH_MOST = 600
MOST_LATE = 100.0
LEAST_ARRIVED = 0.95

# A worker's slots, and an owner's share of them, are not what is looked for.
NEEDS = {"TURNSTREAM_MAX_JOBS": "1000"}

_FIRST = b'"text":"at'
_SAID = re.compile(rb"at(\d{5,}) ")


@dataclass(frozen=True, slots=True)
class Load:
    """What some seconds of a load came to.

    Attributes:
        late: milliseconds from the provider's write to the client's read, of each token.
        micros: CPU for each token, by process.
        arrived: tokens that were read, as a share of what the provider should have written meanwhile.
    """

    late: list[float]
    micros: dict[str, float]
    arrived: float


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """CPU for each token by process, latency, and how many chats one worker carries."""
    with ExitStack() as stack:
        stack.enter_context(helper(provider.serve, built.provider_port)).answer()
        bare = stack.enter_context(helper(bare_model.serve, built.provider_port))
        seconds = max(0.3, SECONDS * scale.length)
        measure(built, 2, 50, 0.2)
        yield from _alone(measure(built, 1, 50, seconds))
        for chats, rate, wanted in LOADS:
            ours = measure(built, scale.many(chats), rate, seconds)
            raw, library = (_bare(bare, way, scale.many(chats), rate, seconds) for way in ("raw", "library"))
            yield from _rows(f"{scale.many(chats)} chats × {rate} tokens/s", ours, raw, library, wanted)
        yield _search(built, scale)


def _alone(ours: Load) -> Iterator[Row]:
    yield Row(
        "provider, one chat: from its write to the client's read, p50",
        percentile(ours.late, 0.5),
        "ms",
        note=f"p99 {number(percentile(ours.late, 0.99))} ms",
    ).at_most(1.5)


def _rows(where: str, ours: Load, raw: float, library: float, wanted: float) -> Iterator[Row]:
    where = f"provider, {where}: "
    yield Row(
        f"{where}worker's CPU per token", ours.micros["worker"], "µs", library, "pydantic-ai's loop"
    ).ratio_at_most(wanted)
    yield Row(f"{where}broker's", ours.micros["broker"], "µs", raw, "raw socket").ratio_at_most(0.9)
    yield Row(f"{where}front end's", ours.micros["api"], "µs", raw, "raw socket").ratio_at_most(1.0)
    everything = sum(ours.micros.values())
    yield Row(
        f"{where}all processes'", everything, "µs", AGNO * raw, "Agno durable, measured earlier"
    ).ratio_at_most(0.1)
    yield Row(
        f"{where}write to read, p50",
        percentile(ours.late, 0.5),
        "ms",
        note=f"p99 {number(percentile(ours.late, 0.99))} ms; {100 * ours.arrived:.0f} % of the tokens were read meanwhile",
    )


def _bare(bare: Helper, way: str, chats: int, rate: int, seconds: float) -> float:
    """CPU for each token, in microseconds."""
    lead, tail = min(LEAD_SECONDS, seconds), min(TAIL_SECONDS, seconds)
    text = f"{round(rate * (lead + seconds + tail))} {rate}"
    spent, count = bare.ask(way, chats, text, lead, seconds)
    return 1e6 * float(spent) / max(1, int(count))


def _search(built: Topology, scale: Scale) -> Row:
    """The largest load that is carried, by steps: at the first that is not, what lies between is not tried."""
    chats, carried, note = scale.many(SEARCH_FROM), 0, "the smallest load is late already"
    seconds = max(0.3, SEARCH_SECONDS * scale.length)
    while chats <= scale.many(SEARCH_MOST):
        load = measure(built, chats, SEARCH_RATE, seconds)
        late = percentile(load.late, 0.99)
        if late > MOST_LATE or load.arrived < LEAST_ARRIVED:
            break
        carried, note = chats, f"p99 {number(late)} ms, worker {number(load.micros['worker'])} µs/token"
        chats = max(chats + 1, round(chats * SEARCH_STEP))
    return Row(
        f"provider: chats at {SEARCH_RATE} tokens/s with p99 ≤ {number(MOST_LATE)} ms, one worker",
        carried,
        note=note,
    )


def measure(built: Topology, chats: int, rate: int, seconds: float) -> Load:
    """Run so many chats, and look at some seconds of them.

    Raises:
        AssertionError: a token is missing, doubled or out of order.
    """
    return uvloop.run(_measure(built, chats, rate, seconds))


async def _measure(built: Topology, chats: int, rate: int, seconds: float) -> Load:
    key = await asyncio.to_thread(built.key, "provider")
    arriving = [streams.Stream() for _ in range(chats)]
    lead, tail = min(LEAD_SECONDS, seconds), min(TAIL_SECONDS, seconds)
    count = round(rate * (lead + seconds + tail))
    asks = [streams.post(key, f"{count} {rate}") for _ in arriving]
    running = [
        asyncio.ensure_future(streams.stream(built.port, ask, mark=_FIRST, into=each))
        for ask, each in zip(asks, arriving, strict=True)
    ]
    async with asyncio.timeout(streams.STREAM_SECONDS):
        await asyncio.gather(*(each.reached.wait() for each in arriving))
    await asyncio.sleep(lead)
    spent, begun = Spent(built.pids), time.perf_counter()
    await asyncio.sleep(seconds)
    took, ended = spent.seconds(), time.perf_counter()
    await asyncio.gather(*running)
    late: list[float] = []
    read = 0
    for each in arriving:
        tokens = _tokens(each, count)
        read += sum(begun <= came < ended for _, came in tokens)
        late += [1000 * (came - said) for said, came in tokens if begun <= said < ended]
    micros = {name: 1e6 * each / max(1, read) for name, each in took.items()}
    return Load(late, micros, read / (chats * rate * (ended - begun)))


def _tokens(stream: streams.Stream, count: int) -> list[tuple[float, float]]:
    """When each token was written, and when it came; the completed message, which repeats them, is left out."""
    found = [(int(said) / 1e9, came) for said, came in stream.arrivals(_SAID)][:count]
    assert len(found) == count, f"{len(found)} of {count} tokens arrived"
    assert found == sorted(found), "tokens arrived out of order"
    return found
