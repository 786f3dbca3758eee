"""The command line as operators use it: each command a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str


async def turnstream(*arguments: str, **variables: str) -> Done:
    """Run a command with these variables on top of the environment."""
    return await turnstream_in(ROOT, *arguments, **variables)


async def turnstream_in(folder: Path, *arguments: str, **variables: str) -> Done:
    """The same, in a folder."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "turnstream", *arguments,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())
