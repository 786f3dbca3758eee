"""Chaos for as long as one likes: ``python -m tests.chaos --seeds 1 2 3 --minutes 5``."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

from tests.chaos.driver import Plan, run
from tests.chaos.faults import KINDS, PACE_SECONDS
from tests.chaos.homes import HOMES


def main() -> int:
    """Run each seed in turn; 1 when anything was lost, doubled or stuck."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=1, help="of faults, for each seed")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=[], choices=KINDS)
    parser.add_argument("--broker", default="server", choices=sorted(HOMES), help="where the data is")
    parser.add_argument("--rolls", type=int, default=0, help="so many rolling restarts, and nothing else")
    parser.add_argument(
        "--pace", type=float, nargs=2, default=PACE_SECONDS, help="seconds between two faults"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders with the processes' logs")
    given = parser.parse_args()
    turns = bad = 0
    for seed in given.seeds:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        plan = Plan(
            seed,
            given.minutes * 60,
            given.clients,
            only=("roll",) if given.rolls else tuple(given.only),
            pace=(given.pace[0], given.pace[1]),
            most_faults=given.rolls or Plan.most_faults,
            broker=given.broker,
        )
        report = asyncio.run(run(plan, folder))
        print(report.text(), flush=True)
        for kind, silences in sorted(report.silences().items()):
            p95 = statistics.quantiles(silences, n=20)[-1] if len(silences) > 1 else silences[0]
            middle = statistics.median(silences)
            print(
                f"  silence after {kind}: p50 {middle:.2f} s, p95 {p95:.2f} s, most {max(silences):.2f} s "
                f"({len(silences)} turns)"
            )
        if given.keep or report.violations or report.stuck:
            print(f"  logs: {folder}", flush=True)
        turns += len(report.account.turns)
        bad += len(report.violations) + len(report.stuck) + (report.crashes if given.rolls else 0)
    print(f"{turns} turns, {len(given.seeds)} seeds, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
