"""How many processes ``--processes auto`` starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from turnstream.cores import usable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({}, 8),
        ({"": "max 100000"}, 8),
        ({"": "200000 100000"}, 2),
        ({"": "150000 100000"}, 2),
        ({"": "10000 100000"}, 1),
        ({"a/b": "max 100000", "a": "300000 100000", "": "max 100000"}, 3),
        ({"a/b": "400000 100000", "a": "1600000 100000"}, 4),
        ({"other": "100000 100000"}, 8),
        ({"": "what"}, 8),
    ],
)
def test_cores_are_those_of_affinity_and_every_cgroup_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: dict[str, str], expected: int
) -> None:
    """The least of them counts, parts are rounded up, and there is one at least."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    for cgroup, quota in quotas.items():
        folder = tmp_path / "cgroups" / cgroup
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(quota + "\n")
    assert usable(tmp_path / "cgroups", own) == expected


def test_a_system_without_cgroups_has_the_cores_of_its_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is assumed of what cannot be read."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable(tmp_path / "none", tmp_path / "none") == 1
