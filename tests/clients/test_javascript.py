"""The JavaScript client: its own tests, in Node, against processes."""

from __future__ import annotations

from tests.support import javascript

# The last one kills what the others need.
FILES = ("conversation", "following", "calls", "chat", "ai-sdk", "processes")


async def test_the_package_against_processes(scaled: str) -> None:
    """Cuts, stops, calls, limits and kills; what the hook is made of, and the AI SDK's chat."""
    for name in FILES:
        await javascript.node(
            "--test",
            "--test-force-exit",
            "--test-timeout=60000",
            f"test/{name}.test.js",
            TURNSTREAM_TEST=scaled,
        )
