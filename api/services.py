"""What the routes of one front end work with."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnstream.api.access.auth import Auth
from turnstream.api.access.limits import Limiter
from turnstream.api.http.body import Bodies
from turnstream.api.streaming.hub import Hub
from turnstream.api.streaming.leaving import Leaving
from turnstream.shared import metrics
from turnstream.shared.api_keys import ApiKeys
from turnstream.shared.broker.memory import Memory
from turnstream.shared.model_states import ModelStates
from turnstream.shared.offload import ThreadOffload
from turnstream.shared.session.agent_tasks import AgentTasks
from turnstream.shared.session.deployment_stats import DeploymentStats
from turnstream.shared.session.endings import END_RETRY_SECONDS, Ender
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.fork import Forks
from turnstream.shared.session.owner_limits import OwnerLimits
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.session_list import SessionList
from turnstream.shared.session.storage import Storage
from turnstream.shared.session.task_list import TaskList
from turnstream.shared.session.tasks import Tasks
from turnstream.shared.session.webhooks import Webhooks
from turnstream.shared.siblings import Siblings

if TYPE_CHECKING:
    from turnstream.shared.agents.config import Agents
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.settings import Settings


# How long a request retries what it asks of a broker that is away, before its client gets a 503 and comes back.
RETRY_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Services:
    """One of each, shared by all routes; ``name`` is what operators know this front end by."""

    settings: Settings
    agents: Agents
    broker: Broker
    tasks: Tasks
    log: Log
    launches: LaunchQueue
    ender: Ender
    hub: Hub
    api_keys: ApiKeys
    auth: Auth
    task_list: TaskList
    agent_tasks: AgentTasks
    webhooks: Webhooks
    deployment_stats: DeploymentStats
    model_states: ModelStates
    limiter: Limiter
    offload: ThreadOffload
    bodies: Bodies
    storage: Storage
    session_list: SessionList
    leaving: Leaving
    forks: Forks
    siblings: Siblings
    name: str

    @classmethod
    def make(
        cls,
        settings: Settings,
        agents: Agents,
        broker: Broker,
        retry_seconds: float = RETRY_SECONDS,
        siblings: Siblings | None = None,
    ) -> Services:
        """Bind everything to a broker; nothing is connected yet."""
        broker = broker.retrying(retry_seconds)
        metrics.owners.most = settings.metrics_owners
        offload = ThreadOffload()
        tasks = Tasks(broker.sessions, settings, notes=broker.sessions is broker.primary, offload=offload)
        log = Log(broker.sessions)
        launches = LaunchQueue(broker.primary)
        api_keys = ApiKeys(broker.primary)
        task_list = TaskList(broker)
        hub = Hub(
            broker.once.sessions,
            log,
            most=settings.max_followers,
            most_per_owner=settings.max_followers_per_owner,
        )
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        ender = Ender(tasks, log, launches, broker.primary).retrying(END_RETRY_SECONDS)
        return cls(
            settings=settings,
            agents=agents,
            broker=broker,
            tasks=tasks,
            log=log,
            launches=launches,
            ender=ender,
            hub=hub,
            api_keys=api_keys,
            auth=Auth(api_keys, agents),
            task_list=task_list,
            agent_tasks=AgentTasks(broker.primary, task_list, settings.ttl_ms),
            webhooks=Webhooks(broker.primary, tasks),
            deployment_stats=DeploymentStats(broker, task_list),
            model_states=ModelStates(broker.primary, settings.lease_ms),
            limiter=Limiter(
                settings,
                OwnerLimits(broker.primary, broker.sessions),
                launches,
                hub,
                [Memory(redis) for redis in dict.fromkeys((broker.once.primary, broker.once.sessions))],
                name,
            ),
            offload=offload,
            bodies=Bodies(settings, offload),
            storage=Storage(broker.primary, broker.sessions),
            session_list=SessionList(broker.primary, broker.sessions, log, tasks, settings.ttl_ms),
            leaving=Leaving(broker.primary, tasks, log, ender),
            forks=Forks(tasks, log),
            siblings=siblings or Siblings(),
            name=name,
        )

    async def models(self) -> set[str]:
        """The names of the models of the agents file, and of those that workers' code brings."""
        return self.agents.models.union(*await self.deployment_stats.models())
