"""``python -m tests.simulation --seeds 1-40 --turns 500``: simulate, each seed in a process of its own.

A seed that violates a rule is made smaller (fewer clients, turns and kinds of faults) for as long as it still does,
and its trace is written to a file. See docs/simulation.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.cluster import FORMS
from tests.simulation.faults import WEIGHTS
from tests.simulation.run import IN_TURN, Outcome, Plan, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

# A run that takes longer hangs: it makes no virtual progress.
LONGEST_SECONDS = 600.0

# Of making a failing run smaller.
SHRINK_SECONDS = 300.0

_processes = multiprocessing.get_context("fork")


def main() -> int:
    """Simulate; 1 when anything was violated."""
    with_fixed_hashes("tests.simulation")
    given = _arguments()
    faults = None if given.faults is None else tuple(given.faults)
    plans = [
        Plan.of_seed(seed, given.turns, given.clients, faults, given.pace, given.brokers)
        for seed in seeds_of(given.seeds)
    ]
    begun, outcomes = time.monotonic(), list[Outcome]()
    with ThreadPoolExecutor(given.jobs) as pool:
        for plan, outcome in zip(plans, pool.map(beside, plans), strict=True):
            outcomes.append(outcome)
            print(outcome, flush=True)
            if outcome.wrong:
                if given.first:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
                _explain(plan if given.whole else _smallest(outcome), given.trace)
    print(_table(outcomes, time.monotonic() - begun))
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


def with_fixed_hashes(module: str) -> None:
    """Begin a module's program anew unless its hashes are fixed: else the order of sets of texts is another one in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        words = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "PYTHONHASHSEED": "0"})


def _table(outcomes: list[Outcome], seconds: float) -> str:
    """What all seeds did together; the last line of a run."""
    turns = sum(outcome.turns for outcome in outcomes)
    cells = {
        "seeds": len(outcomes),
        "turns": turns,
        "faults": sum(sum(outcome.faults.values()) for outcome in outcomes),
        "violations": sum(len(outcome.wrong) for outcome in outcomes),
        "virtual s": f"{sum(outcome.virtual for outcome in outcomes):.0f}",
        "real s": f"{seconds:.0f}",
        "CPU s": f"{sum(outcome.cpu for outcome in outcomes):.0f}",
        "turns/s": f"{turns / seconds:.1f}",
    }
    widths = [max(len(name), len(str(value))) for name, value in cells.items()]
    lines = [
        "  ".join(str(each).rjust(width) for each, width in zip(row, widths, strict=True))
        for row in (cells.keys(), cells.values())
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", default=["1"], help="numbers, or ranges as 1-40")
    parser.add_argument("--turns", type=int, default=400, help="for each seed, about")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--faults", nargs="*", choices=sorted(WEIGHTS), help="the seed's choice by default")
    parser.add_argument(
        "--pace",
        type=float,
        help="how many times as often as usual faults come; the seed's choice by default",
    )
    parser.add_argument(
        "--brokers", nargs="+", choices=FORMS, default=IN_TURN, help="what brokers the seeds have, in turn"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="seeds at once")
    parser.add_argument("--whole", action="store_true", help="do not make failing runs smaller")
    parser.add_argument(
        "--first",
        action="store_true",
        help="end with the first seed that violates something, and do not explain it",
    )
    parser.add_argument("--trace", type=Path, help="where to write what the processes of a failing run did")
    return parser.parse_args()


def seeds_of(texts: Sequence[str]) -> Iterator[int]:
    """The seeds that numbers and ranges name."""
    for text in texts:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


def beside(plan: Plan, *, record: bool = False, seconds: float = LONGEST_SECONDS) -> Outcome:
    """Run a plan in a process of its own, for so long at most: what is killed in it can never be freed."""
    receiving, sending = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_send, args=(plan, record, sending))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            return Outcome(plan, wrong=[f"it_ends: not within {seconds:.0f} s"])
        outcome: Outcome = receiving.recv()
    except EOFError:
        return Outcome(plan, wrong=["it_ends: its process did, see above"])
    finally:
        process.kill()
        process.join()
    return outcome


def _send(plan: Plan, record: bool, sending: Connection) -> None:
    sending.send(simulate(plan, record=record))
    sending.close()
    os._exit(0)


def _explain(plan: Plan, trace: Path | None) -> None:
    outcome = beside(plan)
    path = trace or Path(tempfile.gettempdir()) / f"simulation-{plan.seed}.trace"
    path.write_text("\n".join(sorted(outcome.log)))
    print(f"the smallest run found that violates the same rule:\n{outcome}")
    print(
        f"  trace: {path}\n  again: python -m tests.simulation --whole {' '.join(plan.arguments())}",
        flush=True,
    )


def _smallest(outcome: Outcome) -> Plan:
    """The smallest plan found that still violates the rule that was violated first."""
    until = time.monotonic() + SHRINK_SECONDS
    plan, rule = outcome.plan, next(iter(outcome.by_rule()))

    def violates(smaller: Plan) -> bool:
        left = until - time.monotonic()
        # One that was not waited for to its end says nothing.
        return left > 0 and rule in beside(smaller, seconds=left).by_rule() and time.monotonic() < until

    while found := next(filter(violates, _smaller(plan)), None):
        plan = found
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.turns > 10:
        yield replace(plan, turns=plan.turns // 2)
    if plan.clients > 1:
        yield replace(plan, clients=plan.clients // 2)
    half = len(plan.faults) // 2
    if half:
        yield replace(plan, faults=plan.faults[:half])
        yield replace(plan, faults=plan.faults[half:])
    for kind in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each != kind))


if __name__ == "__main__":
    sys.exit(main())
