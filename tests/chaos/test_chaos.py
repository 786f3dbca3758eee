"""Killed, frozen, cut off and restarted by seed: nothing is lost, nothing doubled, nothing stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.driver import Plan, run
from tests.chaos.faults import LOSSY

if TYPE_CHECKING:
    from pathlib import Path

# Seconds of faults; starting, healing and judging come on top. `make chaos` runs long.
FAULT_SECONDS = 18


# Most of what may go wrong is simulated (tests/simulation), thousands of turns with every fault beside every other one.
# This is real processes, real sockets and a real broker's files: what ends or freezes them, and what the broker loses.
FAULTS = (
    *sorted(LOSSY),
    *sorted(LOSSY),
    *("kill_worker", "kill_front_end", "freeze_worker", "drain_worker", "cut_commands", "cut_subscribers"),
)


async def test_nothing_is_lost_doubled_or_stuck(tmp_path: Path) -> None:
    """Every accepted turn ends once, and every client saw each event once, in order, whatever died.

    What the broker itself lost is gone, but not silently: who has seen it is told.
    """
    report = await run(Plan(3, FAULT_SECONDS, only=FAULTS), tmp_path)
    assert not report.stuck, report.text()
    assert not report.violations, report.text()
    # Otherwise nothing was shown.
    assert len(report.account.turns) >= 30, report.text()
    # This seed begins with losses.
    assert LOSSY & {kind for _, kind in report.faults}, report.text()


# Each of them is followed by a while in which the nodes come to an agreement, beside what else is done.
ON_A_CLUSTER = ("part_node", "move_slot", "kill_node", "part_process", "kill_worker", "cut_subscribers")


async def test_nothing_is_lost_where_nodes_of_a_cluster_are_cut_off_and_slots_move(tmp_path: Path) -> None:
    """Sessions on three primaries with replicas: as above."""
    report = await run(Plan(2, 8, clients=15, only=ON_A_CLUSTER, broker="cluster"), tmp_path)
    assert not report.stuck, report.text()
    assert not report.violations, report.text()
    assert len(report.account.turns) >= 15, report.text()
    assert {"part_node", "kill_node"} & {kind for _, kind in report.faults}, report.text()


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
