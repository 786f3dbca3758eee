"""A deployment in one event loop: brokers of one form or another, front ends and workers, each a simulated process."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.agents import ON_LOST
from tests.simulation.broker import SKEWS_SECONDS, Ordered, SimulatedBroker
from tests.simulation.loop import current
from tests.simulation.network import Network, Socket
from tests.simulation.nodes import ClusterOfNodes, Servers, Watched
from tests.simulation.outside import Outside
from turnstream.api.server import FrontEnd
from turnstream.shared.agents import config
from turnstream.shared.agents.config import DEMO, Agents, AgentSpec
from turnstream.shared.api_keys import ApiKeys, Limits
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import WORKERS
from turnstream.shared.errors import BrokerAway
from turnstream.shared.model_states import ModelStates
from turnstream.shared.settings import Settings
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.simulation.broker import Store
    from tests.simulation.loop import Process, SimulatedLoop
    from tests.simulation.network import Endpoint

# Where the first broker listens, and that of the sessions if it is another one; or a pair and its Sentinels; or the nodes of the
# sessions' cluster, and what is read of them at the end.
PORTS = (6379, 6380)
SENTINELS = (26379, 26380, 26381)
NODES = range(7001, 7007)
GATHERED = 7000

# What brokers there are: one; another one for sessions; a pair that Sentinels watch; a cluster for sessions.
ONE, TWO, SENTINEL, CLUSTER = FORMS = ("one", "two", "sentinel", "cluster")

# Short times, as in the chaos suite: the promises are the same with any.
GIVEN: dict[str, Any] = {
    "lease_seconds": 2,
    "drain_seconds": 1,
    "heartbeat_seconds": 1,
    "send_seconds": 2,
}


# Of runs in which logs are cut: soon after a turn's end, and where they have many entries.
CUTTING: dict[str, Any] = {"log_grace_seconds": 2, "log_max_events": 100}


@dataclass
class Running:
    """A process of the deployment.

    Attributes:
        role: ``api`` or ``worker``.
        version: of its coded agents.
        server: what serves in it, once it has begun.
    """

    role: str
    process: Process
    task: asyncio.Task[None]
    port: int = 0
    version: str | None = None
    server: FrontEnd | WorkerProcess | None = None


# Whose all sessions are; in some runs those of every other agent are another one's.
OWNER, OTHER_OWNER = "dev", "acme"

# How long an operator's command tries to reach the broker, before it is given anew.
OPERATOR_SECONDS = 5.0

# How old a worker is of which the others know; and its sign of life, of which there is one in five seconds, and another
# worker takes it for dead after fifteen.
KNOWN_SECONDS = 20.0
LATE_SECONDS = 10.0

# What a turn of the agent has that is in a hurry.
HURRIED_SECONDS = 5.0


# A worker that has lost so many connections to the first broker, in so many seconds, may be taken for dead: that of its
# commands, and that on which it hears its own channel.
MOST_LOST = 2
LATELY_SECONDS = 8.0

# A version of the coded agents that a deployment may have beside the first, which has no name but the digest of its table.
OTHER_VERSION = "other"

# A coded agent's name → what becomes of its turns while no worker serves their version.
ON_VERSION = {"coded": "wait", "coded-parallel": "move", "coded-interrupt": "fail"}


# What the agent answers with that is asked for data, by ``/output``.
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}

# How long the agent waits for its client's answers that does not wait for long.
IMPATIENT_SECONDS = 4.0


def agents(version: str | None = None) -> Agents:
    """The demo agent and a coded one, once for each way in which a session may take the next turn; and one that books.

    And the demo agent as it answers with data, and as it does not wait for its client for long.
    """
    demo = config.load(None)[DEMO]
    coded = AgentSpec(name="coded", python="tests.simulation.agents:coded", version=version)
    teller = AgentSpec(name="teller", python="tests.simulation.agents:teller", on_lost=ON_LOST)
    hurried = teller.model_copy(update={"name": "hurried", "deadline": HURRIED_SECONDS})
    found = [*(_with_tools(each) for each in config.load(None)), coded, teller, hurried]
    found.append(demo.model_copy(update={"name": "structured", "output_schema": SCHEMA}))
    found.append(demo.model_copy(update={"name": "impatient", "callback_deadline": IMPATIENT_SECONDS}))
    for busy in ("parallel", "interrupt"):
        found.append(demo.model_copy(update={"name": busy, "busy": busy}))
        found.append(coded.model_copy(update={"name": f"coded-{busy}", "busy": busy}))
    return Agents({each.name: _with_policy(each) for each in found})


def _with_tools(spec: AgentSpec) -> AgentSpec:
    """The demo's sub-agent may fail."""
    tools = ("tests.simulation.agents:break_down",) if spec.name == "demo-researcher" else spec.tools
    return spec.model_copy(update={"tools": tools})


def _with_policy(spec: AgentSpec) -> AgentSpec:
    return spec.model_copy(update={"on_version": ON_VERSION.get(spec.name, spec.on_version)})


class Cluster:
    """Starts, kills, freezes and drains."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, *, brokers: str = ONE, **given: Any) -> None:
        """``brokers``: one of `FORMS`; ``given`` are settings of all processes."""
        self._loop = loop
        self._numbers = iter(range(1, 1_000_000))
        self.network = Network(loop, rng)
        # What concerns all, and what sessions have.
        self.primary: Store
        self.sessions: Store
        self.stores: list[Store] = []
        if brokers == SENTINEL:
            self.primary = self.sessions = Watched(loop, rng, PORTS, SENTINELS)
        else:
            self.primary = self.sessions = SimulatedBroker(loop, rng, PORTS[0])
            if brokers == TWO:
                self.sessions = SimulatedBroker(loop, rng, PORTS[1])
            elif brokers == CLUSTER:
                self.sessions = ClusterOfNodes(loop, rng, NODES, GATHERED)
        self.stores = list(dict.fromkeys((self.primary, self.sessions)))
        for store in self.stores:
            store.steps.lives = self._lives
        self.outside = Outside(loop, rng, self.sessions, self.primary, self._serves)
        self.sessions.steps.on_parked = self._look_at_parked
        self._given = {**GIVEN, **given, "redis_url": self.primary.url}
        if self.sessions is not self.primary:
            self._given["session_redis_url"] = self.sessions.url
            self.sessions.steps.hints = self.primary
        self._agents = {version: agents(version) for version in (None, OTHER_VERSION)}
        self.running: list[Running] = []
        # Agents whose clients are of the other owner.
        self.others: set[str] = set()
        # Whether every process can tell the brokers what it has to: what they count is true.
        self.whole = False

    @property
    def brokers(self) -> list[SimulatedBroker]:
        """Those whose data it is now."""
        return [broker for store in self.stores for broker in store.serving]

    @property
    def groups(self) -> list[Servers]:
        """Brokers that stand in for each other."""
        return [store for store in self.stores if isinstance(store, Servers)]

    def owner_of(self, agent: str) -> str:
        """Whose the agent's clients are."""
        return OTHER_OWNER if agent in self.others else OWNER

    async def bring_keys(self, tokens: dict[str, str], limits: dict[str, Limits]) -> None:
        """Make each agent's key known, with its limits, or replace it."""
        broker = Broker(Settings(**self._given))
        keys = ApiKeys(broker.retrying(OPERATOR_SECONDS).primary)
        try:
            for agent, token in tokens.items():
                await keys.register(token, owner=self.owner_of(agent), agent=agent, limits=limits.get(agent))
        finally:
            await broker.close()

    async def hold_model(self, name: str) -> None:
        """As an operator does, who tries again until it is so."""
        await self._operate(lambda states: states.hold(name))

    async def resume_model(self, name: str) -> None:
        """The same."""
        await self._operate(lambda states: states.resume(name))

    async def _operate(self, act: Callable[[ModelStates], Awaitable[bool]]) -> None:
        settings = Settings(**self._given)
        broker = Broker(settings)
        states = ModelStates(broker.primary, settings.lease_ms).retrying(OPERATOR_SECONDS)
        done = False
        while not done:
            with suppress(BrokerAway):
                await act(states)
                done = True
        await broker.close()

    def start(self, role: str, port: int = 0, version: str | None = None) -> Running:
        """Start a process; a front end listens on ``port``, a worker serves this version of the coded agents."""
        running: Running

        async def main() -> None:
            settings = Settings(**self._given, port=port)
            broker = Broker(settings)
            try:
                if role == "api":
                    front_end = FrontEnd(settings, self._agents[None], broker)
                    front_end._socket = Socket(("127.0.0.1", port))  # type: ignore[assignment]
                    # The library's own set is gone through by where its members lie in memory.
                    front_end._server.server_state.connections = Ordered()  # type: ignore[assignment]
                    running.server = front_end
                    await front_end.serve()
                else:
                    running.server = WorkerProcess(settings, broker, self._agents[version])
                    await running.server.run()
            finally:
                await broker.close()

        process, task = self._loop.begin(f"{role}-{next(self._numbers)}", main)
        running = Running(role, process, task, port, version)
        self.running.append(running)
        return running

    def _look_at_parked(self, ref: str, attempt: int) -> None:
        for each in self.running:
            for held in each.server.leases if isinstance(each.server, WorkerProcess) else ():
                if (str(held.attempt.ref), held.attempt.number) == (ref, attempt):
                    self.outside.look_at_slot(held, each.process, "who_is_parked_holds_no_slot")

    def skew(self, rng: random.Random) -> None:
        """Have the clocks of the processes differ; to be called before they run."""
        for each in self.running:
            each.process.ahead = rng.choice(SKEWS_SECONDS)

    def _serves(self, version: str | None) -> bool:
        """Whether all workers know that one serves this version of the coded agents: it runs for long, and has said so lately."""
        for each in self.running:
            if each.version == version and isinstance(each.server, WorkerProcess):
                sign = self.primary.field(WORKERS, each.server.id)
                now = time.time() - current().ahead + each.process.ahead
                late = now - json.loads(sign)["seen"] if sign else LATE_SECONDS
                if self._loop.time() - each.process.began > KNOWN_SECONDS and late < LATE_SECONDS:
                    return True
        return False

    def subscription(self, running: Running) -> list[Endpoint]:
        """The connection on which a worker hears its own channel, if it has one."""
        names = {f"{running.process}>broker-{broker.port}" for broker in self.primary.brokers}
        pairs = [pair for pair in self.network.connections.values() if pair[0].name in names]
        return [near for near, far in pairs if far.get_protocol() and far.get_protocol().subscribes]

    def _lives(self, worker: str) -> bool:
        """Whether a worker stands or runs, and has not lost its connections to the first broker lately: one is not all."""
        for each in self.running:
            if isinstance(each.server, WorkerProcess) and each.server.id == worker:
                lost = [
                    when
                    for broker in self.primary.brokers
                    for when in self.network.lost_between(each.process.name, f"broker-{broker.port}")
                ]
                return sum(self._loop.time() - when < LATELY_SECONDS for when in lost) < MOST_LOST
        return False

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
