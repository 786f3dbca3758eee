"""The scaled form: one role a process."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from shared import agents
from shared.broker import Broker

if TYPE_CHECKING:
    from shared.settings import Settings


async def run_api(settings: Settings) -> None:
    """One front end, until SIGTERM or SIGINT."""
    from api.server import serve_api

    await serve_api(settings, agents.load(settings.agents))


async def run_worker(settings: Settings) -> None:
    """One worker; SIGTERM or SIGINT drains it."""
    from worker.process import WorkerProcess

    broker = Broker(settings)
    worker = WorkerProcess(settings, broker, agents.load(settings.agents))
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, worker.stop)
    try:
        await worker.run()
    finally:
        await broker.close()
