"""The one way to the broker, real or embedded.

Two clients: `Broker.primary` for what concerns everybody (launches, keys, hints, doorbell, control)
and `Broker.sessions` for what belongs to one session. They are the same server unless
``TURNSTREAM_SESSION_REDIS_URL`` names another, or a cluster: see `turnstream.shared.broker.cluster`.
"""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis, SSLConnection
from redis.exceptions import AuthenticationError, NoPermissionError

from turnstream.shared.broker.cluster import ApartCluster, ClusterRedis, Nodes, key_of
from turnstream.shared.broker.connection import NodePool
from turnstream.shared.broker.keys import nothing
from turnstream.shared.broker.pipeline import COMMAND_SECONDS, Pipe
from turnstream.shared.broker.retry import TRANSIENT, Retrying, limited, retry, retry_seconds
from turnstream.shared.broker.sentinels import SentinelPool
from turnstream.shared.broker.urls import CLUSTER, MEMORY, SENTINEL, BrokerUrl
from turnstream.shared.errors import BrokerAway, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from turnstream.shared.broker.cluster import Address, Doubt
    from turnstream.shared.settings import Settings

T = TypeVar("T")

CONNECT_SECONDS = 2.0

# The settings that name a broker.
PRIMARY = "TURNSTREAM_REDIS_URL"
SESSIONS = "TURNSTREAM_SESSION_REDIS_URL"

# A subscriber only listens: that its peer is gone without a word is noticed by the kernel, within 25 s.
_TCP: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        option: value
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if (option := getattr(socket, name, None)) is not None
    },
}

# Connections of one process to one server. Commands beyond that wait for a free one.
MAX_CONNECTIONS = 64

# Fields of a very large hash that one command reads.
FIELDS_AT_ONCE = 500


class PipedRedis(Redis):
    """A client whose commands, as `command` sends them, share a connection; what is large has another one.

    So nothing waits until somebody's ten mebibytes have passed: an append, a renewed lease.
    """

    def __init__(self, *, connection_pool: ConnectionPool, apart: bool = False) -> None:
        """``apart``: whatever the size, one connection carries it."""
        super().__init__(connection_pool=connection_pool)
        self.pipe = Pipe(connection_pool, large=apart)
        self.large = self.pipe if apart else Pipe(connection_pool, large=True)
        if not apart:
            self.pipe.beside, self.large.beside = self.large, self.pipe


class Broker(Retrying):
    """Connections of one process. Its clients send each command once: see `turnstream.shared.broker.retry`."""

    def __init__(self, settings: Settings, server: Any = None) -> None:
        """Make the clients; nothing is connected before the first command.

        ``server`` is the embedded broker to share (a fakeredis ``FakeServer``), for ``memory://`` only.
        """
        self.settings = settings
        self._pools: list[ConnectionPool] = []
        self._pipes: list[Pipe] = []
        # Whether it has ever let us in: see `admit`.
        self.admitted = False
        self._clusters: list[Nodes] = []
        self._apart: list[PipedRedis | ApartCluster] = []
        self._room_apart = asyncio.Semaphore(MAX_CONNECTIONS)
        self._server = server
        url = settings.redis_url.get_secret_value()
        self.primary = self._client(url)
        session_url = settings.session_redis_url
        self.sessions = self._client(session_url.get_secret_value()) if session_url else self.primary

    def _client(self, text: str) -> Redis:
        url = BrokerUrl.parse(text)
        if url.kind == MEMORY:
            from fakeredis import FakeAsyncRedis, FakeServer

            if self._server is None:
                self._server = FakeServer()
            client: Redis = FakeAsyncRedis(server=self._server)
            # Given by who keeps its data from start to start: turnstream/state.py.
            client.incarnation = getattr(self._server, "incarnation", "")  # type: ignore[attr-defined]
            self._pools.append(client.connection_pool)
            return client
        if url.kind == CLUSTER:
            nodes = Nodes(url.hosts, lambda address: PipedRedis(connection_pool=self._pool(url, address)))
            self._clusters.append(nodes)
            return ClusterRedis(nodes)
        pool = self._pool(url)
        self._pools.append(pool)
        return self._piped(pool)

    def _pool(self, url: BrokerUrl, node: tuple[str, int] | None = None) -> ConnectionPool:
        """``node``: of the cluster that the URL names."""
        options: dict[str, Any] = {
            "max_connections": MAX_CONNECTIONS,
            "timeout": COMMAND_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            # What AUTH and SELECT may take: a broker that froze accepts connections and says nothing.
            "socket_timeout": COMMAND_SECONDS,
            # To tell every new connection's library takes two commands, and rights that Redis 7.0 cannot give.
            "lib_name": "",
            "lib_version": "",
            **({} if url.text.startswith("unix://") else _TCP),
        }
        if self.settings.redis_password is not None:
            options["password"] = self.settings.redis_password.get_secret_value()
        encryption = self._encryption() if url.tls else {}
        # What the URL itself says wins.
        if url.kind == SENTINEL:
            password = self.settings.sentinel_password
            secret = password.get_secret_value() if password is not None else None
            return SentinelPool(url, {**options, **url.options}, encryption, secret)
        if node is not None:
            host, port = node
            connection = SSLConnection if url.tls else Connection
            given = {**options, **encryption, **url.options, "host": host, "port": port}
            return NodePool(connection_class=connection, **given)
        return BlockingConnectionPool.from_url(url.text, **options, **encryption)

    def _piped(self, pool: ConnectionPool, *, apart: bool = False) -> PipedRedis:
        piped = PipedRedis(connection_pool=pool, apart=apart)
        self._pipes += [piped.pipe, piped.large]
        return piped

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[PipedRedis | ApartCluster]:
        """A real sessions' server by a connection that nobody else uses meanwhile, as one of `MAX_CONNECTIONS`.

        Of a cluster, each node by one.

        ``WAIT`` needs it: it holds up what is sent after it, and speaks of its own connection's writes.

        Raises:
            BrokerAway: none got free in time.
        """
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._room_apart.acquire()
        except TimeoutError:
            raise BrokerAway from None
        client = self._apart.pop() if self._apart else self._apart_client()
        try:
            yield client
        finally:
            try:
                for each in client.own if isinstance(client, ApartCluster) else (client,):
                    if not each.pipe.idle:
                        # Somebody gave up. The next one must not wait behind what they asked.
                        await each.pipe.close()
            finally:
                self._apart.append(client)
                self._room_apart.release()

    def _apart_client(self) -> PipedRedis | ApartCluster:
        if isinstance(self.sessions, ClusterRedis):
            return ApartCluster(
                self.sessions.nodes, lambda node: self._piped(node.connection_pool, apart=True)
            )
        return self._piped(self.sessions.connection_pool, apart=True)

    def _encryption(self) -> dict[str, Any]:
        # The client's own default believes any certificate of a known authority, whoever shows it.
        given: dict[str, Any] = {"ssl_check_hostname": True}
        if self.settings.redis_ca is not None:
            given["ssl_ca_certs"] = str(self.settings.redis_ca)
        return given

    async def ready(self) -> bool:
        """Whether both servers answer within a command's time; of a cluster, half of its nodes: they are replaced one by one."""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                once = self.once
                await command(once.primary, "PING")
                if once.sessions is not once.primary:
                    await _ping(once.sessions)
        except (*TRANSIENT, TimeoutError):
            return False
        return True

    async def admit(self, listed: str, name: str) -> None:
        """Wait until both servers have taken us for who we say we are: process ``name``, of those in the hash ``listed``.

        From then on their refusals are trouble like any other: passwords are changed while processes run.

        Raises:
            ConfigurationError: one refuses user, password or rights.
        """
        # Nothing is changed by this, but who may not do it is not meant to run as such a process.
        asked = {PRIMARY: partial(command, self.once.primary, "HDEL", listed, name)}
        if self.settings.session_redis_url is not None:
            asked[SESSIONS] = partial(_ping, self.once.sessions)
        for setting, ask in asked.items():
            await retry(
                partial(let_in, self.settings, ask, setting),
                seconds=math.inf,
                what=f"{setting} = {_address(self.settings, setting)}",
            )
        self.admitted = True

    async def close(self) -> None:
        """Close every connection."""
        for pipe in self._pipes:
            await pipe.close()
        for nodes in self._clusters:
            await nodes.close()
        for pool in self._pools:
            await pool.disconnect(inuse_connections=True)


async def let_in(settings: Settings, ask: Callable[[], Awaitable[T]], setting: str = PRIMARY) -> T:
    """Ask the broker that a setting names, for the first time.

    Raises:
        ConfigurationError: it refuses user, password or rights.
    """
    try:
        return await ask()
    except (AuthenticationError, NoPermissionError) as error:
        where = _address(settings, setting)
        said = str(error).rstrip(".")
        if isinstance(error, NoPermissionError):
            text = f"lets us in, but does not let us work: {said}. Each role has a user of its own: see deploy/redis.acl."
        else:
            text = f"does not let us in: {said}. Set its user in the URL, and the password there or in TURNSTREAM_REDIS_PASSWORD."
        raise ConfigurationError(f"{setting} = {where}: the broker {text}") from None


def _address(settings: Settings, setting: str) -> str:
    """The URL that a setting names, as it may be shown."""
    url = settings.session_redis_url if setting == SESSIONS else settings.redis_url
    return BrokerUrl.parse(url.get_secret_value()).shown if url else ""


async def command(
    redis: Redis,
    name: str,
    *arguments: str | bytes | float,
    more_seconds: float = 0,
    large: bool = False,
    doubt: Doubt | None = None,
) -> Any:
    """Send one command, and wait for its reply while something moves, `COMMAND_SECONDS` when nothing does.

    One that blocks at the broker has ``more_seconds``. ``large`` says that it is, or that its reply may be. It is retried for
    as long as the client has it, and so must be safe to repeat. ``doubt``: see `Script.sure`.

    Raises:
        BrokerAway: the client retries, and it did not answer in time.
        redis.exceptions.RedisError, OSError: other errors; without retries transient ones, too.
    """
    if seconds := retry_seconds(redis):
        given: dict[str, Any] = {"more_seconds": more_seconds, "large": large, "doubt": doubt}
        once = partial(command, limited(redis, 0), name, *arguments, **given)
        return await retry(once, seconds=seconds, what=name)
    if not isinstance(redis, PipedRedis):
        if isinstance(redis, ClusterRedis):
            ask = partial(_command_at, name, arguments, more_seconds=more_seconds, large=large)
            return await redis.at(key_of(name, arguments), ask, doubt)
        # The embedded broker is this process: a command cannot be lost on the way, only wait for a busy event loop.
        return await redis.execute_command(name, *arguments)  # type: ignore[no-untyped-call]
    pipe = redis.large if large else redis.pipe
    reply = await pipe.command(name, *arguments, more_seconds=more_seconds)
    if doubt is not None and doubt(reply):
        await pipe.confirm()
    # As the client's own methods give it: a dict for HGETALL, pairs for XRANGE.
    shape = redis.response_callbacks.get(name)
    return reply if shape is None else shape(reply)


async def fields_of(redis: Redis, name: str) -> AsyncIterator[dict[bytes, bytes]]:
    """A hash that may be very large, in pieces of about `FIELDS_AT_ONCE`: others' commands go between. A field may come twice.

    Raises:
        redis.exceptions.RedisError, OSError: see `command`.
    """
    cursor = 0
    while True:
        cursor, some = await command(redis, "HSCAN", name, cursor, "COUNT", FIELDS_AT_ONCE)
        yield some
        if not cursor:
            return


async def _command_at(
    name: str,
    arguments: tuple[str | bytes | float, ...],
    node: PipedRedis,
    *,
    more_seconds: float,
    large: bool,
) -> Any:
    return await command(node, name, *arguments, more_seconds=more_seconds, large=large)


async def _ping(redis: Redis) -> None:
    """Ask a server whether it lets us in, or half of a cluster's nodes."""
    if not isinstance(redis, ClusterRedis):
        await command(redis, "PING")
        return
    await redis.nodes.learn()
    clients = [redis.nodes.client(address) for address in redis.nodes.owners]
    pings = (asyncio.wait_for(command(each, "PING"), CONNECT_SECONDS) for each in clients)
    replies = await asyncio.gather(*pings, return_exceptions=True)
    errors = [reply for reply in replies if isinstance(reply, BaseException)]
    refused = [error for error in errors if isinstance(error, AuthenticationError | NoPermissionError)]
    if refused or 2 * len(errors) > len(clients):
        raise [*refused, *errors][0]


async def at_each(redis: Redis, ask: Callable[[Redis], Awaitable[T]]) -> list[T]:
    """Ask the server, or one after the other the nodes of a cluster that have slots, what concerns no key.

    Raises:
        redis.exceptions.RedisError, OSError: the trouble of one of them.
    """
    return await redis.each(ask) if isinstance(redis, ClusterRedis) else [await ask(redis)]


def connected(redis: Redis) -> tuple[int, int]:
    """Another value than before once there was a new connection to a single server."""
    return (redis.pipe.connections, redis.large.connections) if isinstance(redis, PipedRedis) else (0, 0)


def reconnect(redis: Redis, since: tuple[int, int]) -> None:
    """Have the next commands go to where connections lead that are made now, unless somebody has since then (`connected`).

    What is under way is lost.
    """
    if isinstance(redis, PipedRedis) and connected(redis) == since:
        redis.pipe.leave()


async def answers(
    redis: Redis, ask: Callable[[Redis, Address | None], Awaitable[T]]
) -> tuple[list[T], list[Address]]:
    """Ask the server, or at once the nodes of a cluster that have slots, what concerns no key; and which nodes are away.

    ``ask`` is given the server, and a node's address.

    Raises:
        redis.exceptions.RedisError, OSError: the server's trouble, or that of all nodes.
    """
    return await redis.answers(ask) if isinstance(redis, ClusterRedis) else ([await ask(redis, None)], [])


async def takes_writes(redis: Redis) -> tuple[list[str], dict[Address | None, int], list[Address]]:
    """Have the server, or the nodes of a cluster that have slots, take a write.

    One may answer and yet take none: it reads its file (``LOADING``), is read-only, has lost the cluster (``CLUSTERDOWN``).
    A full one still takes this one, as it takes renewed leases.

    Returns the names of the servers that hold the data (see `incarnation`); the clocks of those that took it, Unix milliseconds,
    by the node's address, None for a single server; and which nodes took none.

    Raises:
        redis.exceptions.RedisError, OSError: the server takes no write, or no node does.
    """
    clocks: dict[Address | None, int] = {}

    async def written(server: Redis, node: Address | None) -> str:
        key = redis.nodes.key_at(node) if isinstance(redis, ClusterRedis) and node else nothing()
        if key is not None:
            await command(server, "ZREM", key, "-")
            clocks[node] = await now_ms(server)
        return await incarnation(server)

    names, away = await answers(redis, written)
    return names, {node: ms for node, ms in clocks.items() if node not in away}, away


async def servers(redis: Redis) -> tuple[int, list[Redis]]:
    """The server, or the nodes of a cluster that have slots now; and a number that is another one when slots have moved.

    Raises:
        redis.exceptions.RedisError, OSError: the broker's trouble.
    """
    if not isinstance(redis, ClusterRedis):
        return 0, [redis]
    await redis.nodes.learn()
    # Of the trouble of one of them nobody else hears.
    return redis.nodes.moves, await redis.each(_itself)


async def _itself(redis: Redis) -> Redis:
    return redis


async def now_ms(redis: Redis) -> int:
    """The server's clock, Unix milliseconds: what scripts wrote is as old as this says, whatever this host's clock says.

    Raises:
        redis.exceptions.RedisError, OSError: see `command`.
    """
    seconds, micros = await command(redis, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def incarnation(redis: Redis, *, large: bool = False) -> str:
    """Which server's data the next command of this process reaches, ``large`` as that one is: see `Pipe.incarnation`. Empty: not known.

    Raises:
        redis.exceptions.RedisError, OSError: see `command`.
    """
    if not isinstance(redis, PipedRedis):
        return getattr(redis, "incarnation", "")
    return await (redis.large if large else redis.pipe).incarnation()
