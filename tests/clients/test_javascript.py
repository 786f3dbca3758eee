"""The JavaScript client: its own tests, in Node, against processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import javascript
from turnstream.api import operators

if TYPE_CHECKING:
    from tests.support.stack import Stack

CONSOLE = Path(next(iter(operators.__path__))) / "static" / "client.js"

# The last one kills what the others need.
FILES = ("conversation", "following", "calls", "chat", "ai-sdk", "processes")


async def test_the_package_against_processes(scaled: str) -> None:
    """Cuts, stops, calls, limits and kills; the console's part, React's and the AI SDK's."""
    for name in FILES:
        await _run(name, scaled)


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
async def test_a_session_whose_beginning_was_cut(built: None, stack: Stack) -> None:
    """The history has it, or nothing has: it is asked for once."""
    await stack.worker(log_max_bytes=65_536)
    client = await stack.front_end(log_max_bytes=65_536)
    await _run("trimmed", json.dumps({"urls": [client.base_url], "key": stack.key}))


async def _run(name: str, deployment: str) -> None:
    await javascript.node(
        "--test",
        "--test-force-exit",
        "--test-timeout=60000",
        f"test/{name}.test.js",
        TURNSTREAM_TEST=deployment,
    )


def test_the_lock_names_no_registry() -> None:
    """Whoever installs has a registry of their own; the hashes say what must come from it."""
    lock = json.loads((javascript.PACKAGE / "package-lock.json").read_text())
    packages = [each for place, each in lock["packages"].items() if place]
    assert all("integrity" in each and "resolved" not in each for each in packages)


async def test_what_users_write_is_checked(built: None) -> None:
    """The types say what can be written: a client, a loop over events, both hooks."""
    await javascript.node("node_modules/typescript/bin/tsc", "--project", "test/tsconfig.json")


def test_the_console_has_what_the_source_builds(built: None) -> None:
    """Nobody edits the built file; who edits the source builds it: ``npm run console`` in clients/js."""
    assert CONSOLE.read_bytes() == javascript.console()
    for name in ("highlight", "math"):
        assert (CONSOLE.parent / f"{name}.min.js").read_bytes() == javascript.vendored(name), (
            f"npm run vendor: {name}"
        )
