"""AG-UI's client and CopilotKit's, in Node, against processes; old clients, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support import javascript

if TYPE_CHECKING:
    from tests.clients.conftest import Scaled

# The last one kills what the others need.
FILES = ("http-agent", "copilotkit", "cuts", "processes")


async def test_the_clients_against_processes(scaled_with: Scaled) -> None:
    """All that agents say and ask, reloads, stops, a cut behind each event, kills."""
    javascript.install(javascript.AG_UI)
    # So often that a heartbeat comes between any two events of a slow turn.
    async with scaled_with(
        front_ends=3, TURNSTREAM_PROTOCOLS="default,copilotkit", TURNSTREAM_HEARTBEAT_SECONDS="1"
    ) as deployment:
        for name in FILES:
            await javascript.node(
                "--test",
                "--test-force-exit",
                "--test-timeout=60000",
                f"{name}.test.js",
                package=javascript.AG_UI,
                TURNSTREAM_TEST=deployment,
            )


def test_the_lock_names_no_registry() -> None:
    """As that of the package of our own."""
    lock = json.loads((javascript.AG_UI / "package-lock.json").read_text())
    packages = [each for place, each in lock["packages"].items() if place]
    assert all("integrity" in each and "resolved" not in each for each in packages)
