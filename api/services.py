"""What the routes of one front end work with."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.auth import Auth
from api.body import Bodies
from api.hub import Hub
from api.limits import Limiter
from api.overview import Overview
from shared.api_keys import ApiKeys
from shared.aside import Aside
from shared.caps import Caps
from shared.endings import Ender
from shared.launches import Launches
from shared.log import Log
from shared.memory import Memory
from shared.storage import Storage
from shared.task_list import TaskList
from shared.tasks import Tasks

if TYPE_CHECKING:
    from shared.agents import Agents
    from shared.broker import Broker
    from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """One of each, shared by all routes; ``name`` is what operators know this front end by."""

    settings: Settings
    agents: Agents
    broker: Broker
    tasks: Tasks
    log: Log
    launches: Launches
    ender: Ender
    hub: Hub
    api_keys: ApiKeys
    auth: Auth
    task_list: TaskList
    overview: Overview
    limiter: Limiter
    aside: Aside
    bodies: Bodies
    storage: Storage
    name: str

    @classmethod
    def make(cls, settings: Settings, agents: Agents, broker: Broker) -> Services:
        """Bind everything to a broker; nothing is connected yet."""
        tasks = Tasks(broker.sessions, settings, notes=broker.sessions is broker.primary)
        log = Log(broker.sessions)
        launches = Launches(broker.primary)
        api_keys = ApiKeys(broker.primary)
        task_list = TaskList(broker)
        hub = Hub(
            broker.sessions,
            log,
            most=settings.max_followers,
            most_per_owner=settings.max_followers_per_owner,
        )
        aside = Aside()
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        return cls(
            settings=settings,
            agents=agents,
            broker=broker,
            tasks=tasks,
            log=log,
            launches=launches,
            ender=Ender(tasks, log, launches, broker.primary),
            hub=hub,
            api_keys=api_keys,
            auth=Auth(api_keys, agents),
            task_list=task_list,
            overview=Overview(broker, task_list),
            limiter=Limiter(
                settings,
                Caps(broker.primary, broker.sessions),
                launches,
                hub,
                [Memory(redis) for redis in dict.fromkeys((broker.primary, broker.sessions))],
                name,
            ),
            aside=aside,
            bodies=Bodies(settings, aside),
            storage=Storage(broker.primary, broker.sessions),
            name=name,
        )
