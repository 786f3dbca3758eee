"""Where a deployment under chaos has its data, and what befalls it there: one server, a cluster, or a primary with Sentinels."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

from tests.processes import servers
from tests.processes.broker import Broker
from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import SessionKeys

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

    from tests.chaos.clients import Town
    from tests.processes.servers import ClusterNode, Node, Server
    from tests.support.link import Link

OWNER = "dev"

# How long the broker is away; in one case of five for longer than a request insists.
AWAY_SECONDS = (0.1, 1.0)
LONG_AWAY_SECONDS = (3.0, 6.0)

# How long a server takes no writes: within a lease (2 s) or past it.
REFUSING_SECONDS = (0.2, 4.0)

# How much of what it had taken a server loses: seconds before its end.
LOST_SECONDS = (0.1, 1.0)

# How long a node is frozen or cut off without being replaced, and how long after it was.
UNNOTICED_SECONDS = (0.2, 0.5 * servers.NODE_TIMEOUT_MS / 1000)
REPLACED_SECONDS = (0.0, 4.0)

# Between the keys of a slot that is moved, and how long it stays at another node.
KEY_SECONDS = (0.0, 0.15)
STAYED_SECONDS = (0.2, 3.0)


class Home:
    """Some servers. Its faults are methods: done, or begun, when they return True.

    Attributes:
        weights: its faults, and how often each is done, relative to all others.
        variables: what processes are told of it.
    """

    weights: dict[str, int]

    def __init__(self, folder: Path, appendfsync: str, rng: random.Random, *, linked: bool = True) -> None:
        """``linked``: servers that stand in for each other can be cut off, and are found behind links."""
        self._folder = folder
        self._appendfsync = appendfsync
        self._linked = linked
        self._rng = rng
        self._town: Town
        self._under_way: asyncio.Task[None] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What a process is to have in its environment."""
        raise NotImplementedError

    async def open(self, town: Town | None = None) -> None:
        """Start all servers; the town's clients, where faults are to come, are told when something may get lost."""
        if town is not None:
            self._town = town
        await self._start()

    async def _start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End all."""
        raise NotImplementedError

    def ports(self) -> list[int]:
        """Where tests find servers that run."""
        raise NotImplementedError

    def links(self) -> list[list[Link]]:
        """What is between clients and data: cut off from all of one list, they have no part of it."""
        return []

    async def sessions(self) -> Any:
        """A client that reads sessions."""
        raise NotImplementedError

    async def heal(self) -> None:
        """See to the end of what was begun."""
        if self._under_way is not None:
            await self._under_way

    async def _tell(self, port: int, *words: str) -> bool:
        try:
            # One that stands still may keep the connection from being closed, too.
            async with Redis(port=port, socket_timeout=1) as redis:
                await redis.execute_command(*words)  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            # It is away at the moment: nothing is there to be cut.
            return False
        return True

    async def tell_all(self, *words: str) -> bool:
        """Tell all servers that answer; whether one did."""
        return any(await asyncio.gather(*(self._tell(port, *words) for port in self.ports())))

    async def _refuse(self, port: int, begin: tuple[str, ...], end: tuple[str, ...]) -> bool:
        if not await self._tell(port, *begin):
            return False
        await self._pause(REFUSING_SECONDS)
        # It may be cut off in this moment; nothing else ends it.
        await wait_until(lambda: self._tell(port, *end), "the server to take writes again")
        return True

    async def _full(self, port: int) -> bool:
        full, roomy = ("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")
        return await self._refuse(port, full, roomy)

    async def _pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._rng.uniform(*seconds))

    def _begin(self, act: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do it beside all else, but one thing at a time: servers that stand in for each other must be whole before."""
        if self._under_way is not None:
            if not self._under_way.done():
                return False
            self._under_way.result()
        self._under_way = asyncio.create_task(act())
        return True


class OneServer(Home):
    """One, with its files."""

    weights = {  # noqa: RUF012 - it is only read
        "restart_broker": 2,
        "fill_memory": 1,
        "become_replica": 1,
        "restore_broker": 2,
        "promote_replica": 2,
    }

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._broker = Broker(self._folder / "data", self._appendfsync)

    @property
    def variables(self) -> dict[str, str]:
        """Its address."""
        return {"TURNSTREAM_REDIS_URL": f"redis://127.0.0.1:{self._broker.port}/0"}

    async def _start(self) -> None:
        self._broker.start()

    def close(self) -> None:
        """End it."""
        self._broker.stop()

    def ports(self) -> list[int]:
        """Its port."""
        return [self._broker.port]

    async def sessions(self) -> Any:
        """It has all."""
        return Redis(port=self._broker.port)

    async def restart_broker(self) -> bool:
        """Killed, or ended in order where it writes its file every second; it is back with that file."""
        away = LONG_AWAY_SECONDS if self._rng.random() < 0.2 else AWAY_SECONDS
        await asyncio.to_thread(self._broker.kill)
        await self._pause(away)
        await asyncio.to_thread(self._broker.start)
        return True

    async def restore_broker(self) -> bool:
        """Killed, and started with its file of a moment ago."""
        copy = await asyncio.to_thread(self._broker.remember)
        await self._about_to_lose()
        await asyncio.to_thread(self._broker.go_back, copy)
        return True

    async def promote_replica(self) -> bool:
        """Killed, and a replica that lags takes its place."""
        await asyncio.to_thread(self._broker.replicate)
        await asyncio.to_thread(self._broker.lag)
        await self._about_to_lose()
        await asyncio.to_thread(self._broker.promote)
        return True

    async def _about_to_lose(self) -> None:
        await self._pause(LOST_SECONDS)
        self._town.lose()

    async def fill_memory(self) -> bool:
        """No memory left, for a while: whatever would need some is refused."""
        return await self._full(self._broker.port)

    async def become_replica(self) -> bool:
        """A replica of nobody, as after a failover that went back and forth: it answers, but takes no writes."""
        begin, end = ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")
        return await self._refuse(self._broker.port, begin, end)


class OnCluster(OneServer):
    """Sessions are on three primaries, each with a replica; what belongs to no session is on one server."""

    weights = {  # noqa: RUF012 - it is only read
        **OneServer.weights,
        "kill_node": 2,
        "restart_node": 2,
        "freeze_node_briefly": 2,
        "freeze_node": 2,
        "part_node_briefly": 1,
        "part_node": 2,
        "kill_node_whose_replica_lags": 2,
        "fill_node": 1,
        "move_slot": 5,
        "move_slot_at_once": 3,
    }

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._cluster = servers.RedisCluster(self._folder / "cluster", linked=self._linked)

    @property
    def variables(self) -> dict[str, str]:
        """One address is enough to know the others by."""
        where = f"redis+cluster://127.0.0.1:{self._cluster.replicas[2].port}"
        return {**super().variables, "TURNSTREAM_SESSION_REDIS_URL": where}

    async def _start(self) -> None:
        await super()._start()
        await self._cluster.__aenter__()

    def close(self) -> None:
        """End all."""
        self._cluster.close()
        super().close()

    def ports(self) -> list[int]:
        """Nodes, too, but those that are away."""
        return [*super().ports(), *(each.listens for each in self._cluster.nodes if each.runs)]

    def links(self) -> list[list[Link]]:
        """To each primary and its replica, whichever is which by now."""
        pairs = zip(self._cluster.primaries, self._cluster.replicas, strict=True)
        return [[one.links[0], other.links[0]] for one, other in pairs]

    async def sessions(self) -> Any:
        """The cluster has them."""
        await self._cluster.whole()
        return RedisCluster(host="127.0.0.1", port=self._cluster.nodes[0].port)

    async def _pair(self) -> tuple[ClusterNode, ClusterNode]:
        """A primary and its replica."""
        await self._cluster.whole()
        at = self._rng.randrange(len(self._cluster.primaries))
        one, other = self._cluster.primaries[at], self._cluster.replicas[at]
        return (one, other) if await one.role() == "master" else (other, one)

    async def _replaced(self, node: ClusterNode, replica: ClusterNode) -> None:
        """Wait for its successor, and some time more."""
        self._town.lose()
        await self._cluster.failed_over(replica, but=node)
        self._town.lose()
        await self._pause(REPLACED_SECONDS)

    async def _back(self, node: ClusterNode) -> None:
        await self._cluster.restart(node)
        await self._cluster.whole()

    async def kill_node(self) -> bool:
        """A primary, which its replica replaces; it is back later."""

        async def act() -> None:
            node, replica = await self._pair()
            node.kill()
            await self._replaced(node, replica)
            await self._back(node)

        return self._begin(act)

    async def restart_node(self) -> bool:
        """A primary or a replica, back before anybody misses it, with its file."""

        async def act() -> None:
            node = self._rng.choice(await self._pair())
            self._town.lose()
            node.kill()
            await self._pause(AWAY_SECONDS)
            await self._back(node)
            self._town.lose()

        return self._begin(act)

    async def freeze_node_briefly(self) -> bool:
        """For less than the node timeout: nobody replaces it."""

        async def act() -> None:
            node, _ = await self._pair()
            node.freeze()
            await self._pause(UNNOTICED_SECONDS)
            node.thaw()

        return self._begin(act)

    async def freeze_node(self) -> bool:
        """Until its replica has replaced it, and longer. It keeps its connections."""

        async def act() -> None:
            node, replica = await self._pair()
            node.freeze()
            try:
                await self._replaced(node, replica)
            finally:
                node.thaw()

        return self._begin(act)

    async def part_node_briefly(self) -> bool:
        """A primary is cut off from all other nodes, not from clients, for less than the node timeout."""

        async def act() -> None:
            node, _ = await self._pair()
            others = [each for each in self._cluster.nodes if each is not node]
            with _parted(node, *others):
                await self._pause(UNNOTICED_SECONDS)

        return self._begin(act)

    async def part_node(self) -> bool:
        """Until its replica has replaced it, and longer. For a while both take writes."""

        async def act() -> None:
            node, replica = await self._pair()
            others = [each for each in self._cluster.nodes if each is not node]
            with _parted(node, *others):
                await self._replaced(node, replica)
            await self._cluster.whole()
            self._town.lose()

        return self._begin(act)

    async def kill_node_whose_replica_lags(self) -> bool:
        """They are cut off from each other for a while before: what was written meanwhile is lost."""

        async def act() -> None:
            node, replica = await self._pair()
            with _parted(node, replica):
                await self._pause(LOST_SECONDS)
                node.kill()
                await self._replaced(node, replica)
            await self._back(node)

        return self._begin(act)

    async def fill_node(self) -> bool:
        """A node has no memory left, for a while."""

        async def act() -> None:
            node, _ = await self._pair()
            await self._full(node.listens)

        return self._begin(act)

    async def move_slot(self) -> bool:
        """That of a session that speaks, key by key, to another primary and back."""
        return self._move(self._key_by_key)

    async def move_slot_at_once(self) -> bool:
        """The same as Valkey 9 does it by itself."""
        return self._move(self._cluster.move_at_once)

    def _move(self, how: Callable[[int, ClusterNode], Awaitable[None]]) -> bool:
        if not (speaking := self._town.speaking()):
            return False
        session = self._rng.choice(speaking)

        async def act() -> None:
            await self._cluster.whole()
            slot = await self._cluster.slot(SessionKeys(OWNER, session).meta)
            owner = await self._cluster.owner(slot)
            others = [
                each for each in self._cluster.nodes if each is not owner and await each.role() == "master"
            ]
            await how(slot, self._rng.choice(others))
            await self._pause(STAYED_SECONDS)
            await how(slot, owner)

        return self._begin(act)

    async def _key_by_key(self, slot: int, target: ClusterNode) -> None:
        source = await self._cluster.begin_move(slot, target)
        while await self._cluster.move_keys(slot, source, target, self._rng.randint(1, 3)):
            await self._pause(KEY_SECONDS)
        await self._cluster.end_move(slot, source, target)


class WithSentinels(Home):
    """A primary and its replica have all, and three Sentinels choose between them."""

    weights = {  # noqa: RUF012 - it is only read
        "kill_primary": 2,
        "demote_primary": 1,
        "freeze_primary_briefly": 2,
        "freeze_primary": 2,
        "part_primary_briefly": 1,
        "part_primary": 2,
        "kill_primary_whose_replica_lags": 2,
        "fill_primary": 1,
    }

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._watched = servers.Sentinels(self._folder / "servers", linked=self._linked)

    @property
    def variables(self) -> dict[str, str]:
        """The Sentinels' addresses."""
        return {"TURNSTREAM_REDIS_URL": self._watched.url}

    async def _start(self) -> None:
        await self._watched.__aenter__()

    def close(self) -> None:
        """End all."""
        self._watched.close()

    def ports(self) -> list[int]:
        """Of those that have data."""
        return [each.listens for each in self._both if each.runs]

    @property
    def _both(self) -> list[Node]:
        return [self._watched.primary, self._watched.replica]

    def links(self) -> list[list[Link]]:
        """Cut off from both, a process has nothing; one of them would do, too."""
        return [[each.links[0] for each in self._both]]

    async def sessions(self) -> Any:
        """Whoever is the primary by now."""
        primary, _ = await self._watched.roles()
        return Redis(port=primary.listens)

    async def _replaced(self, replica: Node) -> None:
        self._town.lose()
        await self._watched.promoted(replica)
        self._town.lose()
        await self._pause(REPLACED_SECONDS)

    async def kill_primary(self) -> bool:
        """The replica replaces it; it is back later."""

        async def act() -> None:
            node, replica = await self._watched.roles()
            node.kill()
            await self._replaced(replica)
            await node.start()
            await self._watched.roles()

        return self._begin(act)

    async def demote_primary(self) -> bool:
        """As an operator asks for it."""

        async def act() -> None:
            _, replica = await self._watched.roles()
            self._town.lose()
            await self._watched.failover(replica)
            await self._watched.roles()
            self._town.lose()

        return self._begin(act)

    async def freeze_primary_briefly(self) -> bool:
        """The Sentinels do not miss it."""

        async def act() -> None:
            node, _ = await self._watched.roles()
            node.freeze()
            await self._pause(UNNOTICED_SECONDS)
            node.thaw()

        return self._begin(act)

    async def freeze_primary(self) -> bool:
        """Until it is replaced, and longer. It keeps its connections."""

        async def act() -> None:
            node, replica = await self._watched.roles()
            node.freeze()
            try:
                await self._replaced(replica)
            finally:
                node.thaw()
            await self._watched.roles()
            self._town.lose()

        return self._begin(act)

    async def part_primary_briefly(self) -> bool:
        """It is cut off from Sentinels and replica, not from clients; they do not miss it."""

        async def act() -> None:
            node, replica = await self._watched.roles()
            with _parted(node, replica, *self._watched.sentinels):
                await self._pause(UNNOTICED_SECONDS)

        return self._begin(act)

    async def part_primary(self) -> bool:
        """Until it is replaced, and longer. Both take writes, from whoever finds them."""

        async def act() -> None:
            node, replica = await self._watched.roles()
            with _parted(node, replica, *self._watched.sentinels):
                await self._replaced(replica)
            await self._watched.roles()
            self._town.lose()

        return self._begin(act)

    async def kill_primary_whose_replica_lags(self) -> bool:
        """They are cut off from each other for a while before: what was written meanwhile is lost."""

        async def act() -> None:
            node, replica = await self._watched.roles()
            with _parted(node, replica):
                await self._pause(LOST_SECONDS)
                node.kill()
                await self._replaced(replica)
            await node.start()
            await self._watched.roles()

        return self._begin(act)

    async def fill_primary(self) -> bool:
        """It has no memory left, for a while."""

        async def act() -> None:
            node, _ = await self._watched.roles()
            await self._full(node.listens)

        return self._begin(act)


@contextmanager
def _parted(node: Server, *others: Server) -> Iterator[None]:
    """Within, nothing passes between a node and the others."""
    node.part(*others)
    try:
        yield
    finally:
        node.join(*others)


HOMES: dict[str, type[Home]] = {
    "server": OneServer,
    "cluster": OnCluster,
    "sentinel": WithSentinels,
}
