"""The broker's memory for each token that it keeps: of agents that say them as fast as they can, beside Agno's."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from bench import provider, streams
from bench.agents import TOKENS
from bench.peers.agno import NAME, agno, check, post
from bench.peers.environment import NotInstalledError
from bench.processes import helper
from bench.table import Row, number
from bench.topology import OWNER
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.session.event_log import Log
from turnstream.shared.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale
    from bench.topology import Topology

CHATS = 200

# Each of Agno's logs takes as much as the next.
PEER_CHATS = 24
PEER_RATE = 1000


def run(built: Topology, scale: Scale) -> Iterator[Row]:
    """Of the logs, and of all that a chat leaves behind."""
    key = built.key("echo")
    uvloop.run(streams.closed_loop(built.port, 4, [streams.post(key, "go") for _ in range(4)]))
    client = built.client
    before = int(client.info("memory")["used_memory_dataset"])
    names = [uuid.uuid4().hex for _ in range(scale.count(CHATS, 4))]
    arrived, _ = uvloop.run(
        streams.closed_loop(built.port, 8, [streams.post(key, "go", name) for name in names])
    )
    for each in arrived:
        each.check(TOKENS)
    everything = int(client.info("memory")["used_memory_dataset"]) - before
    logs = sum(client.memory_usage(SessionKeys(OWNER, name).log, samples=0) for name in names)
    events, tokens = asyncio.run(_events(built.url, names)), TOKENS * len(names)
    row = Row(
        "broker's memory per token kept, of the log",
        logs / tokens,
        "B",
        note=f"all that a chat of {TOKENS} tokens in {events // len(names)} events leaves, by the broker's total: "
        f"{number(everything / tokens)} B per token",
    )
    if scale.peers:
        row = _beside_agno(row, built.provider_port, scale.count(PEER_CHATS, 2))
    yield row.at_most(120)


def _beside_agno(ours: Row, provider_port: int, chats: int) -> Row:
    """The row, with the figure of one that is started for it and says the same text, or why there is none."""
    try:
        with helper(provider.serve, provider_port) as paced, agno(provider_port) as peer:
            paced.answer()
            asks = [post(f"{TOKENS} {PEER_RATE} count") for _ in range(chats)]
            arrived, _ = uvloop.run(streams.closed_loop(peer.port, 8, asks))
            for each in arrived:
                check(each, TOKENS)
            return replace(ours, theirs=peer.logs() / (TOKENS * chats), other=NAME)
    except NotInstalledError as error:
        return replace(ours, note=f"{ours.note}; {NAME} is left out: {error}")


async def _events(url: str, names: list[str]) -> int:
    settings = load(redis_url=url)
    broker = Broker(settings)
    try:
        metas = [await Log(broker.sessions).meta(SessionKeys(OWNER, name)) for name in names]
        return sum(meta.seq for meta in metas if meta)
    finally:
        await broker.close()
