"""What goes wrong in a simulation, chosen by its seed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.cluster import Cluster, Running
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Endpoint

# Fault → how often beside the others.
WEIGHTS = {
    "kill_worker": 6,
    "kill_front_end": 4,
    "drain_worker": 3,
    "drain_front_end": 2,
    "freeze_worker": 4,
    "freeze_front_end": 2,
    "restart_broker": 2,
    "lose_writes": 2,
    "fill_memory": 2,
    "become_replica": 2,
    "flush_scripts": 2,
    "cut": 10,
    "drop_replies": 8,
    "delay": 8,
    "late": 8,
    "jump": 1,
}

# Seconds between two faults: a storm, then rest. Each phase lasts so many faults.
STORM_SECONDS = (0.02, 0.3)
REST_SECONDS = (0.1, 1.0)
PHASE = 12

FROZEN_SECONDS = ((0.1, 1.0), (2.0, 5.0))
AWAY_SECONDS = (0.05, 1.5)
REFUSING_SECONDS = (0.1, 1.5)
LOST_SECONDS = (0.01, 1.0)
HELD_SECONDS = (0.05, 3.0)
START_SECONDS = (0.05, 1.0)
SKEWS_SECONDS = (0.0, 0.0, 0.4, -0.4, 5.0, -5.0, 300.0)
JUMPS_SECONDS = (0.5, 3.0, -0.3)

# Connections that one fault of the network concerns.
MOST_CONNECTIONS = 4


class Faults:
    """Does one thing after the other, until `heal`. What ends is started again, as a supervisor would.

    Attributes:
        done: when, which, and of whom.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        cluster: Cluster,
        rng: random.Random,
        on_loss: Callable[[], None],
        kinds: list[str],
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._rng = rng
        self._on_loss = on_loss
        self._kinds = kinds
        self._healing = asyncio.Event()
        self._beside: set[asyncio.Task[None]] = set()
        self._busy_broker = asyncio.Lock()
        self.done: list[tuple[float, str, str]] = []

    async def inject(self) -> None:
        """Until `heal`."""
        number = 0
        while not self._healing.is_set() and self._kinds:
            pace = STORM_SECONDS if number // PHASE % 2 == 0 else REST_SECONDS
            number += 1
            await asyncio.sleep(self._rng.uniform(*pace))
            [kind] = self._rng.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])
            act: Callable[[], Coroutine[Any, Any, None]] = getattr(self, kind)
            task = asyncio.create_task(act())
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)
        await asyncio.gather(*self._beside)

    def heal(self) -> None:
        """Begin nothing more; what was begun comes to its end."""
        self._healing.set()

    def _note(self, kind: str, who: object = "") -> None:
        self.done.append((self._loop.time(), kind, str(who)))

    # ── processes ──

    def _one(self, role: str) -> Running | None:
        """One that runs, of several: somebody must be left to take over."""
        able = [
            each
            for each in self._cluster.running
            if each.role == role and not each.process.frozen and each.server
        ]
        return self._rng.choice(able) if len(able) > 1 else None

    async def _again(self, ended: Running) -> None:
        await asyncio.sleep(self._rng.uniform(*START_SECONDS))
        begun = self._cluster.start(ended.role, ended.port)
        begun.process.ahead = self._rng.choice(SKEWS_SECONDS)

    async def _kill(self, role: str) -> None:
        if running := self._one(role):
            self._note(f"kill {role}", running.process)
            self._cluster.kill(running)
            await self._again(running)

    async def kill_worker(self) -> None:
        """It runs no further instruction."""
        await self._kill("worker")

    async def kill_front_end(self) -> None:
        """The same, with all of its streams."""
        await self._kill("api")

    async def _drain(self, role: str) -> None:
        if running := self._one(role):
            self._note(f"drain {role}", running.process)
            assert running.server is not None
            self._loop.call_in(running.process, running.server.stop)
            running.server = None
            await asyncio.wait([running.task])
            running.task.result()
            self._cluster.forget(running)
            await self._again(running)

    async def drain_worker(self) -> None:
        """It gives its turns back."""
        await self._drain("worker")

    async def drain_front_end(self) -> None:
        """It ends its streams between events."""
        await self._drain("api")

    async def _freeze(self, role: str) -> None:
        if running := self._one(role):
            self._note(f"freeze {role}", running.process)
            running.process.frozen = True
            await asyncio.sleep(self._rng.uniform(*self._rng.choice(FROZEN_SECONDS)))
            running.process.frozen = False
            self._note("thaw", running.process)

    async def freeze_worker(self) -> None:
        """It stands still for a while, past its lease now and then."""
        await self._freeze("worker")

    async def freeze_front_end(self) -> None:
        """It stands still for a while."""
        await self._freeze("api")

    # ── the brokers ──

    def _broker(self) -> SimulatedBroker:
        return self._rng.choice(self._cluster.brokers)

    async def restart_broker(self) -> None:
        """It is away for a while, and back with all it had."""
        async with self._busy_broker:
            broker = self._broker()
            self._note("restart broker", broker.port)
            broker.stop()
            await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
            broker.restart()

    async def lose_writes(self) -> None:
        """It is back with what it had a moment before."""
        async with self._busy_broker:
            broker = self._broker()
            broker.remember()
            await asyncio.sleep(self._rng.uniform(*LOST_SECONDS))
            self._on_loss()
            self._note("lose writes", broker.port)
            broker.stop()
            await asyncio.sleep(self._rng.uniform(*AWAY_SECONDS))
            broker.restart()
            broker.go_back()

    async def fill_memory(self) -> None:
        """It refuses what would need some."""
        await self._refuse("full")

    async def become_replica(self) -> None:
        """It answers, and takes no writes."""
        await self._refuse("replica")

    async def _refuse(self, how: str) -> None:
        async with self._busy_broker:
            broker = self._broker()
            self._note(how, broker.port)
            setattr(broker, how, True)
            await asyncio.sleep(self._rng.uniform(*REFUSING_SECONDS))
            setattr(broker, how, False)

    async def flush_scripts(self) -> None:
        """It forgets them."""
        self._note("flush scripts")
        self._broker().flush_scripts()

    async def jump(self) -> None:
        """The brokers' clocks do."""
        seconds = self._rng.choice(JUMPS_SECONDS)
        self._note("jump", seconds)
        for broker in self._cluster.brokers:
            broker.jump(seconds)

    # ── the network ──

    def _connections(self) -> list[tuple[Endpoint, Endpoint]]:
        open_ones = list(self._cluster.network.connections.values())
        return self._rng.sample(open_ones, min(len(open_ones), self._rng.randint(1, MOST_CONNECTIONS)))

    async def cut(self) -> None:
        """Some connections are lost at both sides, with what is under way."""
        for near, _ in self._connections():
            self._note("cut", near.name)
            near.cut()

    async def drop_replies(self) -> None:
        """What was sent is carried out; no answer comes, and then the connection is lost."""
        for near, far in self._connections():
            self._note("drop replies", near.name)
            far.hold(60)
            self._loop.call_later(self._rng.uniform(0, 0.01), near.cut)

    async def delay(self) -> None:
        """What is sent by one side of some connections comes later."""
        for pair in self._connections():
            side = self._rng.choice(pair)
            seconds = self._rng.uniform(*HELD_SECONDS)
            self._note("delay", f"{side.name} {seconds:.2f} s")
            side.hold(seconds)

    async def late(self) -> None:
        """The sender loses the connection, and what it sent arrives all the same, after it has tried again elsewhere."""
        for pair in self._connections():
            side = self._rng.choice(pair)
            seconds = self._rng.uniform(*HELD_SECONDS)
            self._note("late", f"{side.name} {seconds:.2f} s")
            side.hold(seconds)
            self._loop.call_later(self._rng.uniform(0, 0.02), side.part)
