"""OpenAI's own client in Node, against processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import javascript

if TYPE_CHECKING:
    from tests.clients.conftest import Scaled

PACKAGE = Path(__file__).parent / "openai_node"


async def test_the_client_against_processes(scaled: str) -> None:
    """Text, functions, a resume at another front end, a cut behind each event, a cancel, a conversation, chat completions."""
    await _run("openai", scaled)


async def test_processes_that_end_under_the_client(built: None, scaled_with: Scaled) -> None:
    """Two front ends, one stopped and one killed, and a worker: no cut looks like an end, and each event comes once."""
    async with scaled_with(front_ends=3) as deployment:
        await _run("processes", deployment)


async def _run(name: str, deployment: str) -> None:
    javascript.install(PACKAGE)
    await javascript.node(
        "--test",
        "--test-force-exit",
        "--test-timeout=60000",
        f"{name}.test.js",
        package=PACKAGE,
        TURNSTREAM_TEST=deployment,
    )
