"""``turnstream serve``: front end, worker and, unless one is named, the broker in one process."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from pydantic import SecretStr

from api.server import FrontEnd
from shared import agents, tracing
from shared.api_keys import make_token
from shared.broker import Broker
from worker.process import WorkerProcess

if TYPE_CHECKING:
    from shared.settings import Settings


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; running turns get their time to finish.

    Raises:
        ConfigurationError: a setting or an agent is wrong, or the port is taken.
    """
    settings = settings.model_copy(
        update={
            "dev_key": settings.dev_key or SecretStr(make_token()),
            "admin_key": settings.admin_key or SecretStr(make_token()),
        }
    )
    configured = agents.load(settings.agents)
    tracing.start(settings, "serve")
    broker = Broker(settings)
    worker = WorkerProcess(settings, broker, configured)
    front_end = FrontEnd(settings, configured, broker, signals=False)
    port = front_end.bind()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping.set)
    serving = asyncio.create_task(front_end.serve(), name="front end")
    working = asyncio.create_task(worker.run(), name="worker")
    stopped = asyncio.create_task(stopping.wait(), name="stopping")
    started = asyncio.create_task(_announce(settings, front_end, worker, port), name="announce")
    try:
        await asyncio.wait([serving, working, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        # The worker first: turns that finish now still reach their followers.
        worker.stop()
        await asyncio.wait([working])
        front_end.stop()
        for task in (stopped, started):
            task.cancel()
        results = await asyncio.gather(serving, working, return_exceptions=True)
        await broker.close()
        tracing.stop()
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _announce(settings: Settings, front_end: FrontEnd, worker: WorkerProcess, port: int) -> None:
    """Say how to begin, once everything answers."""
    await front_end.started.wait()
    await worker.ready.wait()
    key = settings.dev_key.get_secret_value() if settings.dev_key else ""
    admin = settings.admin_key.get_secret_value() if settings.admin_key else ""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    kept = "in this process: gone when it ends" if settings.embedded else "at TURNSTREAM_REDIS_URL"
    sys.stdout.write(
        f"""
Turnstream is ready at {url}

  chat key    {key}   (agent: {settings.dev_agent})
  admin key   {admin}
  console     {url}/console   (chat with the first key, operate with the second)

Try it:

  TURNSTREAM_KEY={key} turnstream chat --url {url}

  curl -N {url}/process -H 'Authorization: Bearer {key}' \\
       -d '{{"session_id": "s1", "id": "turn1", "input": [{{"role": "user", "content": "/tokens 20 100"}}]}}'

Sessions are kept {kept}. Other things to say: /think, /tool add 1 2, /call NAME {{}},
/approve, /dispatch, /reflect, or anything. Next: README.md, docs/internals.md. Ctrl-C ends it.

"""
    )
    sys.stdout.flush()
