"""Clients under test, and the proxy between them and their front ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.support.link import Link
from tests.unit.turnstream.client.scripted import ScriptedServer
from turnstream import AsyncClient
from turnstream.client import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support import client as plain
    from tests.support.stack import Stack

# Tests wait for what they cause.
QUICK = Backoff(first=0.005, most=0.05)


class Clients:
    """Makes clients for a stack, and closes them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._made: list[AsyncClient] = []

    def make(self, url: str, *, key: str = "", **given: Any) -> AsyncClient:
        """A client of the front end, or of a proxy before it."""
        made = AsyncClient(url, key or self._stack.key, **{"backoff": QUICK, "patience": 20, **given})
        self._made.append(made)
        return made

    async def close(self) -> None:
        """Close them all."""
        for each in self._made:
            await each.close()


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[Clients]:
    """Makes clients."""
    clients = Clients(stack)
    yield clients
    await clients.close()


@pytest.fixture
async def ours(client: plain.Client, clients: Clients) -> AsyncClient:
    """The client under test, at a deployment with one front end and one worker."""
    return clients.make(client.base_url)


@pytest.fixture
async def proxy(client: plain.Client) -> AsyncIterator[Link]:
    """A proxy before the front end; it cuts nothing until told."""
    proxy = Link(port_of(client))
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    """A server that answers as it is told."""
    server = ScriptedServer()
    await server.start()
    yield server
    await server.close()


def port_of(client: plain.Client) -> int:
    """Where a client's front end listens."""
    port = urlsplit(client.base_url).port
    assert port is not None
    return port
