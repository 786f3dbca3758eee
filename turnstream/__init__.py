"""Turnstream serves chat agents from a pool of workers. What agent authors and clients import is here.

from turnstream import AgentError, ClientCall, ResponseBuilder, Thinking, Turn, agent, current_turn
from turnstream import AsyncClient, Client  # with their errors and types: turnstream.client
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from turnstream.client import AsyncClient, Client
    from turnstream.shared.protocol import ResponseBuilder
    from turnstream.worker.agents.coded_agent import ClientCall, Thinking, Turn, agent
    from turnstream.worker.agents.run_outcome import AgentError
    from turnstream.worker.turn import current_turn

__all__ = [
    "AgentError",
    "AsyncClient",
    "Client",
    "ClientCall",
    "ResponseBuilder",
    "Thinking",
    "Turn",
    "agent",
    "current_turn",
]
__version__ = VERSION

# Where each name lives. Loaded when first asked for: a front end is started through this package too,
# and must not load what only workers need.
_HOMES = {
    "AgentError": "turnstream.worker.agents.run_outcome",
    "AsyncClient": "turnstream.client",
    "Client": "turnstream.client",
    "ClientCall": "turnstream.worker.agents.coded_agent",
    "ResponseBuilder": "turnstream.shared.protocol",
    "Thinking": "turnstream.worker.agents.coded_agent",
    "Turn": "turnstream.worker.agents.coded_agent",
    "agent": "turnstream.worker.agents.coded_agent",
    "current_turn": "turnstream.worker.turn",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
