"""`turnstream serve` and `turnstream dev` in a folder, as developers start them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from deploy.ports import free_port
from tests.processes.deployment import START_SECONDS
from tests.support.commands import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Serving:
    """A `serve` that is ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str) -> None:
        self.process = process
        self._log = log
        self.url = url

    @property
    def said(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")

    @property
    def keys(self) -> list[str]:
        """The chat key and the admin key."""
        return re.findall(r"(?:chat|admin) key +(sk-\S+)", self.said)


@asynccontextmanager
async def serve(
    folder: Path, *arguments: str, role: str = "serve", **variables: str
) -> AsyncIterator[Serving]:
    """`turnstream serve`, or `dev`, in a folder, until it is left."""
    port, log = free_port(), folder / f"serve-{free_port()}.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [sys.executable, "-m", "turnstream", role, "--port", str(port), *arguments],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(ROOT), **variables},
            stdout=out,
            stderr=out,
        )
    serving = Serving(process, log, f"http://127.0.0.1:{port}")
    try:
        await wait_until(
            lambda: "Ctrl-C ends it" in serving.said or process.poll() is not None, "serve", START_SECONDS
        )
        assert process.poll() is None, serving.said
        yield serving
    finally:
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: process.poll() is not None, "serve to end", START_SECONDS)
