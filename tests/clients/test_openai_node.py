"""OpenAI's own client in Node, against processes."""

from __future__ import annotations

from pathlib import Path

from tests.support import javascript

PACKAGE = Path(__file__).parent / "openai_node"


async def test_the_client_against_processes(scaled: str) -> None:
    """Text, functions, a resume at another front end, a cancel, a conversation, chat completions."""
    javascript.install(PACKAGE)
    await javascript.node(
        "--test",
        "--test-force-exit",
        "--test-timeout=60000",
        "openai.test.js",
        package=PACKAGE,
        TURNSTREAM_TEST=scaled,
    )
