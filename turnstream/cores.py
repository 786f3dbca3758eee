"""The cores that a process may use: ``--processes auto``."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """As many as this process may run on (affinity) and is given time on (``cpu.max`` of its cgroups, version 2).

    A part of a core counts as one: with 1.5 cores two processes have something to do.
    """
    quotas = filter(None, map(_quota, _with_parents(cgroups, own)))
    return min([len(os.sched_getaffinity(0)), *(max(1, math.ceil(quota)) for quota in quotas)])


def _with_parents(cgroups: Path, own: Path) -> list[Path]:
    """Our cgroup and those above it, each of which may have a quota."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    path = next((line.partition("::")[2] for line in lines if line.startswith("0::")), "/")
    relative = Path(path.lstrip("/"))
    return [cgroups / each for each in (relative, *relative.parents)]


def _quota(cgroup: Path) -> float:
    """How many cores' time it may take; 0: any number."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return 0.0 if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return 0.0
