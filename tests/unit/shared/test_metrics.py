"""Metrics by owner and by what agents bring: few series, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.shared import metrics
from turnstream.shared.metrics import MOST_COMBINED, OTHER, Owners, Sums

if TYPE_CHECKING:
    import pytest


def test_the_owners_with_most_turns_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes the place and the series of another with twice its turns; all others are one."""
    for name in ("owner_turns", "owner_tokens", "owner_cost"):
        monkeypatch.setattr(metrics, name, Sums(name, "h", ("owner",)))
    owners = Owners()
    assert owners.label("a") == OTHER
    owners.most = 2
    assert [owners.label(each) for each in ("a", "a", "a", "b", "b", "c", "c", "c")] == [
        *"aaabb", OTHER, OTHER, OTHER,
    ]  # fmt: skip
    metrics.owner_turns.add("b")
    metrics.owner_turns.add("a")
    assert owners.label("c") == "c"
    assert metrics.owner_turns.by == {("a",): 1}
    assert owners.label("b") == OTHER
    for number in range(3 * MOST_COMBINED):
        assert owners.label(f"small{number}") == OTHER
    assert owners.label("a") == "a"
    assert len(owners._turns) <= MOST_COMBINED + 1


def test_an_owner_called_other_is_among_the_others() -> None:
    """Whose series it would share, and take along when it is forgotten."""
    owners = Owners()
    owners.most = 1
    assert owners.label(OTHER) == OTHER
    assert owners.label("a") == "a"


def test_combinations_are_bounded() -> None:
    """Those that come too late are one."""
    sums = Sums("test", "h", ("a", "b"))
    for number in range(2 * MOST_COMBINED):
        sums.add("x", str(number))
    sums.add("x", "1")
    assert len(sums.by) == MOST_COMBINED + 1
    assert sums.by["x", "1"] == 2
    assert sums.by[OTHER, OTHER] == MOST_COMBINED
