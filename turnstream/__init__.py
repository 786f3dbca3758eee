"""Turnstream serves chat agents from a pool of workers. What agent authors and clients import is here.

from turnstream import AgentError, ClientCall, ResponseBuilder, Thinking, Turn, agent, current_turn
from turnstream import Call, Outcome, current_call, effects  # tools whose effects happen once: docs/effects.md
from turnstream import AsyncClient, Client  # with their errors and types: turnstream.client
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from turnstream.client import AsyncClient, Client
    from turnstream.shared.protocol import ResponseBuilder
    from turnstream.worker.agents.calls import Call, Outcome, current_call, effects
    from turnstream.worker.agents.coded_agent import ClientCall, Thinking, Turn, agent
    from turnstream.worker.agents.run_outcome import AgentError
    from turnstream.worker.turn import current_turn

__all__ = [
    "AgentError",
    "AsyncClient",
    "Call",
    "Client",
    "ClientCall",
    "Outcome",
    "ResponseBuilder",
    "Thinking",
    "Turn",
    "agent",
    "current_call",
    "current_turn",
    "effects",
]
__version__ = VERSION

# Where each name lives. Loaded when first asked for: a front end is started through this package too,
# and must not load what only workers need.
_HOMES = {
    "AgentError": "turnstream.worker.agents.run_outcome",
    "AsyncClient": "turnstream.client",
    "Call": "turnstream.worker.agents.calls",
    "Client": "turnstream.client",
    "ClientCall": "turnstream.worker.agents.coded_agent",
    "Outcome": "turnstream.worker.agents.calls",
    "ResponseBuilder": "turnstream.shared.protocol",
    "Thinking": "turnstream.worker.agents.coded_agent",
    "Turn": "turnstream.worker.agents.coded_agent",
    "agent": "turnstream.worker.agents.coded_agent",
    "current_call": "turnstream.worker.agents.calls",
    "current_turn": "turnstream.worker.turn",
    "effects": "turnstream.worker.agents.calls",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
