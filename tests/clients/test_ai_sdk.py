"""The AI SDK's own transport and chats, of three versions, against processes."""

from __future__ import annotations

from tests.support import javascript


async def test_its_own_clients_against_processes(scaled: str) -> None:
    """Every feature, a cut behind each event, and at the end a worker and a front end that are killed."""
    await javascript.node(
        "--test",
        "--test-force-exit",
        "--test-timeout=60000",
        "test/ai-sdk-protocol.test.js",
        TURNSTREAM_TEST=scaled,
    )
