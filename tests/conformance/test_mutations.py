"""The checker notices what it is for: each rule is broken on purpose, and says so."""

from __future__ import annotations

import pytest

from tests.conformance.capture import Wire
from tests.conformance.checker import RULES, broken, table
from tests.conformance.mutations import MUTATIONS, NAMED
from tests.conformance.spoiling import Mutation

CASES = [
    pytest.param(mutation, wire, id=f"{wire}-{mutation.name.replace(' ', '_')}")
    for mutation in MUTATIONS
    for wire in mutation.wires
]


@pytest.mark.parametrize(("mutation", "wire"), CASES)
def test_a_spoilt_capture_breaks_the_rules_it_should(mutation: Mutation, wire: Wire) -> None:
    """The rules that must notice do, and no others: a rule says what is wrong, not that something is."""
    good = mutation.good(wire)
    spoilt = mutation.spoil(good)
    assert spoilt != good
    assert broken(spoilt) - broken(good) == mutation.caught_by


@pytest.mark.parametrize("wire", RULES)
def test_every_rule_can_be_broken(wire: Wire) -> None:
    """Each rule in the table is hit by some mutation: one that cannot fail would be a defect."""
    caught = {rule for mutation in MUTATIONS if wire in mutation.wires for rule in mutation.caught_by}
    assert {rule.name for rule in table(wire)} == caught


@pytest.mark.parametrize("name", NAMED)
def test_the_usual_defects_are_tried(name: str) -> None:
    """What goes wrong in the field is among the mutations, on each wire where it can."""
    tried = {wire for mutation in MUTATIONS if mutation.name == name for wire in mutation.wires}
    assert tried == set(NAMED[name])
