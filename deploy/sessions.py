"""The sessions' Redis Cluster of ``make cluster BROKERS=3``: its servers, and how they become one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from deploy.nodes import LOOK_SECONDS, Address, form, settled
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Fewer cannot agree that one of them has failed.
LEAST_PRIMARIES = 3

HOST = "127.0.0.1"


class SessionNodes:
    """Primaries ``sessions-1``…, and a replica of each, ``replica-1``….

    Attributes:
        addresses: where each listens, by its name. The nodes remember each other's, so a folder that is kept keeps them.
    """

    def __init__(self, folder: Path, primaries: int, password: str) -> None:
        """``password``: of the user ``server``."""
        self._folder = folder
        self._password = password
        self._primaries = primaries
        numbers = range(1, primaries + 1)
        names = [f"{role}-{number}" for role in ("sessions", "replica") for number in numbers]
        self.addresses = {name: self._address(name) for name in names}

    def _address(self, name: str) -> Address:
        home = self.home(name)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = home / "ports"
        if not kept.exists():
            kept.write_text(f"{free_port()} {free_port()}")
        port, bus = map(int, kept.read_text().split())
        return Address(HOST, port, bus)

    def home(self, name: str) -> Path:
        """A node's folder."""
        return self._folder / name

    @property
    def url(self) -> str:
        """What the settings' URL has after the user."""
        return ",".join(f"{each.host}:{each.port}" for each in self.addresses.values())

    def options(self, name: str) -> dict[str, str]:
        """What a node is started with beside what every server is."""
        secret = self.home(name) / "server.conf"
        secret.write_text(f"masteruser server\nmasterauth {self._password}\n")
        secret.chmod(0o600)
        return {"cluster-port": str(self.addresses[name].bus), "include": str(secret)}

    async def join(self) -> None:
        """Wait until all answer, make them a cluster unless they remember that they are one, and wait until it can be used."""
        nodes = list(self.addresses.values())
        async with Asker(self._password) as asker:
            for node in nodes:
                while not await asker.answers(node):
                    await asyncio.sleep(LOOK_SECONDS)
            if "cluster_slots_assigned:0" in await asker(nodes[0], "CLUSTER", "INFO"):
                primaries, replicas = nodes[: self._primaries], nodes[self._primaries :]
                pairs: Mapping[Address, list[Address]] = {
                    primary: [replica] for primary, replica in zip(primaries, replicas, strict=True)
                }
                await form(pairs, asker)
            while not await settled(nodes, self._primaries, asker):
                await asyncio.sleep(LOOK_SECONDS)


class Asker:
    """Asks nodes as the user ``server``."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._clients: dict[Address, Redis] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._clients.values():
            await each.aclose()

    async def __call__(self, node: Address, *words: str | int) -> Any:
        """The reply of a node to a command, as text."""
        client = self._clients.get(node)
        if client is None:
            client = self._clients[node] = Redis(
                host=node.host,
                port=node.port,
                username="server",
                password=self._password,
                decode_responses=True,
                socket_timeout=5,
                lib_name="",
                lib_version="",
            )
            client.response_callbacks.clear()
        return await client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def answers(self, node: Address) -> bool:
        """Whether a node does, and has read its data."""
        try:
            return bool(await self(node, "PING"))
        except (RedisError, OSError):
            return False
