"""Checks of a Redis Cluster that holds the sessions: all slots, and each node as a server of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from turnstream.doctor import server
from turnstream.doctor.findings import Level, ok, skipped, warning, wrong
from turnstream.doctor.server import ASK_AS_OPERATOR, MAY_NOT
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.doctor.findings import Finding
    from turnstream.shared.broker.cluster import Address, ClusterRedis
    from turnstream.shared.broker.urls import BrokerUrl
    from turnstream.shared.settings import Settings

_SEE = "see docs/operations.md, Sessions on a Redis Cluster"


async def examine(redis: ClusterRedis, settings: Settings, url: BrokerUrl) -> AsyncIterator[Finding]:
    """Look at what the nodes say of each other, and then at each."""
    asked = redis.nodes.client(redis.nodes.owners[0])
    try:
        read: Any = asked.response_callbacks
        state = read["CLUSTER INFO"](await command(asked, "CLUSTER", "INFO"))
        nodes = read["CLUSTER NODES"](await command(asked, "CLUSTER", "NODES"))
    except NoPermissionError:
        yield skipped("slots", MAY_NOT, ASK_AS_OPERATOR)
        addresses = dict.fromkeys(redis.nodes.owners, "primary")
    else:
        for finding in _slots(state, nodes):
            yield finding
        if moving := await _moving(redis):
            yield warning(
                "moving slots",
                ", ".join(map(str, moving)),
                "if no move is under way: valkey-cli --cluster fix",
            )
        addresses = {
            _address(place, node): _role(node)
            for place, node in nodes.items()
            if not {"noaddr", "handshake", "fail"} & set(node["flags"].split(","))
        }
    for address in url.hosts:
        if address not in addresses and (trouble := await _silence(redis, address)):
            yield warning(
                "URL", f"{address[0]}:{address[1]} is named, and does not answer: {trouble}",
                "start it, or take it off: processes that start ask those that the URL names",
            )  # fmt: skip
    for address, role in addresses.items():
        async for finding in _node(redis, address, role, settings, url):
            yield finding


def _slots(state: dict[str, str], nodes: dict[str, dict[str, Any]]) -> list[Finding]:
    found = []
    primaries = [node for node in nodes.values() if "master" in node["flags"] and node["slots"]]
    lost = [place for place, node in nodes.items() if "fail" in node["flags"].split(",")]
    if state["cluster_slots_assigned"] != "16384":
        found.append(
            wrong(
                "slots", f"{state['cluster_slots_assigned']} of 16384 have a node: sessions of the others cannot be used",
                "give the others to nodes: valkey-cli --cluster fix",
            )
        )  # fmt: skip
    elif state["cluster_state"] != "ok" or state["cluster_slots_fail"] != "0":
        found.append(
            wrong(
                "slots", f"the nodes of {state['cluster_slots_fail']} have failed: their sessions wait",
                "start these nodes, or have a replica take over: CLUSTER FAILOVER TAKEOVER",
            )
        )  # fmt: skip
    if lost:
        found.append(
            warning(
                "failed nodes", ", ".join(lost), "start them, or have the others forget them: CLUSTER FORGET"
            )
        )
    if len(primaries) < 3:
        found.append(
            warning("nodes", f"{len(primaries)} primaries cannot agree that one of them has failed", f"have three; {_SEE}")
        )  # fmt: skip
    followed = {node["master_id"] for node in nodes.values() if "fail" not in node["flags"].split(",")}
    if alone := [
        place for place, node in nodes.items() if node in primaries and node["node_id"] not in followed
    ]:
        found.append(
            warning(
                "nodes", f"without a replica: {', '.join(alone)}",
                f"add one to each: when such a node fails, its sessions wait until it is back; {_SEE}",
            )
        )  # fmt: skip
    return found or [ok("slots", f"all have a node; {len(primaries)} primaries, {len(nodes)} nodes")]


async def _moving(redis: ClusterRedis) -> list[int]:
    """The slots that are being moved; each node reports its own only."""
    moving = set()
    for address in redis.nodes.owners:
        node = redis.nodes.client(address)
        read: Any = node.response_callbacks
        with suppress(RedisError, OSError):
            nodes = read["CLUSTER NODES"](await command(node, "CLUSTER", "NODES"))
            moving |= {int(move["slot"]) for each in nodes.values() for move in each["migrations"]}
    return sorted(moving)


async def _silence(redis: ClusterRedis, address: Address) -> str:
    """Why an address cannot be asked; empty where it can: nodes may call themselves something else."""
    try:
        await command(redis.nodes.client(address), "PING")
    except (RedisError, OSError, TimeoutError) as error:
        return str(error) or type(error).__name__
    return ""


async def _node(
    redis: ClusterRedis, address: Address, role: str, settings: Settings, url: BrokerUrl
) -> AsyncIterator[Finding]:
    """What is wrong with a node, and in one line what is not."""
    what = f"{role} {address[0]}:{address[1]}"
    well = []
    try:
        async for finding in server.examine(redis.nodes.client(address), settings, url):
            if finding.level is Level.OK:
                well.append(f"{finding.what} {finding.seen}")
            else:
                yield finding.of(what)
    except (RedisError, OSError, TimeoutError) as error:
        yield wrong(
            what, f"{type(error).__name__}: {error}", "start it, or let this machine's network reach it"
        )
    if well:
        yield ok(what, "; ".join(well))


def _role(node: dict[str, Any]) -> str:
    return "replica" if "slave" in node["flags"] else "primary"


def _address(place: str, node: dict[str, Any]) -> Address:
    host, _, port = place.rpartition(":")
    return node["hostname"] or host, int(port)
