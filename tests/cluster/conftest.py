"""The shipped deployment as local processes: nginx, two front ends, two workers, a broker, or several."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from deploy.cluster import Cluster, ClusterError, find_nginx
from tests.support.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def started(folder: Path, **given: Any) -> AsyncIterator[Cluster]:
    """The cluster; nothing that it said holds a key or a password."""
    try:
        find_nginx()
    except ClusterError as error:
        pytest.skip(str(error))
    heard: list[str] = []
    running = Cluster(
        folder, say=lambda name, line: heard.append(f"{name} {line}"), TURNSTREAM_LEASE_SECONDS="2", **given
    )
    try:
        await running.__aenter__()
    except ClusterError as error:
        raise AssertionError("\n".join([str(error), *heard])) from None
    try:
        yield running
    finally:
        await running.end()
    for secret in (running.key, running.admin, *running.passwords.values()):
        assert not [line for line in heard if secret in line]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    """One for all tests of a module."""
    # Not pytest's folder, which only its owner may enter: nginx's workers, when root starts it, are nobody.
    with tempfile.TemporaryDirectory(prefix="turnstream-") as folder:
        async with started(Path(folder)) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client that knows nginx only."""
    client = Client(cluster.url, cluster.key)
    yield client
    await client.close()
