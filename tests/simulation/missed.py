"""``python -m tests.simulation.missed --seeds 1-5``: how soon a killed worker's turn goes on when nothing else goes wrong.

With the default lease, in virtual time. Beside that: a worker that stands still, that loses its connections, or its subscription while it
stands still, or all with a restart of the broker, keeps its turn; and so it does where the broker, or the session's node of a cluster,
answers but takes no writes, or stands still, for about a lease; where the broker's clock is set ahead; and where the host with all
of them was suspended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import orjson
import structlog

from tests.simulation.__main__ import seeds_of, with_fixed_hashes
from tests.simulation.cluster import CLUSTER, ONE, Cluster
from tests.simulation.loop import SimulatedLoop
from tests.simulation.world import seeded
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import turn
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import Tasks, operation
from turnstream.shared.settings import Settings
from turnstream.worker.rescuer import Rescuer
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.cluster import Running

LEASE_SECONDS: float = Settings.model_fields["lease_seconds"].default
SOON_SECONDS = 2.0

# What is done to the worker that runs the turn, or to the broker → whether the worker is missed.
CASES = {
    "kill": True,
    "freeze": False,
    "cut": False,
    "silence": False,
    "freeze, cut subscription": False,
    "restart": False,
    "read-only": False,
    "node without its cluster": False,
    "broker stands still": False,
    "broker stands still as it is asked": False,
    "node stands still": False,
    "clock set ahead": False,
    "host suspended": False,
}
# Cases that need other brokers than one.
FORMS_OF = {"node without its cluster": CLUSTER, "node stands still": CLUSTER}

# For how long a broker takes no writes, in leases: a renewal is late when it ends, or the lease is over.
REFUSING_LEASES = (0.7, 1.6)

# What is written renews the lease: only of who is silent others hear nothing but that. Its second word comes after so many ms.
SILENT = "/tokens 2 60000"

REF = TaskRef("dev", "missed", "t1")


class Scene:
    """Three workers, a turn, and its worker."""

    def __init__(self, loop: SimulatedLoop, cluster: Cluster, rng: random.Random) -> None:
        self._loop = loop
        self._cluster = cluster
        self._rng = rng

    async def play(self, case: str) -> str:
        """What is wrong; empty when nothing is."""
        cluster = self._cluster
        for store in cluster.stores:
            store.start()
        for _ in range(3):
            cluster.start("worker")
        await wait_until(cluster.serves, "every process to serve")
        await asyncio.sleep(LEASE_SECONDS + self._rng.uniform(1, 3))
        await self._submit("/tokens 100000 50" if CASES[case] else SILENT)
        await wait_until(lambda: self._told("number") >= 3, "the turn to speak")
        await asyncio.sleep(self._rng.uniform(0, LEASE_SECONDS))
        worker = self._holder()
        began = self._loop.time()
        await self._do(case, worker)
        if CASES[case]:
            said = self._told("number")
            await wait_until(lambda: self._told("number") > said, "the turn to go on", 2 * LEASE_SECONDS)
            seconds = self._loop.time() - began
            return f"after {seconds:.2f} s" if seconds > SOON_SECONDS else ""
        await asyncio.sleep(LEASE_SECONDS)
        return "" if self._told("attempt") == 1 else f"it is missed: attempt {self._told('attempt')}"

    async def _do(self, case: str, worker: Running) -> None:
        cluster, port = self._cluster, self._cluster.primary.port
        lines = [
            pair
            for pair in cluster.network.connections.values()
            if pair[0].name == f"{worker.process}>broker-{port}"
        ]
        worker.process.frozen = case.startswith("freeze")
        match case:
            case "kill":
                cluster.kill(worker)
            case "cut":
                for near, _ in lines:
                    near.cut()
            case "silence":
                for near, _ in lines:
                    near.silence()
            case "freeze, cut subscription":
                for near in cluster.subscription(worker):
                    near.cut()
            case "restart":
                [broker] = cluster.brokers
                broker.stop()
                await asyncio.sleep(0.1)
                broker.restart()
            case "read-only":
                await self._refuse(cluster.brokers[0], "replica")
            case "node without its cluster":
                await self._refuse(self._node(), "down")
            case "broker stands still":
                await self._freeze(cluster.brokers[0])
            case "broker stands still as it is asked":
                await self._freeze_asked(cluster.brokers[0])
            case "node stands still":
                await self._freeze(self._node())
            case "clock set ahead":
                cluster.primary.jump(self._long())
            case "host suspended":
                # Clocks of the day go on meanwhile, and no others.
                seconds = self._long()
                cluster.primary.jump(seconds)
                for each in cluster.running:
                    each.process.ahead += seconds
        if worker.process.frozen:
            await asyncio.sleep(0.6 * LEASE_SECONDS)
            worker.process.frozen = False

    def _long(self) -> float:
        return LEASE_SECONDS * self._rng.uniform(*REFUSING_LEASES)

    def _node(self) -> SimulatedBroker:
        """That has the session."""
        return self._cluster.sessions.at(REF.keys.meta.encode())  # type: ignore[attr-defined, no-any-return]

    async def _refuse(self, broker: SimulatedBroker, state: str) -> None:
        setattr(broker, state, True)
        await asyncio.sleep(self._long())
        setattr(broker, state, False)

    async def _freeze_asked(self, broker: SimulatedBroker) -> None:
        """From when a rescuer looks at the turn: it comes first when the broker goes on."""
        look = Rescuer.sweep

        def sweep(*given: Any) -> Any:
            broker.freeze(True)
            return look(*given)

        with mock.patch.object(Rescuer, "sweep", sweep):
            await wait_until(lambda: not broker.runs, "the turn to be looked at")
        await self._freeze(broker)

    async def _freeze(self, broker: SimulatedBroker) -> None:
        broker.freeze(True)
        await asyncio.sleep(self._long())
        broker.freeze(False)

    async def _submit(self, command: str) -> None:
        primary, sessions = self._cluster.primary, self._cluster.sessions
        settings = Settings(
            lease_seconds=LEASE_SECONDS,
            redis_url=primary.url,
            session_redis_url=None if sessions is primary else sessions.url,
        )
        broker = Broker(settings)
        text = {"type": "text", "text": command}
        request = orjson.dumps({"input": [{"role": "user", "content": [text]}]})
        asked = turn(agent="coded", request=request)
        await Tasks(broker.sessions, settings, notes=sessions is primary).submit(REF, asked, operation())
        await LaunchQueue(broker.primary).launch(REF, 1)
        await broker.close()

    def _told(self, field: str) -> int:
        return int(self._cluster.sessions.field(REF.keys.task(REF.task), field) or 0)

    def _holder(self) -> Running:
        name = self._cluster.sessions.field(REF.keys.task(REF.task), "worker")
        return next(
            each
            for each in self._cluster.running
            if isinstance(each.server, WorkerProcess) and each.server.id == name
        )


def missed(case: str, seed: int) -> str:
    """Play it once; what is wrong."""
    loop = SimulatedLoop(random.Random(f"schedule {seed}"))
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda *_: None)
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    network, brokers = random.Random(f"network {seed}"), FORMS_OF.get(case, ONE)
    cluster = Cluster(loop, network, brokers=brokers, lease_seconds=LEASE_SECONDS)
    with seeded(loop, seed):
        scene = Scene(loop, cluster, random.Random(f"{case} {seed}"))
        _, task = loop.begin("scene", lambda: scene.play(case))
        return loop.run_until_complete(task)


def _drop(*_: Any) -> str:
    raise structlog.DropEvent


def main() -> int:
    """Play all; 1 when something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", default=["1-5"], help="numbers, or ranges as 1-40")
    parser.add_argument("--first", action="store_true", help="until something is wrong")
    given = parser.parse_args()
    with_fixed_hashes("tests.simulation.missed")
    wrong = 0
    for seed in seeds_of(given.seeds):
        for case in CASES:
            found = missed(case, seed)
            print(f"seed {seed}: {case}: {found or 'as it should be'}", flush=True)
            wrong += bool(found)
            if found and given.first:
                return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
