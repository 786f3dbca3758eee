"""Measures and prints one table: ``python -m bench [group …] [--quick] [--write]``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine
from bench.scale import FULL, QUICK
from bench.table import markdown, plain
from bench.topology import topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.scale import Scale
    from bench.table import Row
    from bench.topology import Topology

# Groups of rows, in the order of the table; each is a module with `run(built, scale)`, which yields rows.
GROUPS = (
    "following",
    "protocols",
    "worker",
    "chats",
    "providers",
    "cores",
    "latency",
    "stopping",
    "reconnecting",
    "followers",
    "idling",
    "keeping",
    "standing",
    "turns",
    "slope",
    "page",
)

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Run what is asked for; the exit code tells whether all of it could be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}; all unless given"
    )
    parser.add_argument("--quick", action="store_true", help="smaller loads: a look, not a result")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    given = parser.parse_args()
    if unknown := set(given.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    begun, before = time.monotonic(), machine.load()
    rows, failed, took = measure(given.groups or GROUPS, QUICK if given.quick else FULL)
    about = machine.about(before, time.monotonic() - begun, took)
    print(f"\n{about}")
    if given.write:
        _write(about, rows)
    for group in failed:
        print(f"{group} could not be measured, see above")
    return 1 if failed else 0


def measure(
    groups: Sequence[str], scale: Scale, shared: Topology | None = None
) -> tuple[list[Row], list[str], list[str]]:
    """Measure groups, telling each row at once: the rows, the groups that failed, and what each took.

    Each group has a deployment of its own unless there is one for all.
    """
    rows: list[Row] = []
    failed: list[str] = []
    took: list[str] = []
    for group in groups:
        begun, others = time.monotonic(), machine.Others()
        try:
            module = importlib.import_module(f"bench.{group}")
            with nullcontext(shared) if shared else topology(**getattr(module, "NEEDS", {})) as built:
                for row in module.run(built, scale):
                    rows.append(row)
                    print(plain([row]), flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(group)
        took.append(f"{group} {time.monotonic() - begun:.0f} s ({others.cores():.1f} cores)")
        print(f"    {took[-1]}", flush=True)
    return rows, failed, took


def _write(about: str, rows: list[Row]) -> None:
    kept = RESULTS.read_text().partition("\n## ")[2] if RESULTS.exists() else ""
    text = f"# Results\n\nWritten by `make bench`.\n\n{about}\n\n{markdown(rows)}\n"
    RESULTS.write_text(text + (f"\n## {kept}" if kept else ""))


if __name__ == "__main__":
    sys.exit(main())
