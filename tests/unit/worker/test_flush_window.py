"""How long text waits, by what the process spends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnstream.worker import flush_window
from turnstream.worker.flush_window import BUSY_SHARE, IDLE_SHARE, MEASURED_SECONDS, FlushWindow

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 0.04


class Clocks:
    """The time that passes and the CPU time that is spent, as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = self._spent = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        monkeypatch.setattr(flush_window, "cpu_wanted", lambda: self._spent)

    def spend(self, share: float, seconds: float = 2 * MEASURED_SECONDS) -> None:
        """Let time pass, of which the process takes this share of a core."""
        self._now += seconds
        self._spent += share * seconds


@pytest.mark.parametrize(
    ("share", "window"),
    [
        (0.0, 0.0),
        (IDLE_SHARE, 0.0),
        ((IDLE_SHARE + BUSY_SHARE) / 2, LONGEST / 2),
        (BUSY_SHARE, LONGEST),
        (3.0, LONGEST),
    ],
)
def test_the_window_grows_with_what_is_spent(
    monkeypatch: pytest.MonkeyPatch, share: float, window: float
) -> None:
    """Nothing for an idle process, the longest for a busy one."""
    clocks = Clocks(monkeypatch)
    flush = FlushWindow(LONGEST)
    clocks.spend(share)
    assert flush.seconds() == pytest.approx(window, abs=1e-9)


def test_a_burst_after_an_idle_time_is_not_taken_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured since the last look includes the time in which nothing was done; the next look sees the load."""
    clocks = Clocks(monkeypatch)
    flush = FlushWindow(LONGEST)
    clocks.spend(0, seconds=60)
    clocks.spend(1, seconds=0.02)
    assert flush.seconds() == 0
    clocks.spend(1)
    assert flush.seconds() == LONGEST
    clocks.spend(0)
    assert flush.seconds() == 0


def _missing(path: Path) -> bytes:
    raise FileNotFoundError(path)


def _zeros(path: Path) -> bytes:
    return b"0 0 0\n"


@pytest.mark.parametrize("counts", [Path.read_bytes, _missing, _zeros])
def test_work_is_seen(monkeypatch: pytest.MonkeyPatch, counts: Callable[[Path], bytes]) -> None:
    """With and without the system's count of the time in which a thread waited for a core."""
    monkeypatch.setattr(Path, "read_bytes", counts)
    wanted, spent = flush_window.cpu_wanted(), time.thread_time()
    while time.thread_time() < spent + 0.05:
        pass
    assert flush_window.cpu_wanted() - wanted > 0.04


def test_zero_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator sets it who wants each piece by itself."""
    clocks = Clocks(monkeypatch)
    flush = FlushWindow(0)
    clocks.spend(1)
    assert flush.seconds() == 0
