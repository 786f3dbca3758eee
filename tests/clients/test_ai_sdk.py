"""The AI SDK's own transport and chats, of three versions, against processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import javascript

if TYPE_CHECKING:
    from tests.clients.conftest import Scaled


async def test_its_own_clients_against_processes(scaled: str) -> None:
    """Every feature, a cut behind each event, and at the end a worker and a front end that are killed."""
    await _run("ai-sdk-protocol", scaled)


async def test_front_ends_that_end_under_its_clients(built: None, scaled_with: Scaled) -> None:
    """One that is stopped and one that is killed: an error in each version, and then the whole answer."""
    async with scaled_with(front_ends=3) as deployment:
        await _run("ai-sdk-killed", deployment)


async def _run(name: str, deployment: str) -> None:
    await javascript.node(
        "--test",
        "--test-force-exit",
        "--test-timeout=60000",
        f"test/{name}.test.js",
        TURNSTREAM_TEST=deployment,
    )
