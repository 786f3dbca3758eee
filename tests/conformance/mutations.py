"""Every way in which a good capture is spoilt, and the rules that must notice: proof that no rule is for show."""

from __future__ import annotations

from tests.conformance.capture import Wire
from tests.conformance.mutations_agentscope import AGENTSCOPE
from tests.conformance.mutations_framing import FRAMING
from tests.conformance.mutations_liteagent import LITEAGENT
from tests.conformance.spoiling import AGENT, ALL, LITE

MUTATIONS = [*FRAMING.table, *AGENTSCOPE.table, *LITEAGENT.table]

# Those that were asked for by name, and the wires on which each must be tried.
NAMED: dict[str, tuple[Wire, ...]] = {
    "a lost delta": ALL,
    "a doubled event": ALL,
    "a wrong index": AGENT,
    "a missing terminal": ALL,
    "CRLF": ALL,
    "a comment": LITE,
    "a split frame": LITE,
}
