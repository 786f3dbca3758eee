"""Chats of a real model: tokens that a provider writes at its pace, each as an event of its own, until clients have them.

`bench.provider` answers through HTTP as OpenAI does. What its tokens cost by themselves, in a process of their own, stands
beside: read from raw sockets, and through pydantic-ai's own loop; and what they cost all processes of Agno's durable queue.
Everything is counted in the same seconds of a load that runs already, and by tokens, however many of them an event carries.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import uvloop

from bench import bare_model, provider, streams
from bench.accounts import Spent
from bench.peers.agno import FIRST, NAME, agno, post
from bench.peers.environment import NotInstalledError
from bench.processes import Helper, helper
from bench.table import Row, number, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scale import Scale
    from bench.topology import Topology

# Chats, tokens a second of each, and the share of the library's own cost that is wanted.
LOADS = ((50, 50, 0.35), (20, 200, 0.12))

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
# Chats that one worker of the first build (e5c6176) carried by this measure, and how many times as many are wanted.
SEARCH_FIRST, SEARCH_TIMES = 22, 5

# A worker's slots, and an owner's share of them, are not what is looked for.
NEEDS = {"TURNSTREAM_MAX_JOBS": "1000"}

_FIRST = b'"text":"at'
_SAID = re.compile(rb"at(\d{5,}) ")


@dataclass(frozen=True, slots=True)
class Server:
    """Something that is asked for chats.

    Attributes:
        port: where it listens.
        spent: its processes' account, from when it is called.
        ask: a chat as bytes, of the text that the provider is to have.
        mark: what stands where a chat's first token begins.
        whole: whether chats are read to their end; else they are left when their seconds are over.
    """

    port: int
    spent: Callable[[], Spent]
    ask: Callable[[str], bytes]
    mark: bytes = _FIRST
    whole: bool = True


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
        for full, rate, wanted in LOADS:
            chats = scale.many(full)
            where = f"provider, {chats} chats × {rate} tokens/s: "
            ours = measure(built, chats, rate, seconds)
            raw, library = (_bare(bare, way, chats, rate, seconds) for way in ("raw", "library"))
            yield from _by_process(where, ours, raw, library, wanted)
            everything = Row(f"{where}all processes'", sum(ours.micros.values()), "µs")
            if scale.peers:
                everything = _beside_agno(everything, built.provider_port, chats, rate, seconds)
            yield everything.ratio_at_most(0.1)
            yield _late(where, ours)
        yield _search(built, scale)


def _alone(ours: Load) -> Iterator[Row]:
    yield Row(
        "provider, one chat: from its write to the client's read, p50",
        percentile(ours.late, 0.5),
        "ms",
        note=f"p99 {number(percentile(ours.late, 0.99))} ms",
    ).at_most(1.5)


def _by_process(where: str, ours: Load, raw: float, library: float, wanted: float) -> Iterator[Row]:
    yield Row(
        f"{where}worker's CPU per token", ours.micros["worker"], "µs", library, "pydantic-ai's loop"
    ).ratio_at_most(wanted)
    yield Row(f"{where}broker's", ours.micros["broker"], "µs", raw, "raw socket").ratio_at_most(0.9)
    yield Row(f"{where}front end's", ours.micros["api"], "µs", raw, "raw socket").ratio_at_most(1.0)


def _beside_agno(ours: Row, provider_port: int, chats: int, rate: int, seconds: float) -> Row:
    """The row, with the same load's figure of one that is started for it, or why there is none."""
    try:
        with agno(provider_port) as peer:
            # At these loads most of what the provider says is still to come when the seconds are over.
            asked = Server(peer.port, peer.spent, post, mark=FIRST)
            uvloop.run(_measure(asked, 2, rate, 0.2))
            theirs = uvloop.run(_measure(replace(asked, whole=False), chats, rate, seconds))
    except NotInstalledError as error:
        return replace(ours, note=f"{NAME} is left out: {error}")
    parts = " + ".join(f"{name} {number(each)}" for name, each in theirs.micros.items())
    return replace(
        ours,
        theirs=sum(theirs.micros.values()),
        other=NAME,
        note=f"{NAME}: {parts}; {100 * theirs.arrived:.0f} % of its tokens were read meanwhile",
    )


def _late(where: str, ours: Load) -> Row:
    return Row(
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
    ).at_least(SEARCH_TIMES * SEARCH_FIRST)


def measure(built: Topology, chats: int, rate: int, seconds: float) -> Load:
    """Run so many chats, and look at some seconds of them.

    Raises:
        AssertionError: a token is missing, doubled or out of order.
    """
    key = built.key("provider")
    ours = Server(built.port, lambda: Spent(built.pids), lambda text: streams.post(key, text))
    return uvloop.run(_measure(ours, chats, rate, seconds))


async def _measure(server: Server, chats: int, rate: int, seconds: float) -> Load:
    arriving = [streams.Stream() for _ in range(chats)]
    lead, tail = min(LEAD_SECONDS, seconds), min(TAIL_SECONDS, seconds)
    count = round(rate * (lead + seconds + tail))
    asks = [server.ask(f"{count} {rate}") for _ in arriving]
    running = [
        asyncio.ensure_future(streams.stream(server.port, ask, mark=server.mark, into=each))
        for ask, each in zip(asks, arriving, strict=True)
    ]
    async with asyncio.timeout(streams.STREAM_SECONDS):
        await asyncio.gather(*(each.reached.wait() for each in arriving))
    await asyncio.sleep(lead)
    spent, begun = server.spent(), time.perf_counter()
    await asyncio.sleep(seconds)
    took, ended = spent.seconds(), time.perf_counter()
    if not server.whole:
        for chat in running:
            chat.cancel()
    left = await asyncio.gather(*running, return_exceptions=True)
    late: list[float] = []
    read = 0
    for each, end in zip(arriving, left, strict=True):
        if isinstance(end, Exception):
            raise end
        tokens = _tokens(each, count, 1 if isinstance(end, asyncio.CancelledError) else count)
        read += sum(begun <= came < ended for _, came in tokens)
        late += [1000 * (came - said) for said, came in tokens if begun <= said < ended]
    micros = {name: 1e6 * each / max(1, read) for name, each in took.items()}
    return Load(late, micros, read / (chats * rate * (ended - begun)))


def _tokens(stream: streams.Stream, count: int, least: int) -> list[tuple[float, float]]:
    """When each token was written, and when it came; the completed message, which repeats them, is left out."""
    found = [(int(said) / 1e9, came) for said, came in stream.arrivals(_SAID)][:count]
    assert len(found) >= least, f"{len(found)} of {count} tokens arrived"
    assert found == sorted(found), "tokens arrived out of order"
    return found
