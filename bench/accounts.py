"""What processes spent, by their own accounts: user and system time, memory, and the broker's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping


class Spent:
    """User and system seconds of some processes since this was made, by name.

    ``families``: of their children as well, also those that have ended.
    """

    def __init__(self, pids: Mapping[str, int], *, families: bool = False) -> None:
        self._of = family if families else _own
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._begun = self._read()

    def seconds(self) -> dict[str, float]:
        """Until now."""
        return {name: now - self._begun[name] for name, now in self._read().items()}

    def micros(self, count: int) -> dict[str, float]:
        """Microseconds for each of ``count``, until now."""
        return {name: 1e6 * seconds / count for name, seconds in self.seconds().items()}

    def _read(self) -> dict[str, float]:
        return {name: self._of(process) for name, process in self._processes.items()}


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def family(process: psutil.Process) -> float:
    """User and system seconds of a process and all its children, also those that have ended.

    Read again where a child ended meanwhile: what it spent is then in its parent's account.
    """
    while True:
        try:
            times = process.cpu_times()
            ended = float(times.children_user + times.children_system)
            return _own(process) + ended + sum(map(family, process.children()))
        except psutil.NoSuchProcess:
            if not process.is_running():
                raise


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process in MiB."""
    info = psutil.Process(pid).memory_full_info()
    return info.rss / 2**20, info.pss / 2**20


class BrokerSpent:
    """Commands that the broker has served, and bytes that it has sent, since this was made."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._commands, self._bytes = self._read()

    def until_now(self) -> tuple[dict[str, int], int]:
        """Calls by command, without our own INFO, and bytes sent, without INFO's answers."""
        commands, sent = self._read()
        calls = {name: count - self._commands.get(name, 0) for name, count in commands.items()}
        return {name: count for name, count in calls.items() if count and name != "info"}, sent - self._bytes

    def _read(self) -> tuple[dict[str, int], int]:
        # Two asks: what the first answer itself weighs is then in both readings of the counter alike.
        stats = self._client.info("commandstats")
        sent = int(self._client.info("stats")["total_net_output_bytes"])
        return {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}, sent
