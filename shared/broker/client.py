"""The one way to the broker, real or embedded.

Two clients: `Broker.primary` for what concerns everybody (launches, keys, hints, doorbell, control)
and `Broker.sessions` for what belongs to one session. They are the same server unless
``TURNSTREAM_SESSION_REDIS_URL`` names another.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import structlog
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from turnstream.shared import metrics
from turnstream.shared.broker.pipeline import COMMAND_SECONDS, Pipe
from turnstream.shared.errors import BrokerAway, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from turnstream.shared.settings import Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")

# What passes by itself: the broker is away, restarts, fails over, or is full. Waiting and asking
# again is right for all of these, and for nothing else.
TROUBLE = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    MasterDownError,
    OutOfMemoryError,
    TryAgainError,
    ClusterDownError,
    # At the start it is a wrong setting (see `admit`); later somebody changes the rights, and will mend them.
    NoPermissionError,
    OSError,
)

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

# After this a process that waits for its broker without end says for which one.
LONG_SECONDS = 5.0

_REPLICA_ERRORS = ("READONLY", "MASTERDOWN", "LOADING", "OOM", "MISCONF", "UNBLOCKED", "NOREPLICAS", "BUSY ")


def is_trouble(error: BaseException) -> bool:
    """Whether ``error`` is the broker's passing trouble; a script's error carries it only in its text."""
    if isinstance(error, TROUBLE) or any(word in str(error)[:80] for word in _REPLICA_ERRORS):
        return True
    # What uvloop says of a write to a connection that was cut a moment ago; asyncio's own loop takes the write.
    return isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")


class PipedRedis(Redis):
    """A client whose commands, as `command` sends them, share a connection; what is large has another one.

    So nothing waits until somebody's ten mebibytes have passed: an append, a renewed lease.
    """

    def __init__(self, *, connection_pool: ConnectionPool, apart: bool = False) -> None:
        """``apart``: whatever the size, one connection carries it."""
        super().__init__(connection_pool=connection_pool)
        self.pipe = Pipe(connection_pool, large=apart)
        self.large = self.pipe if apart else Pipe(connection_pool, large=True)


class Broker:
    """Connections of one process."""

    def __init__(self, settings: Settings, server: Any = None) -> None:
        """Make the clients; nothing is connected before the first command.

        ``server`` is the embedded broker to share (a fakeredis ``FakeServer``), for ``memory://`` only.
        """
        self.settings = settings
        self._pools: list[ConnectionPool] = []
        self._pipes: list[Pipe] = []
        # Whether it has ever let us in: see `admit`.
        self.admitted = False
        self._apart: list[PipedRedis] = []
        self._room_apart = asyncio.Semaphore(MAX_CONNECTIONS)
        self._server = server
        url = settings.redis_url.get_secret_value()
        self.primary = self._client(url)
        session_url = settings.session_redis_url
        self.sessions = self._client(session_url.get_secret_value()) if session_url else self.primary

    def _client(self, url: str) -> Redis:
        if url.startswith("memory://"):
            from fakeredis import FakeAsyncRedis, FakeServer

            if self._server is None:
                self._server = FakeServer()
            client: Redis = FakeAsyncRedis(server=self._server)
            self._pools.append(client.connection_pool)
            return client
        pool: ConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=COMMAND_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            # What AUTH and SELECT may take: a broker that froze accepts connections and says nothing.
            socket_timeout=COMMAND_SECONDS,
            # To tell every new connection's library takes two commands, and rights that Redis 7.0 cannot give.
            lib_name="",
            lib_version="",
            **({} if url.startswith("unix://") else _TCP),
            **self._credentials(url),
        )
        self._pools.append(pool)
        return self._piped(pool)

    def _piped(self, pool: ConnectionPool, *, apart: bool = False) -> PipedRedis:
        piped = PipedRedis(connection_pool=pool, apart=apart)
        self._pipes += [piped.pipe, piped.large]
        return piped

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[PipedRedis]:
        """A real sessions' server by a connection that nobody else uses meanwhile, as one of `MAX_CONNECTIONS`.

        ``WAIT`` needs it: it holds up what is sent after it, and speaks of its own connection's writes.

        Raises:
            BrokerAway: none got free in time.
        """
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._room_apart.acquire()
        except TimeoutError:
            raise BrokerAway from None
        piped = self._apart.pop() if self._apart else self._piped(self.sessions.connection_pool, apart=True)
        try:
            yield piped
        finally:
            try:
                if not piped.pipe.idle:
                    # Somebody gave up. The next one must not wait behind what they asked.
                    await piped.pipe.close()
            finally:
                self._apart.append(piped)
                self._room_apart.release()

    def _credentials(self, url: str) -> dict[str, Any]:
        """What the URL does not say itself: options in it win over these."""
        given: dict[str, Any] = {}
        if self.settings.redis_password is not None:
            given["password"] = self.settings.redis_password.get_secret_value()
        if url.startswith("rediss://"):
            # The client's own default believes any certificate of a known authority, whoever shows it.
            given["ssl_check_hostname"] = True
            if self.settings.redis_ca is not None:
                given["ssl_ca_certs"] = str(self.settings.redis_ca)
        return given

    async def ready(self) -> bool:
        """Whether both servers answer within a command's time."""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await command(self.primary, "PING")
                if self.sessions is not self.primary:
                    await command(self.sessions, "PING")
        except (*TROUBLE, TimeoutError):
            return False
        return True

    async def admit(self, listed: str, name: str) -> None:
        """Wait until both servers have taken us for who we say we are: process ``name``, of those in the hash ``listed``.

        From then on their refusals are trouble like any other: passwords are changed while processes run.

        Raises:
            ConfigurationError: one refuses user, password or rights.
        """
        # Nothing is changed by this, but who may not do it is not meant to run as such a process.
        asked: list[tuple[str, Redis, tuple[str, ...]]] = [(PRIMARY, self.primary, ("HDEL", listed, name))]
        if self.settings.session_redis_url is not None:
            asked.append((SESSIONS, self.sessions, ("PING",)))
        for setting, redis, words in asked:
            ask = partial(command, redis, *words)
            await insist(
                partial(let_in, self.settings, ask, setting),
                seconds=math.inf,
                what=f"{setting} = {_address(self.settings, setting)}",
            )
        self.admitted = True

    async def close(self) -> None:
        """Close every connection."""
        for pipe in self._pipes:
            await pipe.close()
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
    return _without_secrets(url.get_secret_value()) if url else ""


def _without_secrets(url: str) -> str:
    """A broker's URL as it may be shown: without password and options."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if user else ''}{host}{parts.path}"


async def command(
    redis: Redis, name: str, *arguments: str | bytes | float, more_seconds: float = 0, large: bool = False
) -> Any:
    """Send one command, and wait for its reply while something moves, `COMMAND_SECONDS` when nothing does.

    One that blocks at the broker has ``more_seconds``. ``large`` says that it is, or that its reply may be.

    Raises:
        redis.exceptions.RedisError, OSError: see `is_trouble`.
    """
    if not isinstance(redis, PipedRedis):
        # The embedded broker is this process: a command cannot be lost on the way, only wait for a busy event loop.
        return await redis.execute_command(name, *arguments)  # type: ignore[no-untyped-call]
    pipe = redis.large if large else redis.pipe
    reply = await pipe.command(name, *arguments, more_seconds=more_seconds)
    # As the client's own methods give it: a dict for HGETALL, pairs for XRANGE.
    shape = redis.response_callbacks.get(name)
    return reply if shape is None else shape(reply)


async def now_ms(redis: Redis) -> int:
    """The server's clock, Unix milliseconds: what scripts wrote is as old as this says, whatever this host's clock says.

    Raises:
        redis.exceptions.RedisError, OSError: see `is_trouble`.
    """
    seconds, micros = await command(redis, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def incarnation(redis: Redis, *, large: bool = False) -> str:
    """Which server's data the next command of this process reaches, ``large`` as that one is: see `Pipe.incarnation`. Empty: not known.

    Raises:
        redis.exceptions.RedisError, OSError: see `is_trouble`.
    """
    if not isinstance(redis, PipedRedis):
        return ""
    return await (redis.large if large else redis.pipe).incarnation()


async def insist(ask: Callable[[], Awaitable[T]], *, seconds: float, what: str) -> T:
    """Ask until the broker answers, for ``seconds`` at most; ``ask`` must be safe to repeat.

    Who asks without end says so once, after `LONG_SECONDS`. ``what`` is asked stands in the log.

    Raises:
        BrokerAway: it did not answer in time.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    delay = 0.02
    logged = False
    while True:
        try:
            answer = await ask()
        except Exception as error:
            if not is_trouble(error):
                raise
            away = loop.time() - begun
            if away + delay > seconds:
                metrics.broker_away.n += 1
                log.warning("broker.away", what=what, seconds=round(away, 2), error=type(error).__name__)
                raise BrokerAway from error
            if seconds == math.inf and away > LONG_SECONDS and not logged:
                logged = True
                log.warning(
                    "broker.waiting",
                    what=what,
                    seconds=round(away, 2),
                    error=f"{type(error).__name__}: {error}",
                    todo="start this broker, or correct its setting and restart this process; it goes on by itself",
                )
            # Jitter, so that a hundred waiting requests do not come back in one wave.
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311
            delay = min(delay * 2, 1.0)
        else:
            if loop.time() - begun > 1:
                log.info("broker.back", what=what, seconds=round(loop.time() - begun, 2))
            return answer
