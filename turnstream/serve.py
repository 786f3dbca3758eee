"""``turnstream serve``: front end, worker and, unless one is named, the broker in one process."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from turnstream.api.server import FrontEnd
from turnstream.dev_keys import FOLDER, is_loopback, with_keys
from turnstream.process import on_signals
from turnstream.reloading import edits, forget_modules
from turnstream.shared import tracing
from turnstream.shared.agents import config
from turnstream.shared.agents.config import DEMO
from turnstream.shared.broker.client import Broker
from turnstream.shared.errors import ConfigurationError
from turnstream.state import State
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from turnstream.shared.agents.config import Agents
    from turnstream.shared.settings import Settings
    from turnstream.shared.siblings import Siblings

log = structlog.get_logger(__name__)

# What running turns get at the end of the process where the broker ends with it: the next start takes them over.
EMBEDDED_DRAIN_SECONDS = 1.0


async def serve(
    settings: Settings, siblings: Siblings, *, reload: bool = False, open_console: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT; running turns get their time to finish.

    With ``reload`` an edit of the agents file, or of code beside it, takes effect at once: turns that run have
    ``drain_seconds`` to end as they began, sessions and connections stay. ``open_console``: in the developer's browser.

    Raises:
        ConfigurationError: a setting or an agent is wrong, or the port is taken.
    """
    settings = _debugging(with_keys(settings))
    configured = config.load(settings.agents)
    tracing.start(settings, "serve")
    state = State(FOLDER) if settings.embedded else None
    broker = Broker(settings, state.server if state else None)
    try:
        await _serve(settings, siblings, configured, broker, state, reload=reload, open_console=open_console)
    finally:
        await broker.close()
        if state is not None:
            state.close()
        tracing.stop()


async def _serve(
    settings: Settings,
    siblings: Siblings,
    configured: Agents,
    broker: Broker,
    state: State | None,
    *,
    reload: bool,
    open_console: bool,
) -> None:
    workers = _Workers(settings, broker, siblings)
    workers.begin(configured)
    front_end = FrontEnd(settings, configured, broker, siblings)
    port = front_end.bind()
    beside = []
    if not siblings.supervised:
        kept = state is None or state.kept
        beside.append(
            _announce(settings, configured, front_end, workers, port, kept=kept, open_console=open_console)
        )
    if reload and settings.agents is not None:
        beside.append(_reload(settings.agents, configured, workers))
    if state is not None and state.kept:
        beside.append(state.tend(lambda: len(workers.newest.leases) > 0))
    stopping = asyncio.Event()
    on_signals(stopping.set)
    async with siblings.linked(stopping.set):
        await _until(stopping, front_end, workers, beside, alone=not siblings.supervised)


async def _until(
    stopping: asyncio.Event,
    front_end: FrontEnd,
    workers: _Workers,
    beside: list[Coroutine[None, None, None]],
    *,
    alone: bool,
) -> None:
    """Serve until ``stopping``, and end in order."""
    serving = asyncio.create_task(front_end.serve(), name="front end")
    working = asyncio.create_task(workers.run(), name="workers")
    stopped = asyncio.create_task(stopping.wait(), name="stopping")
    tasks = [asyncio.create_task(each) for each in beside]
    try:
        await asyncio.wait([serving, working, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        if alone:
            # The workers first: turns that finish now still reach their followers.
            front_end.refuse()
        else:
            # The other processes take requests, which must not come here to be refused.
            front_end.stop()
        workers.stop()
        await asyncio.wait([working])
        front_end.stop()
        results = await asyncio.gather(serving, working, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


class _Workers:
    """The worker; after a reload also its predecessors, until their turns have ended."""

    def __init__(self, settings: Settings, broker: Broker, siblings: Siblings) -> None:
        self._settings = settings
        self._broker = broker
        self._siblings = siblings
        self._running: dict[asyncio.Task[None], WorkerProcess] = {}
        self._changed = asyncio.Event()
        self.newest: WorkerProcess

    def begin(self, configured: Agents) -> None:
        """Start a worker with these agents; the one before claims nothing more.

        Raises:
            ConfigurationError: an agent cannot be built; the one before goes on.
        """
        worker = WorkerProcess(self._settings, self._broker, configured, self._siblings)
        if self._running:
            self.newest.stop()
        self.newest = worker
        # Its port for metrics is free again only when the one before has ended.
        self._settings = self._settings.model_copy(update={"metrics_port": None})
        self._running[asyncio.create_task(worker.run(), name="worker")] = worker
        self._changed.set()

    def stop(self) -> None:
        """Have all of them drain before the process ends; `run` returns when that is done."""
        seconds = self._settings.drain_seconds
        if self._settings.embedded:
            seconds = min(seconds, EMBEDDED_DRAIN_SECONDS)
        for worker in self._running.values():
            worker.stop(seconds)

    async def run(self) -> None:
        """Return when the last one has ended.

        Raises:
            ConfigurationError: the broker refuses us.
        """
        while self._running:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            done, _ = await asyncio.wait([changed, *self._running], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            for task in done - {changed}:
                del self._running[task]  # type: ignore[arg-type]
                task.result()


async def _reload(path: Path, configured: Agents, workers: _Workers) -> None:
    """Take edits over as they come; one that is wrong is printed, and changes nothing."""
    folder = configured.folder or path.parent
    async for names in edits(folder):
        forget_modules(folder)
        try:
            found = config.load(path)
            workers.begin(found)
        except ConfigurationError as error:
            log.warning("serve.not_reloaded", edited=names)
            sys.stderr.write(f"{error.public_text}\n")
            sys.stderr.flush()
            continue
        except Exception:
            # Whatever it was, the next edit may mend it.
            log.exception("serve.not_reloaded", edited=names)
            continue
        configured.become(found)
        log.info("serve.reloaded", edited=names)


def _debugging(settings: Settings) -> Settings:
    """Debugging unless the settings decide: with the embedded broker, where nobody else can reach it."""
    if settings.debug is None:
        return settings.model_copy(update={"debug": settings.embedded and is_loopback(settings.host)})
    return settings


async def _announce(
    settings: Settings,
    agents: Agents,
    front_end: FrontEnd,
    workers: _Workers,
    port: int,
    *,
    kept: bool,
    open_console: bool,
) -> None:
    """Print how to begin, once everything answers."""
    await front_end.started.wait()
    await workers.newest.ready.wait()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{port}"
    sys.stdout.write(welcome(settings, agents, url, kept=kept))
    sys.stdout.flush()
    if open_console:
        await asyncio.to_thread(webbrowser.open, _console(settings, url))


def _console(settings: Settings, url: str) -> str:
    """The console's link, which brings the chat key."""
    key = f"#key={settings.dev_key.get_secret_value()}" if settings.dev_key is not None else ""
    return f"{url}/console{key}"


def welcome(settings: Settings, agents: Agents, url: str, *, kept: bool) -> str:
    """What `serve` prints when it is ready: where it is, the keys, and lines to paste. ``kept``: sessions outlive the process."""
    if settings.dev_key is None:
        return f"""
Turnstream is ready at {url}

  console     {url}/console

Sessions and keys are kept at TURNSTREAM_REDIS_URL, so no key was made up. Make one:

  turnstream keys create --owner NAME --agent {settings.dev_agent}
  turnstream keys create --owner NAME --scope admin

Next: docs/agents.md, docs/operations.md. Ctrl-C ends it.

"""
    key = settings.dev_key.get_secret_value()
    admin = settings.admin_key.get_secret_value() if settings.admin_key else "none: set TURNSTREAM_ADMIN_KEY"
    spec = agents.get(settings.dev_agent)
    demo = spec is not None and spec.model == DEMO
    text = "/tokens 20 100" if demo else "hello"
    # The same id with another text is refused: each start prints its own.
    turn = f"turn-{secrets.token_hex(3)}"
    more = ""
    if demo:
        # The demo's own tools; of another agent on the demo's model only its author knows the tools.
        mine = "/tool add 1 2, /call NAME {}, /approve, /dispatch, /reflect"
        theirs = "/tool NAME A B, /call NAME JSON"
        more = (
            f"Other things to say: /think, {mine if settings.dev_agent == DEMO else theirs}, or anything.\n"
        )
    place = "at TURNSTREAM_REDIS_URL"
    if settings.embedded:
        place = f"in {FOLDER}/" if kept else "in this process: gone when it ends"
    return f"""
Turnstream is ready at {url}

  chat key    {key}   (agent: {settings.dev_agent})
  admin key   {admin}
  console     {_console(settings, url)}

Try it:

  TURNSTREAM_KEY={key} {_command()} chat --url {url}

  curl -N {url}/process -H 'Authorization: Bearer {key}' \\
       -d '{{"session_id": "s1", "id": "{turn}", "input": [{{"role": "user", "content": "{text}"}}]}}'

{more}Sessions are kept {place}. Next: docs/agents.md. Ctrl-C ends it.

"""


def _command() -> str:
    """How this program is called from a shell: by its name where PATH has it, else by its path."""
    if shutil.which("turnstream"):
        return "turnstream"
    beside = Path(sys.executable).with_name("turnstream")
    return str(beside) if beside.exists() else f"{sys.executable} -m turnstream"
