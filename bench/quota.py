"""Processes that get so much of a core and no more, by a control group of the kernel's.

Without it a server would share cores with what loads it, and a second one would only make both slower: how servers add up
could not be seen on a small machine.
"""

from __future__ import annotations

import os
from pathlib import Path

# The controller of the first kind of groups: those of the second kind must be handed on from their top.
ROOT = Path("/sys/fs/cgroup/cpu")

# Short, so that what waits for the next period waits little.
PERIOD_MICROS = 20_000


class NotPossibleError(Exception):
    """No such group can be made here."""


def possible() -> bool:
    """Whether this process may make such groups."""
    return os.access(ROOT / "cgroup.procs", os.W_OK)


class Quota:
    """One process with a share of a core, until it is closed."""

    def __init__(self, pid: int, share: float) -> None:
        """As from now.

        Raises:
            NotPossibleError: as it says.
        """
        self._folder = ROOT / f"turnstream-bench-{pid}"
        try:
            self._folder.mkdir()
            self._write("cpu.cfs_period_us", PERIOD_MICROS)
            self._write("cpu.cfs_quota_us", round(share * PERIOD_MICROS))
            self._write("cgroup.procs", pid)
        except OSError as error:
            raise NotPossibleError(
                f"{error}: needs root, and a cgroup v1 controller 'cpu' at {ROOT}"
            ) from error

    def held_up(self) -> tuple[int, int]:
        """In how many of the periods so far it had used up its share before their end, and how many there were."""
        told = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(told["nr_throttled"]), int(told["nr_periods"])

    def close(self) -> None:
        """Without a limit again; the group is gone."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            (ROOT / "cgroup.procs").write_text(pid)
        self._folder.rmdir()

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))
