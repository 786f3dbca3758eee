"""One attacker with an ordinary key, every known attack in turn: a neighbour's turns all complete, and soon.

Shortened: ``python -m tests.security.siege --minutes 10`` is the whole of it.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import pytest

from deploy.cluster import ClusterError, find_nginx
from tests.security.siege.siege import NOISE_SECONDS, Phase, Siege

# For each attack; starting the attacker's process takes about one of them.
ATTACK_SECONDS = 4


async def test_a_neighbours_turns_complete_whatever_one_key_does() -> None:
    """None fails, three of four take no longer than twice the slowest alone, and no process is killed for want of memory.

    A dozen turns an attack are too few for a p99 of its own; the long siege prints that.
    """
    try:
        find_nginx()
    except ClusterError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        siege = Siege(Path(folder), name="siege-test")
        async with siege:
            phases = [phase async for phase in siege.all(ATTACK_SECONDS)]
            report = siege.report()
            kills = siege.cages.kills()
    assert not [failure for phase in phases for failure in phase.failures], report
    assert not sum(kills.values()), report
    assert all(phase.seconds for phase in phases), report
    assert sum(phase.took_place for phase in phases) > len(phases) / 2, report
    under = statistics.quantiles([each for phase in phases for each in phase.seconds], n=4)[2]
    assert under <= 2 * Phase("(alone)", siege.alone).p99 + NOISE_SECONDS, report
