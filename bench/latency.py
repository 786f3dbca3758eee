"""What lies between a worker's agent saying something and a client having it, at 10,000 events a second.

A hundred chats; each event carries the time at which it was said. One clock serves all processes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from bench import streams
from bench.table import Row, number, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

CHATS = 100
FEWER = 5
EVENTS_PER_SECOND = 100
SECONDS = 5.0

# The beginning, when chats are still being taken.
LEFT_OUT_SECONDS = 1.0

_SAID = re.compile(rb"at(\d{5,}) ")


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Median and 99th percentile; also at a fifth of the rate, where two cores have time to spare."""
    chats = scale.many(CHATS)
    measure(built, 2, 0.1)
    late, rate = measure(built, chats, max(0.3, SECONDS * scale.length))
    for share, most in ((0.5, 2.0), (0.99, 15.0)):
        row = Row(
            f"added latency from worker to client, {chats} chats, p{100 * share:.0f}",
            percentile(late, share),
            "ms",
        )
        yield replace(row.at_most(most), note=f"{number(rate)} tokens/s were said" if share == 0.5 else "")
    fewer = max(1, chats // FEWER)
    late, rate = measure(built, fewer, max(0.3, SECONDS * scale.length))
    yield Row(
        f"added latency from worker to client, {fewer} chats, p50",
        percentile(late, 0.5),
        "ms",
        note=f"p99 {number(percentile(late, 0.99))} ms; {number(rate)} tokens/s were said",
    )


def measure(built: Topology, chats: int, seconds: float) -> tuple[list[float], float]:
    """Milliseconds for each event, and how many were said a second.

    Raises:
        AssertionError: an event is missing, doubled or out of order.
    """
    count = int((LEFT_OUT_SECONDS + seconds) * EVENTS_PER_SECOND)
    left_out = int(LEFT_OUT_SECONDS * EVENTS_PER_SECOND)
    key = built.key("paced")
    asks = [streams.post(key, f"{count} {EVENTS_PER_SECOND}") for _ in range(chats)]
    arrived, _ = uvloop.run(streams.closed_loop(built.port, chats, asks))
    late: list[float] = []
    began, ended = [], []
    for stream in arrived:
        numbers = [each["sequence_number"] for each in stream.events()]
        assert numbers == list(range(len(numbers))), "an event is missing, doubled or out of order"
        found = [(int(said) / 1e9, came) for said, came in stream.arrivals(_SAID)][:count]
        assert len(found) == count, f"{len(found)} of {count} tokens arrived"
        assert found == sorted(found), "tokens arrived out of order"
        kept = found[left_out:]
        late += [1000 * (came - said) for said, came in kept]
        began.append(kept[0][0])
        ended.append(kept[-1][0])
    return late, len(late) / (max(ended) - min(began))
