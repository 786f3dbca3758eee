"""Many followers: what each costs in memory, and what an event costs when there are more of them."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench import asgi, feeder, readers, streams
from bench.accounts import memory
from bench.following import Delivery, follow_requests
from bench.processes import helper
from bench.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Helper
    from bench.scale import Scale
    from bench.topology import Topology

STEPS = (100, 1_000, 10_000)
RATE = 4_000
SECONDS = 4.0

# The server has made what it makes once, whatever the followers.
FIRST = 100

# Files that a process has open beside its connections.
OTHER_FILES = 200

PAUSE_SECONDS = 0.05

# After this a new follower waits for news, and does nothing else.
SETTLED_SECONDS = 1.0


# What `run` is given, where it is not one front end and one worker.
NEEDS = {"front_ends": 2, "workers": 0}


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Memory for each idle follower, and CPU per event at a fixed rate of events over more and more sessions."""
    most = _room(scale.many(STEPS[-1], 20))
    steps = [min(most, scale.many(step)) for step in STEPS]
    first = min(FIRST, steps[0])
    with ExitStack() as stack:
        feed = stack.enter_context(helper(feeder.serve, built.url))
        deliveries = []
        for step in steps:
            fresh = step == most
            read = stack.enter_context(helper(readers.serve))
            read.ask("pause", PAUSE_SECONDS)
            name = f"of{step}"
            asks = follow_requests(built, feed.ask("sessions", name, step, "echo"))
            # The second front end has seen none of the smaller loads: its memory is that of its followers.
            port, pid = built.front_ends[-1 if fresh else 0]
            if fresh:
                yield _memory(stack, read, port, pid, asks, first)
            else:
                read.ask("open", port, asks)
            delivery = Delivery(feed, read, [pid], name)
            delivery.count()
            delivery.round(RATE * scale.size, max(0.3, SECONDS * scale.length), 1)
            deliveries.append(delivery)
            read.ask("close")
        for step, delivery in zip(steps[1:], deliveries[1:], strict=True):
            row = Row(
                f"front end's CPU per event, {number(RATE * scale.size)} events/s over {step:,} sessions",
                delivery.micros,
                "µs",
                deliveries[0].micros,
                f"{steps[0]} sessions",
            )
            yield row.ratio_at_most(1.3)


def _memory(stack: ExitStack, read: Helper, port: int, pid: int, asks: list[bytes], first: int) -> Row:
    def grown(port: int, pid: int, read: Helper, asks: list[bytes]) -> float:
        """KiB for each follower, by PSS."""
        read.ask("open", port, asks[:first])
        time.sleep(SETTLED_SECONDS)
        before = memory(pid)[1]
        read.ask("open", port, asks[first:])
        time.sleep(SETTLED_SECONDS)
        return 1024 * (memory(pid)[1] - before) / (len(asks) - first)

    raw = stack.enter_context(helper(asgi.serve))
    raw_port = raw.answer()
    raw_read = stack.enter_context(helper(readers.serve))
    theirs = grown(raw_port, raw.pid, raw_read, [streams.head("GET", "/", "none")] * len(asks))
    raw_read.ask("close")
    row = Row(
        f"memory for each idle follower, {len(asks):,} in one process",
        grown(port, pid, read, asks),
        "KiB",
        theirs,
        "raw ASGI",
        note="each follows a session of its own; kernel's socket buffers are not in it",
    )
    return row.at_most(16)


def _room(wanted: int) -> int:
    """As many followers as the limit of open files has room for; the limit is raised as far as one may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - OTHER_FILES)
