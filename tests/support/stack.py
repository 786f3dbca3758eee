"""A whole deployment inside the test's event loop: real HTTP, real arq, the broker of the test's place."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from tests.support.client import Client
from tests.support.logs import WholeLog
from tests.support.waiting import wait_until
from turnstream.api.server import FrontEnd
from turnstream.shared.agents import config
from turnstream.shared.session.tasks import Tasks
from turnstream.worker.worker import WorkerProcess

if TYPE_CHECKING:
    from tests.conftest import Place
    from turnstream.api.streaming.hub import Hub
    from turnstream.shared.agents.config import Agents
    from turnstream.shared.broker.client import Broker
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.settings import Settings


class Stack:
    """Front ends and workers as a test asks for them."""

    def __init__(self, place: Place, configured: Agents | None = None, **given: Any) -> None:
        self.place = place
        self.key = "sk-" + secrets.token_hex(16)
        self.admin = "sk-" + secrets.token_hex(16)
        self.agents = configured or config.load(None)
        self._given = given
        self.broker: Broker = place.connect(self.settings())
        self.log = WholeLog(self.broker.sessions)
        self.tasks = Tasks(self.broker.sessions, self.settings())
        self.workers: list[tuple[WorkerProcess, asyncio.Task[None]]] = []
        self._front_ends: list[tuple[FrontEnd, asyncio.Task[None]]] = []
        self._clients: list[Client] = []

    def settings(self, user: str = "", **more: Any) -> Settings:
        """Settings of one process of this deployment, which is that user at the broker."""
        return self.place.settings(
            dev_key=self.key,
            admin_key=self.admin,
            port=0,
            **{**self.place.credentials(user), **self._given, **more},
        )

    @property
    def hubs(self) -> list[Hub]:
        """The front ends' hubs."""
        return [server.app.state.services.hub for server, _ in self._front_ends]

    async def front_end(self, key: str = "", **more: Any) -> Client:
        """Start another front end; a client of it."""
        settings = self.settings("api", **more)
        server = FrontEnd(settings, self.agents, self.place.connect(settings))
        port = server.bind()
        self._front_ends.append((server, asyncio.create_task(server.serve())))
        await server.started.wait()
        client = self.client(f"http://127.0.0.1:{port}", key)
        # The keys of the settings are registered in the background, so that a front end starts without its broker.
        await wait_until(lambda: _knows_us(client), "the front end to know the test's key")
        return client

    async def stop_front_end(self, client: Client) -> None:
        """End the front end that a client speaks to, as an operator would."""
        for each, task in self._front_ends:
            if client.base_url.endswith(f":{each.bind()}"):
                each.stop()
                await task
                self._front_ends.remove((each, task))
                return

    def client(self, base_url: str, key: str = "") -> Client:
        """A client with another key, or another connection."""
        client = Client(base_url, key or self.key)
        self._clients.append(client)
        return client

    async def worker(self, agents: Agents | None = None, **more: Any) -> WorkerProcess:
        """Start another worker, with other agents than the rest if given."""
        settings = self.settings("worker", **more)
        worker = WorkerProcess(settings, self.place.connect(settings), agents or self.agents)
        self.workers.append((worker, asyncio.create_task(worker.run())))
        await worker.ready.wait()
        return worker

    async def stop_worker(self, worker: WorkerProcess) -> None:
        """Drain one worker."""
        for each, task in self.workers:
            if each is worker:
                worker.stop()
                await task
                self.workers.remove((each, task))
                return

    async def entries(self, session: str, owner: str = "dev") -> list[Entry]:
        """The session's whole log."""
        from turnstream.shared.broker.keys import SessionKeys
        from turnstream.shared.session.entry import Cursor

        keys = SessionKeys(owner, session)
        meta = await self.log.meta(keys)
        assert meta is not None
        return await self.log.read(keys, Cursor(meta.epoch, 0))

    async def status(self, session: str, task: str, owner: str = "dev") -> str:
        """A task's status; empty when there is none."""
        from turnstream.shared.broker.keys import SessionKeys

        return (await self.log.task(SessionKeys(owner, session), task)).get("status", "")

    async def close(self) -> None:
        """Stop everything that was started."""
        for client in self._clients:
            await client.close()
        for worker, _ in self.workers:
            worker.stop()
        await asyncio.gather(*(task for _, task in self.workers))
        for server, _ in self._front_ends:
            server.stop()
        await asyncio.gather(*(task for _, task in self._front_ends))


async def _knows_us(client: Client) -> bool:
    answer = await client.http.get("/liteAgent/v1/history")
    return answer.status_code != 401
