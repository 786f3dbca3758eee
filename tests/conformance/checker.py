"""One door to the rules of all wires."""

from __future__ import annotations

from tests.conformance.capture import Capture, Rule, Violation, Wire
from tests.conformance.rules_agentscope import AGENTSCOPE, JAVA
from tests.conformance.rules_liteagent import LITEAGENT

RULES = {"agentscope": AGENTSCOPE, "java": JAVA, "liteagent": LITEAGENT}

# Every way in which a stream may be asked for.
WAYS: tuple[tuple[Wire, bool], ...] = (
    ("agentscope", True),
    ("java", True),
    ("liteagent", True),
    ("liteagent", False),
)


def check(capture: Capture) -> list[Violation]:
    """Everything about a capture that its wire does not allow."""
    return RULES[capture.wire].check(capture)


def broken(capture: Capture) -> set[str]:
    """The names of the rules that a capture breaks."""
    return {violation.rule for violation in check(capture)}


def table(wire: Wire) -> list[Rule]:
    """The rules of a wire."""
    return RULES[wire].table
