"""A Redis Cluster made of servers that run: slots, replicas, and waiting until it can be used.

``valkey-cli --cluster`` does the same; the wheel with the server has no such program.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLOTS = 16384

# How often it is looked whether the nodes have come to an agreement.
LOOK_SECONDS = 0.05

# How long they may take: they exchange news about once a second.
AGREE_SECONDS = 60.0


class Ask(Protocol):
    """Sends a command to one node; its reply, as text."""

    async def __call__(self, node: Address, *words: str | int) -> Any:
        """The reply of a node to a command."""


class Address(NamedTuple):
    """Where a node listens: for clients, and for the other nodes."""

    host: str
    port: int
    bus: int


class Known(NamedTuple):
    """A line of ``CLUSTER NODES``: what one node knows of another, or of itself."""

    name: str
    port: int
    flags: frozenset[str]
    primary: str
    linked: bool
    slots: tuple[tuple[int, int], ...]


async def form(replicas_of: Mapping[Address, Sequence[Address]], ask: Ask) -> None:
    """Make a cluster of these primaries, each with its replicas; all are empty, and run with ``cluster-enabled``.

    Raises:
        TimeoutError: they did not agree in time.
    """
    primaries = list(replicas_of)
    nodes = [*primaries, *(each for those in replicas_of.values() for each in those)]
    for number, node in enumerate(primaries):
        first, end = SLOTS * number // len(primaries), SLOTS * (number + 1) // len(primaries)
        await ask(node, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for number, node in enumerate(nodes, 1):
        # Else they all begin with 0, and settle it among themselves one by one.
        await ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number)
    for node in nodes[1:]:
        await ask(nodes[0], "CLUSTER", "MEET", node.host, node.port, node.bus)
    async with asyncio.timeout(AGREE_SECONDS):
        for node in nodes:
            while not await acquainted(node, len(nodes), ask):
                await asyncio.sleep(LOOK_SECONDS)
        for primary, replicas in replicas_of.items():
            name = await ask(primary, "CLUSTER", "MYID")
            for replica in replicas:
                await ask(replica, "CLUSTER", "REPLICATE", name)
        while not await settled(nodes, len(nodes) - len(primaries), ask):
            await asyncio.sleep(LOOK_SECONDS)


async def known(node: Address, ask: Ask) -> list[Known]:
    """All nodes, as one of them knows them."""
    found = []
    for line in str(await ask(node, "CLUSTER", "NODES")).splitlines():
        name, address, flags, primary, _, _, _, link, *slots = line.split()
        held = []
        for each in slots:
            # One that moves just now is `[slot->-node]`; who gives it still has it.
            if not each.startswith("["):
                first, _, last = each.partition("-")
                held.append((int(first), int(last or first)))
        port = int(address.partition("@")[0].rpartition(":")[2])
        kinds = frozenset(flags.split(","))
        found.append(Known(name, port, kinds, primary.strip("-"), link == "connected", tuple(held)))
    return found


async def acquainted(node: Address, count: int, ask: Ask) -> bool:
    """Whether a node is linked to all others."""
    others = await known(node, ask)
    return len(others) == count and all(
        each.linked and not each.flags & {"handshake", "noaddr"} for each in others
    )


async def settled(nodes: Sequence[Address], replicas: int, ask: Ask) -> bool:
    """Whether the cluster can be used, as each of these nodes reports it, and all replicas have their copies."""
    in_sync = 0
    for node in nodes:
        try:
            if "cluster_state:ok" not in await ask(node, "CLUSTER", "INFO"):
                return False
            replication = str(await ask(node, "INFO", "replication")).splitlines()
            others = await known(node, ask)
        except (RedisError, OSError):
            return False
        if sum("slave" in each.flags for each in others) < replicas:
            return False
        in_sync += sum("master_link_status:up" in line for line in replication)
    return in_sync >= replicas
