"""A worker process: its parts, started and stopped in the right order."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

import structlog

from turnstream.shared import metrics
from turnstream.shared.agents.versions import versions
from turnstream.shared.broker import keys
from turnstream.shared.broker.pipeline import COMMAND_SECONDS
from turnstream.shared.model_states import ModelStates
from turnstream.shared.presence import Presence
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.endings import Ender
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.queue import LAUNCH_GRACE_MS, LaunchQueue
from turnstream.shared.session.tasks import Tasks
from turnstream.shared.siblings import Siblings
from turnstream.shared.worker_orders import Order, ordered
from turnstream.worker.agent_versions import ANY_VERSION, AgentVersions
from turnstream.worker.agents import registry
from turnstream.worker.agents.background import ResponseCanceller
from turnstream.worker.agents.model_gate import ModelGate
from turnstream.worker.arq_worker import ArqWorker
from turnstream.worker.budget import Budget
from turnstream.worker.health_server import Status
from turnstream.worker.lease import Leases
from turnstream.worker.lifeline import Lifeline
from turnstream.worker.live_list import LiveList
from turnstream.worker.rescuer import Rescuer
from turnstream.worker.runner import Runner
from turnstream.worker.signals import SignalListener
from turnstream.worker.watch import Watch
from turnstream.worker.webhooks import Courier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.shared.agents.config import Agents
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.session.queue import Job
    from turnstream.shared.settings import Settings
    from turnstream.worker.agents.registry import StandIn

log = structlog.get_logger(__name__)

# How long a turn retries what it asks of a broker that is away: without end. It has nothing better to do, and an attempt
# that it gave up would look like that of a dead worker. Where others see the broker its lease lapses, and the log refuses
# what comes then.
TURN_RETRY_SECONDS = math.inf

# How long turns may take to give themselves back when the drain is over.
RELEASE_SECONDS = 10.0


# Between two tries to take a turn over.
TAKE_OVER_SECONDS = 0.1


class WorkerProcess:
    """Runs turns until it is told to stop.

    Duties:
        1. claim and run launches (`ArqWorker`, `Runner`), hear doorbell and control (`SignalListener`);
        2. keep leases (`Leases`), and notice those that others lost (`Rescuer`), and who was killed (`Watch`, `Lifeline`);
        3. on `stop`: claim nothing more, let turns finish for a while, give the rest back.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        agents: Agents,
        siblings: Siblings | None = None,
        stand_in: StandIn | None = None,
    ) -> None:
        """Build everything; nothing is connected yet. ``stand_in``: see `registry.build`.

        Raises:
            ConfigurationError: an agent cannot be built; the text names it.
        """
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        metrics.owners.most = settings.metrics_owners
        self._broker = broker
        tasks = Tasks(broker.sessions, settings)
        launches = LaunchQueue(broker.primary)
        ender = Ender(tasks, Log(broker.sessions), launches, broker.primary)
        self._doorbell = asyncio.Event()
        self.leases = Leases(tasks, settings)
        self._rescuer = Rescuer(ender, settings)
        self._agents = registry.build(agents, stand_in)
        self.gate = ModelGate(
            ModelStates(broker.primary, settings.lease_ms).retrying(TURN_RETRY_SECONDS),
            agents.limits,
            registry.model_names(self._agents),
        )
        self._watch = Watch(broker.primary, self._rescuer, settings)
        self._lifeline = Lifeline(broker.primary, self.id, lambda: self._arq.tasks, self._watch.disturbed)
        self._canceller = ResponseCanceller(registry.with_background(self._agents), broker.primary)
        self._listener = SignalListener(
            broker.primary,
            self.leases,
            self._doorbell,
            self._offered,
            self._canceller.cancel,
            self.gate.noted,
            self._lifeline,
            self._watch.rang,
            self._ordered,
        )
        self._versions = AgentVersions(versions(agents), self._served_by_others)
        self.budget = Budget(settings.worker_max_bytes, self._doorbell.set)
        runner = Runner(
            self.id,
            ender.retrying(TURN_RETRY_SECONDS),
            self.leases,
            self._agents,
            self.budget,
            settings,
            self._rescuer.look,
            self._versions,
            self.gate,
            self._canceller.cancel,
        )
        self._arq = ArqWorker(
            broker.primary,
            launches,
            runner.run_task,
            max_jobs=settings.max_jobs,
            budget=self.budget,
            owner_share=settings.owner_share,
            # A worker that is lost at once is noticed when its lease is over, like any other.
            look_ms=min(LAUNCH_GRACE_MS, settings.lease_ms),
            doorbell=self._doorbell,
            on_trouble=self._rescuer.outages.trouble,
            retiring=settings.retiring,
            lifeline=self._lifeline,
        )
        self._presence = Presence(
            broker.primary, keys.WORKERS, self.id, self._tell, self._rescuer.outages.trouble
        )
        self._live_list = LiveList(broker)
        self._storage = ender.storage
        self._courier = Courier(broker.primary, tasks, settings)
        self._stopping = asyncio.Event()
        self._drain_until = 0.0
        self._draining: asyncio.Timeout | None = None
        self.ready = self._listener.listening
        self.status = Status(settings, siblings or Siblings(), self._gauges, self._can_work)

    def stop(self, seconds: float | None = None) -> None:
        """Begin to drain, or change how long that may take from now on; `run` returns when it is done.

        Args:
            seconds: the time that running turns have to end; ``drain_seconds`` of the settings by default.
        """
        wait = self._settings.drain_seconds if seconds is None else seconds
        self._drain_until = asyncio.get_running_loop().time() + wait
        self._stopping.set()
        self._presence.early()
        if self._draining is not None and not self._draining.expired():
            self._draining.reschedule(self._drain_until)

    @property
    def jobs(self) -> list[str]:
        """The ids of the launches that run here."""
        return list(self._arq.tasks)

    async def take_over(self, process: str, jobs: Sequence[str]) -> None:
        """Take over what another worker held that was killed; for an embedded broker, which cannot tell (`Watch`)."""
        left = list(jobs)
        while left:
            until = asyncio.get_running_loop().time() + COMMAND_SECONDS
            settled = await self._rescuer.take_over(process, left, until)
            left = [job for job in left if job not in settled]
            if left:
                # Not before it has been silent for a while.
                await asyncio.sleep(TAKE_OVER_SECONDS)

    def _ordered(self, message: bytes) -> None:
        """Do what an operator asks of this worker."""
        order = ordered(message, self.id)
        if order is None:
            return
        log.info("worker.ordered", worker=self.id, order=order.value)
        if order is Order.DRAIN:
            self.stop()
            return
        self._arq.paused = order is Order.PAUSE
        self._doorbell.set()
        self._presence.early()

    async def run(self) -> None:
        """Run until `stop`.

        Raises:
            ConfigurationError: the broker refuses us.
        """
        async with registry.opened(self._agents), self.status.served():
            await self._run()

    async def _run(self) -> None:
        log.info("worker.started", worker=self.id, max_jobs=self._settings.max_jobs)
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await self._be_admitted(stopping)
            if not stopping.done():
                await self._work(stopping)
        finally:
            stopping.cancel()
            log.info("worker.stopped", worker=self.id)

    async def _be_admitted(self, stopping: asyncio.Task[bool]) -> None:
        """Wait for the broker, which may not be there yet; nothing else is asked of it before."""
        admission = asyncio.create_task(self._broker.admit(keys.WORKERS, self.id), name="admission")
        try:
            await asyncio.wait([admission, stopping], return_when=asyncio.FIRST_COMPLETED)
            if admission.done():
                admission.result()
        finally:
            admission.cancel()
            await asyncio.gather(admission, return_exceptions=True)

    async def _work(self, stopping: asyncio.Task[bool]) -> None:
        background = [
            asyncio.create_task(each, name=name)
            for name, each in (
                ("leases", self.leases.keep()),
                ("listener", self._listener.listen()),
                ("lifeline", self._lifeline.tend()),
                ("rescuer", self._rescuer.watch()),
                ("watch", self._watch.tend()),
                ("presence", self._presence.show()),
                ("models", self.gate.tend()),
                ("live list", self._live_list.tend()),
                ("webhooks", self._courier.tend()),
                ("storage", self._storage.tend(lambda: (held.attempt.ref.keys for held in self.leases))),
            )
        ]
        claiming = asyncio.create_task(self._arq.main(), name="arq")
        background.append(claiming)
        try:
            # A background task never returns; if one does, that is a defect, and the process must not
            # pretend to live without it.
            done, _ = await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            await self._drain(claiming)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._lifeline.end()
            await self._canceller.close()
            await self.gate.end()
            await self._presence.end()

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        self._arq.pause()
        self.budget.close()
        log.info("worker.draining", worker=self.id, running=len(self.leases))
        # What is being claimed right now has left the queue; it must begin here to be given back.
        await asyncio.wait([claiming], timeout=COMMAND_SECONDS)
        try:
            async with asyncio.timeout_at(self._drain_until) as self._draining:
                await self._arq.idle.wait()
        except TimeoutError:
            for held in self.leases:
                held.cancel(Reason.SHUTDOWN)
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._arq.idle.wait()
            except TimeoutError:
                log.warning("worker.left_turns", worker=self.id, turns=len(self.leases))
        finally:
            self._draining = None

    def _tell(self) -> dict[str, Any]:
        return {
            "running": len(self.leases),
            "max_jobs": self._settings.max_jobs,
            "draining": self._stopping.is_set(),
            "paused": self._arq.paused,
            "retiring": self._settings.retiring,
            "agents": self._versions.mine,
            "models": sorted(self.gate.models),
        }

    async def _served_by_others(self) -> list[dict[str, str]]:
        others = await self._presence.others(TURN_RETRY_SECONDS)
        return [
            sign.agents()
            for sign in others
            if not (sign.value("draining", default=False) or sign.value("paused", default=False))
        ]

    def _offered(self, job: Job, agent: str, version: str) -> None:
        if self._versions.serves(agent, "" if version == ANY_VERSION else version):
            self._arq.take(job)

    def _gauges(self) -> dict[metrics.Gauge, float]:
        return {
            metrics.turns_held: len(self.leases),
            metrics.slots: 0 if self._stopping.is_set() else self._settings.max_jobs,
        }

    async def _can_work(self) -> str:
        """Empty, or why it cannot."""
        if self._stopping.is_set():
            return "shutting_down"
        return "" if self.ready.is_set() and await self._broker.ready() else "broker_away"
