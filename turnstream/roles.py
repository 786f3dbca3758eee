"""The scaled form: one role a process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from turnstream.process import on_signals
from turnstream.shared import tracing
from turnstream.shared.agents import config
from turnstream.shared.broker.client import Broker

if TYPE_CHECKING:
    from turnstream.shared.settings import Settings
    from turnstream.shared.siblings import Siblings


# Net new objects before a young collection, young ones before a middle one, middle ones before a full one.
# By default a process with thousands of connections spends a third of its time looking through them in vain:
# they are freed by their reference counts, and what is cyclic (errors, mostly) can wait.
_COLLECT_AFTER = (10_000, 10, 10)


def _collect_rarely() -> None:
    """Leave what was loaded out of every collection, and collect rarely; to be called once all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


async def run_api(settings: Settings, siblings: Siblings) -> None:
    """One front end, until SIGTERM or SIGINT."""
    from turnstream.api.server import FrontEnd

    tracing.start(settings, "api")
    _collect_rarely()
    try:
        front_end = FrontEnd(settings, config.load(settings.agents), siblings=siblings)
        on_signals(front_end.stop)
        async with siblings.linked(front_end.stop):
            await front_end.serve()
    finally:
        tracing.stop()


async def run_worker(settings: Settings, siblings: Siblings) -> None:
    """One worker; SIGTERM or SIGINT drains it."""
    from turnstream.worker.worker import WorkerProcess

    tracing.start(settings, "worker")
    broker = Broker(settings)
    # Loads the agents, and the libraries that they need.
    worker = WorkerProcess(settings, broker, config.load(settings.agents), siblings)
    _collect_rarely()
    on_signals(worker.stop)
    try:
        async with siblings.linked(worker.stop):
            await worker.run()
    finally:
        await broker.close()
        tracing.stop()
