"""A deployment for one test: front end, workers and the embedded broker, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import secrets
import threading
import uuid
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from fakeredis import FakeServer
from pydantic import SecretStr

from turnstream.api.server import FrontEnd
from turnstream.client.sync import Client
from turnstream.shared.agents import config
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.task_list import TaskList
from turnstream.shared.settings import MEMORY_URL, Settings
from turnstream.testing.record import Record, record_of
from turnstream.testing.script import Script, Scripted
from turnstream.testing.turn import PATIENCE_SECONDS, Turn
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

    from turnstream.client.session import Said
    from turnstream.testing.script import Reply

T = TypeVar("T")

OWNER = "test"


class _Settings(Settings):
    """The settings as a test gives them: the developer's environment has no say in it."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the base's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class _Link:
    """A worker's way to the embedded broker, which can be cut. All else is the broker's."""

    def __init__(self, server: FakeServer) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "connected", True)

    def cut(self) -> None:
        """Let nothing through any more."""
        object.__setattr__(self, "connected", False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._server, name, value)


class _Worker:
    """One worker, which can be killed."""

    def __init__(self, served: Served, server: FakeServer, settings: Settings, agents: config.Agents) -> None:
        self._link = _Link(server)
        self._broker = Broker(settings, self._link)
        stand_in = Scripted(served.scripts, lambda: served.replace(self))
        self.process = WorkerProcess(settings, self._broker, agents, stand_in=stand_in)
        self._running = asyncio.create_task(self.process.run(), name="worker")

    async def ready(self) -> None:
        """Wait until it claims turns.

        Raises:
            ConfigurationError: it cannot.
        """
        began = asyncio.create_task(self.process.ready.wait())
        await asyncio.wait({began, self._running}, return_when=asyncio.FIRST_COMPLETED)
        began.cancel()
        if self._running.done():
            self._running.result()

    def kill(self) -> list[str]:
        """End it as SIGKILL would: nothing that it still does reaches the broker. Returns the jobs that it held."""
        jobs = self.process.jobs
        self._link.cut()
        for held in self.process.leases:
            held.cancel(Reason.LEASE_LOST)
        self._running.cancel()
        return jobs

    async def close(self) -> None:
        """End it in order, if it was not killed."""
        if not self._running.cancelled() and not self._running.cancelling():
            self.process.stop(0)
        await asyncio.gather(self._running, return_exceptions=True)
        await self._broker.close()


class Served:
    """Agents that are served, and the scripts that their models follow. Make it by `serve`, or use the fixture.

    Its methods are for the test's thread; the deployment runs in another one.

    Attributes:
        url: the front end's address.
        scripts: agent → its model's script.
    """

    url: str

    def __init__(self, agents: config.Agents, **given: Any) -> None:
        """``given`` are settings: ``heartbeat_seconds=1``."""
        self._agents = agents
        mine = agents.of_the_file()
        self._default = mine[0].name if mine else config.DEMO
        self.scripts = {spec.name: Script(spec.name) for spec in agents}
        self._keys = {spec.name: make_token() for spec in agents}
        self._settings = _Settings(
            **{
                "redis_url": SecretStr(MEMORY_URL),
                "port": 0,
                "admin_key": SecretStr("sk-" + secrets.token_hex(16)),
                "debug": True,
                **given,
            }
        )
        self._server = FakeServer()
        self._clients: dict[str, Client] = {}
        self._workers: list[_Worker] = []
        self._replacing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnstream-testing", daemon=True)

    # ── for tests ──

    def script(self, *replies: Reply, agent: str = "") -> None:
        """Have an agent's model reply so in each turn from now on: with the first when the turn begins, and so on.

        Args:
            replies: texts, calls (`turnstream.testing.calls`), objects for an ``output_schema`` or a critic's verdict, errors to
                raise, functions of `Seen` that make one of these, and `turnstream.testing.crash` of a text or calls.
            agent: whose model; left out, the first of the file. Sub-agents and critics have models of their own.

        Raises:
            ValueError: there is no such agent.
        """
        name = self._named(agent)
        self.scripts[name].write(replies)

    def client(self, agent: str = "") -> Client:
        """A client with a key for the agent (left out: the first of the file): always the same one, with its functions.

        Raises:
            ValueError: there is no such agent.
        """
        name = self._named(agent)
        if name not in self._clients:
            self._clients[name] = Client(self.url, self._keys[name])
        return self._clients[name]

    def key(self, agent: str = "") -> str:
        """A chat key for the agent, for clients of the test's own: ``AsyncClient(served.url, served.key())``.

        Raises:
            ValueError: there is no such agent.
        """
        return self._keys[self._named(agent)]

    def begin(self, said: Said, *, session: str | None = None, agent: str = "", **settings: Any) -> Turn:
        """Begin a turn, and return as soon as the server has it.

        Args:
            said: what the user says.
            session: the session to go on with; left out, a new one.
            agent: who is spoken to; left out, the first of the file.
            settings: other fields of the request, as `turnstream.Client.chat` takes them.

        Raises:
            ValueError: there is no such agent, or a setting cannot be.
            ClientError: the server refuses the turn.
        """
        conversation = self.client(agent).session(session)
        reply = conversation.chat(said, id=f"turn-{uuid.uuid4().hex}", **settings)
        next(iter(reply))
        return Turn(reply, self._look)

    def turn(self, said: Said, *, session: str | None = None, agent: str = "", **settings: Any) -> Turn:
        """A whole turn: `begin`, and then `Turn.end`, with the errors of both."""
        return self.begin(said, session=session, agent=agent, **settings).end()

    def kill_worker(self) -> None:
        """Kill the worker, as SIGKILL would; what it held goes on at another one. For the middle of a reply see `crash`.

        Returns when the other one has its turns.
        """

        async def killed() -> None:
            await self._replace(self._workers[-1])

        self._run(killed(), "a worker to be replaced")

    # ── its life ──

    def start(self) -> None:
        """Start all of it; returns when it serves.

        Raises:
            ConfigurationError: an agent is wrong; named with its line.
        """
        self._thread.start()
        try:
            self._run(self._start(), "the deployment to start")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all of it.

        Raises:
            AssertionError: a crash that stands in a script did not happen.
        """
        for client in self._clients.values():
            client.close()
        try:
            self._run(self._close(), "the deployment to end")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def check(self) -> None:
        """See to it that what was scripted to happen did.

        Raises:
            AssertionError: a crash did not happen.
        """
        for name, script in self.scripts.items():
            if not all(each.happened for each in script.crashes):
                raise AssertionError(
                    f"the script of {name!r} has a crash that did not happen: its reply was not asked for"
                )

    def replace(self, worker: _Worker) -> None:
        """Kill a worker, from within its own work."""
        task = self._loop.create_task(self._replace(worker), name="replacing")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    # ── within ──

    def _named(self, agent: str) -> str:
        if agent and agent not in self._keys:
            raise ValueError(f"there is no agent {agent!r}; there are {', '.join(self._keys)}")
        return agent or self._default

    async def _start(self) -> None:
        self._broker = Broker(self._settings, self._server)
        keys = ApiKeys(self._broker.primary)
        for agent, token in self._keys.items():
            await keys.register(token, owner=OWNER, agent=agent)
        worker = self._new_worker()
        await worker.ready()
        self._front_end = FrontEnd(self._settings, self._agents, self._broker)
        self.url = f"http://127.0.0.1:{self._front_end.bind()}"
        self._serving = asyncio.create_task(self._front_end.serve(), name="front end")
        await self._front_end.started.wait()

    def _new_worker(self) -> _Worker:
        worker = _Worker(self, self._server, self._settings, self._agents)
        self._workers.append(worker)
        return worker

    async def _replace(self, worker: _Worker) -> None:
        other = self._new_worker()
        await other.ready()
        jobs = worker.kill()
        await other.process.take_over(worker.process.id, jobs)

    async def _close(self) -> None:
        for each in self._replacing:
            each.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for worker in self._workers:
            await worker.close()
        if hasattr(self, "_serving"):
            self._front_end.stop()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._broker.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _look(self, session: str, task: str) -> tuple[dict[str, Any], Record]:
        """The task as operators see it, and what its log says."""

        async def look() -> tuple[dict[str, Any], Record]:
            ref = TaskRef(OWNER, session, task)
            (row,) = await TaskList(self._broker).rows([ref])
            log = Log(self._broker.sessions)
            meta = await log.meta(ref.keys)
            entries = (
                []
                if meta is None
                else [each async for each in log.all_after(ref.keys, Cursor(meta.epoch, 0))]
            )
            return row, record_of(each for each in entries if each.task == task)

        return self._run(look(), "the broker")

    def _run(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """Run a coroutine in the deployment.

        Raises:
            AssertionError: it takes longer than `PATIENCE_SECONDS`.
        """
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(PATIENCE_SECONDS)
        except NotInTime:
            if future.done():
                raise
            future.cancel()
            raise AssertionError(f"waited {PATIENCE_SECONDS:g} s in vain for {what}") from None


@contextmanager
def serve(agents: str | Path | None = None, **settings: Any) -> Iterator[Served]:
    """Serve the agents of a file in this process, on models that follow scripts; without a file, the demo agents.

    Args:
        agents: path of the agents file.
        settings: settings of the deployment, by their names without prefix and in small letters. Nothing is read from the environment.

    Raises:
        ConfigurationError: the file, or an agent, is wrong; each mistake with its line.
        AssertionError: at the end, if a crash that was scripted did not happen.
    """
    if not structlog.is_configured():
        # The default draws the values of local variables, which takes long.
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.dev.ConsoleRenderer(
                    colors=False, exception_formatter=structlog.dev.plain_traceback
                ),
            ]
        )
    served = Served(config.load(None if agents is None else Path(agents)), **settings)
    served.start()
    try:
        yield served
    except BaseException:
        served.close()
        raise
    served.close()
    served.check()
