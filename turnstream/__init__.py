"""Turnstream serves chat agents from a pool of workers. What agent authors and clients import is here.

from turnstream import AgentError, ClientCall, ResponseBuilder, Thinking, Turn, agent, current_turn
from turnstream import Client  # with its errors and types: turnstream.client
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.version import VERSION

if TYPE_CHECKING:
    from shared.protocol import ResponseBuilder
    from turnstream.client import Client
    from worker.agents.generator import ClientCall, Thinking, Turn, agent
    from worker.agents.outcome import AgentError
    from worker.turn import current_turn

__all__ = [
    "AgentError",
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
    "AgentError": "worker.agents.outcome",
    "Client": "turnstream.client",
    "ClientCall": "worker.agents.generator",
    "ResponseBuilder": "shared.protocol",
    "Thinking": "worker.agents.generator",
    "Turn": "worker.agents.generator",
    "agent": "worker.agents.generator",
    "current_turn": "worker.turn",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
