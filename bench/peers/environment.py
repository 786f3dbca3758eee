"""What a peer runs in: packages of its own beside ours, and a server that is awaited and ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.topology import HOST, answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSTALL_SECONDS = 180
START_SECONDS = 60
END_SECONDS = 5

# Kept between runs: installing takes longer than measuring.
FOLDER = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "turnstream-bench"


class NotInstalledError(Exception):
    """It cannot be had here; the text says why."""


@contextmanager
def serving(name: str, packages: Sequence[str], program: str, port: int, *arguments: int) -> Iterator[int]:
    """A running server, in an environment that has these packages: its process id.

    The program is a file of this folder; it is given the port, then the other arguments, and answers ``/health``.

    Raises:
        NotInstalledError: it could not be installed, or did not start.
    """
    python = _installed(name, packages)
    folder = FOLDER / "run"
    folder.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.log").open("wb") as log:
        # -P: beside the program lie modules with the names of what it imports.
        process = subprocess.Popen(
            [str(python), "-P", str(Path(__file__).with_name(program)), *map(str, (port, *arguments))],
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
        yield process.pid
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], by: signal.Signals = signal.SIGTERM) -> None:
    """Ask it to end, and kill it if it does not."""
    process.send_signal(by)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _installed(name: str, packages: Sequence[str]) -> Path:
    environment = FOLDER / name
    python, done = environment / "bin" / "python", environment / ".installed"
    wanted = " ".join(packages)
    if done.exists() and done.read_text() == wanted:
        return python
    uv = shutil.which("uv")
    shutil.rmtree(environment, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        if uv:
            _call(uv, "venv", "--quiet", "--python", sys.executable, str(environment))
            _call(uv, "pip", "install", "--quiet", "--python", str(python), *packages)
        else:
            _call(sys.executable, "-m", "venv", str(environment))
            _call(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotInstalledError(f"it could not be installed: {error}") from None
    done.write_text(wanted)
    return python


def _call(*words: str) -> None:
    subprocess.run(words, check=True, timeout=INSTALL_SECONDS, capture_output=True)
