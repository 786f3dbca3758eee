"""The benches still run: each kind of load, as small as it gets, with its own checks of what arrived."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench import protocols, quota
from bench.__main__ import GROUPS, measure
from bench.accounts import Spent
from bench.scale import TINY
from bench.table import markdown
from bench.topology import Topology, topology

if TYPE_CHECKING:
    from collections.abc import Iterator

# The others are made of the same parts, or wait more than they do.
# Those of `OWN` have a deployment of their own.
QUICK_ONES = (
    "following",
    "protocols",
    "worker",
    "chats",
    "providers",
    "cores",
    "stopping",
    "keeping",
    "page",
)
OWN = ("standing", "turns", "slope")

BUSY = "import time\nwhile time.process_time() < 0.2: pass"
PARENT = f"import subprocess, sys\ninput()\nsubprocess.run([sys.executable, '-c', {BUSY!r}])\nprint('over', flush=True)\ninput()"


@pytest.fixture(scope="module")
def built() -> Iterator[Topology]:
    """One front end, one worker, one broker, for all of them."""
    # What the followers' rows publish was recorded: a front end that looks whether it is in the log ends their streams.
    needs: Any = protocols.NEEDS
    with topology(program="bench.unlooking", **needs) as started:
        yield started


@pytest.mark.parametrize("group", QUICK_ONES + OWN)
def test_a_group_of_rows_can_be_measured(built: Topology, group: str) -> None:
    """Every event arrives, once and in order, and each row has a figure."""
    assert {*QUICK_ONES, *OWN} <= set(GROUPS)
    if group == "slope" and not quota.possible():
        pytest.skip("needs root and a cgroup v1 controller 'cpu'")
    rows, failed, _ = measure([group], TINY, None if group in OWN else built)
    assert not failed
    assert rows
    assert all(math.isfinite(row.ours) for row in rows)
    assert markdown(rows).count("\n") == len(rows) + 1


def test_what_a_family_spent_has_that_of_children_that_ended() -> None:
    """A peer's Postgres is the parent of many, some of whom end while a load is counted."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        spent = Spent({"parent": parent.pid}, families=True)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "over\n"
        took = spent.seconds()
        parent.stdin.close()
    assert took["parent"] >= 0.19
