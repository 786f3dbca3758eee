"""Servers that stand in for each other, as processes: a Redis Cluster, and a primary with its replica and Sentinels.

Each test has its own, since it kills, freezes and moves what it likes; they are ended by their process ids.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from deploy.cluster import find_broker
from deploy.nodes import Address, Known, form, known, settled
from deploy.ports import free_port
from tests.support import users
from tests.support.link import Link
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

HOST = "127.0.0.1"

# Who servers and Sentinels are to each other, where they have users.
SERVER, SECRET = "server", users.password("server")

# A node that is silent for so long counts as failed, and its replica takes over. Shorter, and a busy machine's do, too.
NODE_TIMEOUT_MS = 2000

# What one command to a node may take; frozen ones never answer.
ASK_SECONDS = 5.0

# What the connections of tests themselves are called, where a test is to cut others only.
OUTSIDE = "outside"

# It may be cut before it is called so, each time anew.
NAMING_TRIES = 3


@dataclass(frozen=True)
class Tls:
    """Servers of that program speak nothing but TLS, to each other, too; the tests' own Valkey cannot.

    ``folder`` has ``ca.pem``, ``cert.pem`` and ``key.pem``, of `HOST` and ``localhost``.
    """

    program: str
    folder: Path

    @property
    def authority(self) -> Path:
        """Who issued the certificate."""
        return self.folder / "ca.pem"

    def lines(self, port: int) -> tuple[str, ...]:
        """What a server's configuration says of it."""
        return (
            "port 0",
            f"tls-port {port}",
            f"tls-cert-file {self.folder / 'cert.pem'}",
            f"tls-key-file {self.folder / 'key.pem'}",
            f"tls-ca-cert-file {self.authority}",
            "tls-auth-clients no",
            "tls-replication yes",
        )


class Server:
    """One server process."""

    def __init__(
        self,
        folder: Path,
        *configuration: str,
        sentinel: bool = False,
        linked: bool = False,
        tls: Tls | None = None,
    ) -> None:
        """``configuration``: lines; the server itself notes there what it is to remember of Sentinels and replicas.

        ``linked``: it speaks to others from an address of its own (Linux has these).
        """
        # Where tests find it; where others do, is its address.
        self.listens = free_port()
        self.address = Address(HOST, self.listens, 0)
        self.source = f"127.1.{self.listens // 256}.{self.listens % 256}"
        # What is between it and all others, tests excepted.
        self.links: list[Link] = []
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        where = (
            *(tls.lines(self.listens) if tls else (f"port {self.listens}",)),
            f"bind {HOST}",
            *((f"bind-source-addr {self.source}",) if linked else ()),
            f"dir {folder}",
            f"logfile {folder / 'log'}",
            "protected-mode no",
        )
        configured = folder / "server.conf"
        configured.write_text("".join(f"{line}\n" for line in (*where, *configuration)))
        self._tls = tls
        program = tls.program if tls else find_broker()
        self._command = [program, str(configured), *(["--sentinel"] if sentinel else [])]

    @property
    def port(self) -> int:
        """Where others find it."""
        return self.address.port

    async def start(self) -> Self:
        """Start it, with what it had; return when it answers.

        Raises:
            AssertionError: it ended instead, with its log's end in the text, or does not answer in time.
        """
        self._spawn()

        async def answers() -> bool:
            if not self.runs:
                log = (self.folder / "log").read_text().splitlines()
                raise AssertionError(
                    "\n".join([f"the server at {self.port} ended at its start:", *log[-10:]])
                )
            return await self.answers()

        await wait_until(answers, f"the server at {self.port} to answer")
        return self

    def _spawn(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    async def answers(self) -> bool:
        """Whether it does, and has read its data."""
        try:
            return bool(await self.ask("PING") == "PONG")
        except (RedisError, OSError):
            return False

    async def ask(self, *words: str | int) -> Any:
        """One command, over a connection of its own; its reply, as text."""
        redis = Redis(
            host=HOST,
            port=self.listens,
            decode_responses=True,
            socket_timeout=ASK_SECONDS,
            lib_name="",
            lib_version="",
            client_name=OUTSIDE,
            ssl=self._tls is not None,
            ssl_ca_certs=str(self._tls.authority) if self._tls else None,
            # A Sentinel that gives the server another role cuts all who are connected.
            retry=Retry(NoBackoff(), 1),
        )
        redis.response_callbacks.clear()
        pool = redis.connection_pool
        async with redis:
            # The library does not try again where a connection is cut before it has its name.
            named = await Retry(NoBackoff(), NAMING_TRIES).call_with_retry(
                pool.get_connection, lambda _: asyncio.sleep(0)
            )
            await pool.release(named)
            return await redis.execute_command(*words)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """End it at once; nothing more is written."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End it and its links."""
        self.kill()
        for link in self.links:
            link.end()

    def freeze(self) -> None:
        """It keeps its connections, and does nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def part(self, *others: Server) -> None:
        """Until `join`, nothing passes between it and the others, in either direction; not so between it and clients."""
        for link, source in self._between(others):
            link.part(source)

    def join(self, *others: Server) -> None:
        """What waited goes on."""
        for link, source in self._between(others):
            link.join(source)

    def _between(self, others: Iterable[Server]) -> Iterator[tuple[Link, str]]:
        for each in others:
            yield from ((link, each.source) for link in self.links)
            yield from ((link, self.source) for link in each.links)

    @property
    def runs(self) -> bool:
        """Whether there is a process; a frozen one is one."""
        return self.process is not None and self.process.poll() is None

    async def role(self) -> str:
        """``master``, ``slave``, or nothing when it does not answer."""
        try:
            return str((await self.ask("ROLE"))[0])
        except (RedisError, OSError):
            return ""

    async def lag(self, primary: Server) -> None:
        """From now on this replica gets nothing more of its primary, and believes that this will pass."""
        await self.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing")
        await primary.ask("CLIENT", "KILL", "TYPE", "REPLICA")

    async def in_sync(self) -> bool:
        """Whether this replica has its copy."""
        return "master_link_status:up" in await self.ask("INFO", "replication")


class Node(Server):
    """A server that keeps data, in a file like the shipped one's."""

    def __init__(
        self,
        folder: Path,
        *configuration: str,
        with_users: bool = False,
        linked: bool = False,
        tls: Tls | None = None,
        appendfsync: str = "everysec",
    ) -> None:
        """``with_users``: has those of deploy/redis.acl, too, and copies as one of them; ``default`` may do anything.

        ``linked``: others find it behind `links`.
        """
        link = Link(0) if linked else None
        super().__init__(
            folder,
            *((f"replica-announce-port {link.port}", f"cluster-announce-port {link.port}") if link else ()),
            f"replica-announce-ip {HOST}",
            f"cluster-announce-ip {HOST}",
            "appendonly yes",
            f"appendfsync {appendfsync}",
            'save ""',
            # A copy is begun at once, and not kept waiting for others that may want one.
            "repl-diskless-sync-delay 0",
            *(
                (f"aclfile {folder / 'users.acl'}", f"masteruser {SERVER}", f"masterauth {SECRET}")
                if with_users
                else ()
            ),
            *configuration,
            linked=linked,
            tls=tls,
        )
        if with_users:
            ours = "user default on nopass ~* &* +@all"
            (folder / "users.acl").write_text(users.acl_file().replace("user default reset", ours))
        if link:
            link.upstream = self.listens
            self.address = self.address._replace(port=link.port)
            self.links.append(link)

    async def start(self) -> Self:
        """As any server, with its links."""
        for link in self.links:
            await link.start()
        return await super().start()


class ClusterNode(Node):
    """One of a cluster."""

    def __init__(
        self, folder: Path, *, with_users: bool = False, linked: bool = False, tls: Tls | None = None
    ) -> None:
        bus = free_port()
        link = Link(bus) if linked else None
        super().__init__(
            folder,
            *((f"cluster-announce-bus-port {link.port}",) if link else ()),
            *(("tls-cluster yes",) if tls else ()),
            "cluster-enabled yes",
            f"cluster-port {bus}",
            f"cluster-node-timeout {NODE_TIMEOUT_MS}",
            "cluster-require-full-coverage no",
            # A replica that has not heard from its primary for long stands for election all the same.
            "cluster-replica-validity-factor 0",
            with_users=with_users,
            linked=linked,
            tls=tls,
        )
        self.address = Address(HOST, self.port, link.port if link else bus)
        if link:
            self.links.append(link)


class RedisCluster:
    """Primaries, each with a replica: ``primary(0)`` has the first slots at the start, ``replica(0)`` copies it.

    These name processes, whichever role they have by now; `owner` and `role_of` ask the cluster.
    """

    def __init__(
        self,
        folder: Path,
        primaries: int = 3,
        *,
        with_users: bool = False,
        linked: bool = False,
        tls: Tls | None = None,
        replicas: bool = True,
    ) -> None:
        """``with_users``, ``linked``: see `Node`."""
        self._folder = folder
        self._kind: dict[str, Any] = {"with_users": with_users, "linked": linked, "tls": tls}
        self.primaries: list[ClusterNode] = []
        self.replicas: list[ClusterNode] = []
        for number in range(primaries):
            self.primaries.append(ClusterNode(folder / f"primary-{number}", **self._kind))
            if replicas:
                self.replicas.append(ClusterNode(folder / f"replica-{number}", **self._kind))

    @property
    def nodes(self) -> list[ClusterNode]:
        """All that were started."""
        return [*self.primaries, *self.replicas]

    @property
    def addresses(self) -> str:
        """What a URL has after ``//``."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def url(self) -> str:
        """For ``TURNSTREAM_SESSION_REDIS_URL``."""
        return f"redis{'s' if self._kind['tls'] else ''}+cluster://{self.addresses}"

    async def __aenter__(self) -> Self:
        """Start all, make them a cluster, and wait until it can be used and replicas are in sync."""
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            await form(
                {
                    primary.address: [replica.address] if replica else []
                    for primary, replica in zip_longest(self.primaries, self.replicas)
                },
                self.ask,
            )
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all."""
        self.close()

    def close(self) -> None:
        """End all, frozen ones, too."""
        for node in self.nodes:
            node.close()

    async def ask(self, node: Address, *words: str | int) -> Any:
        """One command to the node at an address."""
        return await self._at(node.port).ask(*words)

    def _at(self, port: int) -> ClusterNode:
        return next(each for each in self.nodes if each.port == port)

    # ── who has what ──

    async def slot(self, key: str) -> int:
        """The slot of a key."""
        return int(await self._speaker().ask("CLUSTER", "KEYSLOT", key))

    async def owner(self, slot: int) -> ClusterNode:
        """The node that has a slot, as the nodes know that run; they must agree."""

        async def agreed() -> ClusterNode | None:
            names = set()
            for node in self._running():
                for each in await known(node.address, self.ask):
                    if "fail" not in each.flags and any(first <= slot <= last for first, last in each.slots):
                        names.add(each.port)
            return self._at(names.pop()) if len(names) == 1 else None

        found: ClusterNode = await wait_until(agreed, f"the nodes to agree on who has slot {slot}", 60)
        return found

    async def of(self, node: ClusterNode) -> Known:
        """What a node says of itself."""
        return next(each for each in await known(node.address, self.ask) if "myself" in each.flags)

    async def whole(self, replicas: int | None = None) -> None:
        """Wait until all running nodes say that all is well, and so many replicas (as many as at the start) are in sync."""
        count = len(self.replicas) if replicas is None else replicas
        await wait_until(
            lambda: settled([node.address for node in self._running()], count, self.ask),
            f"the cluster to be whole, with {count} replicas",
            60,
        )

    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.runs]

    def _speaker(self) -> ClusterNode:
        return self._running()[0]

    # ── what happens to it ──

    async def restart(self, node: ClusterNode) -> None:
        """Start a node that was killed, with what it had; it finds the others by itself."""
        await node.start()

    async def failed_over(self, replica: ClusterNode, but: ClusterNode | None = None) -> None:
        """Wait until a replica is a primary, and the others know it, all ``but`` one that is frozen."""

        async def knows() -> bool:
            for node in self._running():
                if node is but:
                    continue
                others = await known(node.address, self.ask)
                if not any(each.port == replica.port and "master" in each.flags for each in others):
                    return False
                if "cluster_state:ok" not in await node.ask("CLUSTER", "INFO"):
                    return False
            return True

        await wait_until(knows, f"{replica.port} to be a primary", 60)

    async def promote(self, replica: ClusterNode, how: str = "") -> None:
        """A replica becomes the primary: agreed with it, or without asking it (``FORCE``) or anybody (``TAKEOVER``)."""
        await replica.ask("CLUSTER", "FAILOVER", *([how] if how else []))
        await self.failed_over(replica)

    async def lag(self, replica: ClusterNode) -> None:
        """From now on this replica gets nothing more, whatever it is sent; it may be promoted all the same."""
        await replica.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "none")
        await replica.ask("CLIENT", "KILL", "TYPE", "master")

    # A slot moves in three steps, so that a test can be between them.

    async def begin_move(self, slot: int, target: ClusterNode) -> ClusterNode:
        """From now on what the source does not have is asked of the target (ASK); the source."""
        source = await self.owner(slot)
        there, here = (await self.of(target)).name, (await self.of(source)).name
        await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        return source

    async def move_keys(
        self, slot: int, source: ClusterNode, target: ClusterNode, count: int = 1_000_000
    ) -> int:
        """Move some keys of the slot; how many. Those of one script may be on both sides then (TRYAGAIN)."""
        names = await source.ask("CLUSTER", "GETKEYSINSLOT", slot, count)

        async def moved(name: str) -> bool:
            try:
                await source.ask("MIGRATE", HOST, target.port, name, 0, 5000)
            except ResponseError as error:
                # One of both misses a node, for a moment.
                if "CLUSTERDOWN" not in str(error):
                    raise
                return False
            return True

        for name in names:
            await wait_until(partial(moved, name), f"{name} to be moved", 60)
        return len(names)

    async def end_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """The slot is the target's (MOVED)."""
        name = (await self.of(target)).name
        await target.ask("CLUSTER", "SETSLOT", slot, "NODE", name)
        try:
            await source.ask("CLUSTER", "SETSLOT", slot, "NODE", name)
        except ResponseError:
            # It was its last one: it has heard of that already, and become a replica.
            assert await source.role() == "slave"

    async def move(self, slot: int, target: ClusterNode) -> None:
        """All steps; keys that come meanwhile are moved, too."""
        source = await self.begin_move(slot, target)
        while await self.move_keys(slot, source, target):
            pass
        await self.end_move(slot, source, target)

    async def move_at_once(self, slot: int, target: ClusterNode) -> None:
        """As Valkey 9 does it by itself: copied as to a replica, and given over in one moment. There is no ASK."""
        source = await self.owner(slot)
        name = (await self.of(target)).name
        await source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", name)

        async def arrived() -> bool:
            return any(first <= slot <= last for first, last in (await self.of(target)).slots)

        await wait_until(arrived, f"slot {slot} to be at {target.port}", 60)

    async def add(self) -> ClusterNode:
        """Another primary, without a slot."""
        node = ClusterNode(self._folder / f"added-{len(self.nodes)}", **self._kind)
        self.primaries.append(node)
        await node.start()
        speaker = self._speaker()
        await speaker.ask("CLUSTER", "MEET", *map(str, node.address))
        await self.whole()
        return node

    async def remove(self, node: ClusterNode, heir: ClusterNode) -> None:
        """Give a primary's slots to another, let all forget it, and end it; its replicas follow the heir."""
        name, inherits = (await self.of(node)).name, (await self.of(heir)).name
        for first, last in (await self.of(node)).slots:
            for slot in range(first, last + 1):
                await self.move(slot, heir)
        for each in self._running():
            if (await self.of(each)).primary == name:
                await each.ask("CLUSTER", "REPLICATE", inherits)
        for each in self._running():
            if each is not node:
                await each.ask("CLUSTER", "FORGET", name)
        node.close()
        (self.primaries if node in self.primaries else self.replicas).remove(node)


class Sentinels:
    """A primary, its replica, and three Sentinels that watch them under the name `NAME`."""

    NAME = "turnstream"

    def __init__(
        self, folder: Path, *, with_users: bool = False, linked: bool = False, tls: Tls | None = None
    ) -> None:
        """``with_users``, ``linked``: see `Node`; the Sentinels are one of the users, too."""
        self._scheme = "rediss" if tls else "redis"
        self.primary = Node(folder / "primary", with_users=with_users, linked=linked, tls=tls)
        follow = f"replicaof {HOST} {self.primary.port}"
        self.replica = Node(folder / "replica", follow, with_users=with_users, linked=linked, tls=tls)
        watch = [
            f"sentinel announce-ip {HOST}",
            f"sentinel monitor {self.NAME} {HOST} {self.primary.port} 2",
            f"sentinel down-after-milliseconds {self.NAME} {NODE_TIMEOUT_MS}",
            f"sentinel failover-timeout {self.NAME} 10000",
        ]
        if with_users:
            watch += [f"sentinel auth-user {self.NAME} {SERVER}", f"sentinel auth-pass {self.NAME} {SECRET}"]
        self.sentinels = [
            Server(folder / f"sentinel-{number}", *watch, sentinel=True, linked=linked, tls=tls)
            for number in range(3)
        ]

    @property
    def url(self) -> str:
        """For ``TURNSTREAM_REDIS_URL``."""
        return f"{self._scheme}+sentinel://{','.join(f'{HOST}:{each.port}' for each in self.sentinels)}/{self.NAME}"

    async def __aenter__(self) -> Self:
        """Start all; return when the Sentinels know the replica and each other."""
        try:
            for node in (self.primary, self.replica):
                await node.start()
            await wait_until(self.replica.in_sync, "the replica to have its copy", 60)
            await asyncio.gather(*(each.start() for each in self.sentinels))
            await wait_until(self._acquainted, "the Sentinels to know each other", 60)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all."""
        self.close()

    def close(self) -> None:
        """End all, frozen ones, too."""
        for each in (*self.sentinels, self.primary, self.replica):
            each.close()

    async def promoted(self, node: Node | None = None) -> None:
        """Wait until the replica, or another node, is the primary, by the word of most Sentinels."""
        awaited = node or self.replica
        await wait_until(lambda: self._is_primary(awaited), "the Sentinels to promote the replica", 60)

    async def _is_primary(self, node: Node) -> bool:
        if await node.role() != "master":
            return False
        told = [await self._primary_of(each) for each in self.sentinels]
        return told.count(node.port) >= 2

    async def failover(self, node: Node | None = None) -> None:
        """As an operator asks for it: the primary is demoted, the replica, or another node, replaces it."""
        awaited = node or self.replica

        async def replaced() -> bool:
            if await awaited.role() == "master":
                return await self._is_primary(awaited)
            # Refused while one is under way. One that is given up, as a Sentinel that had yet to hear of it made the node a
            # replica again, is begun again by nobody but an operator.
            with suppress(ResponseError):
                await self.sentinels[0].ask("SENTINEL", "FAILOVER", self.NAME)
            return False

        await wait_until(replaced, "the Sentinels to replace the primary", 120)

    async def roles(self) -> tuple[Node, Node]:
        """Who is the primary by the word of all Sentinels, and who its replica, when that has a copy and they know it."""

        async def agreed() -> tuple[Node, Node] | None:
            for one, other in ((self.primary, self.replica), (self.replica, self.primary)):
                if [await self._primary_of(each) for each in self.sentinels].count(one.port) == len(
                    self.sentinels
                ):
                    whole = await one.role() == "master" and await other.role() == "slave"
                    return (
                        (one, other) if whole and await other.in_sync() and await self._acquainted() else None
                    )
            return None

        found: tuple[Node, Node] = await wait_until(agreed, "a primary with a replica that is in sync", 90)
        return found

    async def _primary_of(self, sentinel: Server) -> int:
        try:
            return int((await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME))[1])
        except (RedisError, OSError):
            return 0

    async def _acquainted(self) -> bool:
        for each in self.sentinels:
            words = await each.ask("SENTINEL", "MASTER", self.NAME)
            told = dict(zip(words[::2], words[1::2], strict=True))
            if (told["num-other-sentinels"], told["num-slaves"], told["flags"]) != ("2", "1", "master"):
                return False
        return True
