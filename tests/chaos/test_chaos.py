"""Killed, frozen, cut off and restarted by seed: nothing is lost, nothing doubled, nothing stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.driver import Plan, run
from tests.chaos.faults import LOSSY

if TYPE_CHECKING:
    from pathlib import Path

# Seconds of faults for each seed; starting, healing and judging come on top. `make chaos` runs long.
FAULT_SECONDS = 18


# The broker loses what it acknowledged, now and then while workers and front ends are lost, too.
LOSSES = (*sorted(LOSSY), *sorted(LOSSY), "kill_worker", "kill_front_end", "cut_commands", "cut_subscribers")


# Most of what may go wrong is simulated (tests/simulation); this is real processes, a real broker and real clocks.
@pytest.mark.parametrize(("seed", "only"), [(1, ()), (3, LOSSES)])
async def test_nothing_is_lost_doubled_or_stuck(seed: int, only: tuple[str, ...], tmp_path: Path) -> None:
    """Every accepted turn ends once, and every client saw each event once, in order, whatever died.

    What the broker itself lost is gone, but not silently: who has seen it is told.
    """
    report = await run(Plan(seed, FAULT_SECONDS, only=only), tmp_path)
    assert not report.stuck, report.text()
    assert not report.violations, report.text()
    # Otherwise nothing was shown.
    assert len(report.account.turns) >= 30, report.text()
    assert report.faults, report.text()
    assert not only or LOSSY & {kind for _, kind in report.faults}, report.text()


async def test_a_rolling_restart_under_load_costs_nobody_anything(tmp_path: Path) -> None:
    """Every worker and front end is replaced while clients chat: no turn fails, no attempt counts as a crash."""
    # `make rolling` does it twenty times.
    plan = Plan(4, 120, clients=15, workers=2, most_faults=1, only=("roll",), pace=(0.2, 0.3))
    report = await run(plan, tmp_path)
    assert not report.stuck, report.text()
    assert not report.violations, report.text()
    assert report.crashes == 0, report.text()
    assert [kind for _, kind in report.faults] == ["roll"], report.text()
    assert len(report.account.turns) >= 30, report.text()
