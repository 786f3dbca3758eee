"""The JavaScript client: its own tests, in Node, against processes."""

from __future__ import annotations

from pathlib import Path

from tests.support import javascript
from turnstream.api import operators

CONSOLE = Path(next(iter(operators.__path__))) / "static" / "client.js"

# The last one kills what the others need.
FILES = ("conversation", "following", "calls", "chat", "ai-sdk", "processes")


async def test_the_package_against_processes(scaled: str) -> None:
    """Cuts, stops, calls, limits and kills; the console's part, React's and the AI SDK's."""
    for name in FILES:
        await javascript.node(
            "--test",
            "--test-force-exit",
            "--test-timeout=60000",
            f"test/{name}.test.js",
            TURNSTREAM_TEST=scaled,
        )


def test_the_console_has_what_the_source_builds(built: None) -> None:
    """Nobody edits the built file; who edits the source builds it: ``npm run console`` in clients/js."""
    assert CONSOLE.read_bytes() == javascript.console()
