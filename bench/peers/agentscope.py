"""AgentScope Runtime, in an environment of its own beside ours, with the same echo agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.topology import HOST, answers
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "AgentScope"
PACKAGES = ("agentscope-runtime==1.1.6.post2", "agentscope==2.0.10", "uvloop", "httptools")

INSTALL_SECONDS = 180
START_SECONDS = 60

# Kept between runs: installing takes longer than measuring.
FOLDER = (
    Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "turnstream-bench" / "agentscope"
)


class NotInstalledError(Exception):
    """It cannot be had here; the text says why."""


@contextmanager
def agentscope() -> Iterator[tuple[int, int]]:
    """A running server: its port and process id.

    Raises:
        NotInstalledError: it could not be installed, or did not start.
    """
    python, port = _installed(), free_port()
    folder = FOLDER.parent / "run"
    folder.mkdir(exist_ok=True)
    with (FOLDER.parent / "agentscope.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("agentscope_echo.py")), str(port)],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + START_SECONDS
        while not answers(f"http://{HOST}:{port}/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise NotInstalledError(f"it does not start: see {log.name}")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _installed() -> Path:
    python = FOLDER / "bin" / "python"
    done = FOLDER / ".installed"
    wanted = " ".join(PACKAGES)
    if done.exists() and done.read_text() == wanted:
        return python
    uv = shutil.which("uv")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    try:
        if uv:
            _call(uv, "venv", "--quiet", "--python", sys.executable, str(FOLDER))
            _call(uv, "pip", "install", "--quiet", "--python", str(python), *PACKAGES)
        else:
            _call(sys.executable, "-m", "venv", str(FOLDER))
            _call(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotInstalledError(f"it could not be installed: {error}") from None
    done.write_text(wanted)
    return python


def _call(*words: str) -> None:
    subprocess.run(words, check=True, timeout=INSTALL_SECONDS, capture_output=True)
