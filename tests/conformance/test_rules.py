"""What a real worker says keeps every rule of every wire."""

from __future__ import annotations

import pytest

from tests.conformance.capture import Wire
from tests.conformance.captures import from_entries, recorded
from tests.conformance.checker import RULES, WAYS, check, table
from tests.conformance.features import FEATURES

CASES = [(feature.name, wire, stream) for feature in FEATURES for wire, stream in WAYS]


@pytest.mark.parametrize("pings", [False, True])
@pytest.mark.parametrize(("name", "wire", "stream"), CASES)
def test_features_keep_the_rules(name: str, wire: Wire, stream: bool, pings: bool) -> None:
    """Each feature's stream, with heartbeats in it and without, breaks no rule of its wire."""
    capture = from_entries(recorded(name), wire, stream=stream, pings=pings)
    assert [str(violation) for violation in check(capture)] == []


@pytest.mark.parametrize("wire", RULES)
def test_rules_explain_themselves(wire: Wire) -> None:
    """Every rule has a name of its own, a section of the wire, and a sentence."""
    rules = table(wire)
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.check.__doc__
        assert rule.where.startswith(RULES[wire].wire)
