"""A deployment in one event loop: a broker, front ends and workers, each a simulated process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.agents import ON_LOST
from tests.simulation.broker import Ordered, SimulatedBroker
from tests.simulation.network import Network, Socket
from tests.simulation.outside import Outside
from turnstream.api.server import FrontEnd
from turnstream.shared.agents import config
from turnstream.shared.agents.config import DEMO, Agents, AgentSpec
from turnstream.shared.api_keys import ApiKeys
from turnstream.shared.broker.client import Broker
from turnstream.shared.settings import Settings
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    import random

    from tests.simulation.loop import Process, SimulatedLoop

# Where the first broker listens, and that of the sessions if it is another one.
PORTS = (6379, 6380)

# Short times, as in the chaos suite: the promises are the same with any.
GIVEN: dict[str, Any] = {
    "lease_seconds": 2,
    "drain_seconds": 1,
    "heartbeat_seconds": 1,
}


@dataclass
class Running:
    """A process of the deployment.

    Attributes:
        role: ``api`` or ``worker``.
        server: what serves in it, once it has begun.
    """

    role: str
    process: Process
    task: asyncio.Task[None]
    port: int = 0
    server: FrontEnd | WorkerProcess | None = None


# What a turn of the agent has that is in a hurry.
HURRIED_SECONDS = 5.0


def agents() -> Agents:
    """The demo agent and a coded one, once for each way in which a session may take the next turn; and one that books."""
    demo = config.load(None)[DEMO]
    coded = AgentSpec(name="coded", python="tests.simulation.agents:coded")
    teller = AgentSpec(name="teller", python="tests.simulation.agents:teller", on_lost=ON_LOST)
    hurried = teller.model_copy(update={"name": "hurried", "deadline": HURRIED_SECONDS})
    found = [*config.load(None), coded, teller, hurried]
    for busy in ("parallel", "interrupt"):
        found.append(demo.model_copy(update={"name": busy, "busy": busy}))
        found.append(coded.model_copy(update={"name": f"coded-{busy}", "busy": busy}))
    return Agents({each.name: each for each in found})


class Cluster:
    """Starts, kills, freezes and drains."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, *, two_brokers: bool) -> None:
        self._loop = loop
        self._numbers = iter(range(1, 1_000_000))
        self.network = Network(loop, rng)
        self.brokers = [SimulatedBroker(loop, rng, port) for port in PORTS[: 1 + two_brokers]]
        # What concerns all, and what sessions have.
        self.primary, self.sessions = self.brokers[0], self.brokers[-1]
        self.outside = Outside(loop, rng, self.sessions)
        self._given = {**GIVEN, "redis_url": f"redis://127.0.0.1:{self.primary.port}/0"}
        if two_brokers:
            self._given["session_redis_url"] = f"redis://127.0.0.1:{self.sessions.port}/0"
        self.agents = agents()
        self.running: list[Running] = []

    async def bring_keys(self, tokens: dict[str, str]) -> None:
        """Make each agent's key known; all are of one owner."""
        broker = Broker(Settings(**self._given))
        for agent, token in tokens.items():
            await ApiKeys(broker.primary).register(token, owner="dev", agent=agent)
        await broker.close()

    def start(self, role: str, port: int = 0) -> Running:
        """Start a process; a front end listens on ``port``."""
        running: Running

        async def main() -> None:
            settings = Settings(**self._given, port=port)
            broker = Broker(settings)
            try:
                if role == "api":
                    front_end = FrontEnd(settings, self.agents, broker)
                    front_end._socket = Socket(("127.0.0.1", port))  # type: ignore[assignment]
                    # The library's own set is gone through by where its members lie in memory.
                    front_end._server.server_state.connections = Ordered()  # type: ignore[assignment]
                    running.server = front_end
                    await front_end.serve()
                else:
                    running.server = WorkerProcess(settings, broker, self.agents)
                    await running.server.run()
            finally:
                await broker.close()

        process, task = self._loop.begin(f"{role}-{next(self._numbers)}", main)
        running = Running(role, process, task, port)
        self.running.append(running)
        return running

    def serves(self) -> bool:
        """Whether all processes have started."""
        return all(each.server is not None and _started(each.server).is_set() for each in self.running)

    def kill(self, running: Running) -> None:
        """End it at once."""
        self.running.remove(running)
        self._loop.kill(running.process)

    def forget(self, running: Running) -> None:
        """It has ended by itself."""
        self.running.remove(running)
        self._loop.end(running.process)


def _started(server: FrontEnd | WorkerProcess) -> asyncio.Event:
    return server.ready if isinstance(server, WorkerProcess) else server.started
