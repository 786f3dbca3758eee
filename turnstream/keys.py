"""Making API keys from the command line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared import agents
from shared.api_keys import IDENTIFIER, ApiKeys, Scope, make_token
from shared.broker import Broker, insist
from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from shared.settings import Settings

# How long the command insists with a broker that does not answer.
PATIENCE_SECONDS = 3.0


async def create(settings: Settings, owner: str, agent: str, scopes: tuple[Scope, ...], days: int) -> str:
    """Make and register a key; returns it.

    Raises:
        ConfigurationError: the owner cannot be spelled so, or there is no such agent.
        BrokerAway: the broker did not answer.
    """
    if IDENTIFIER.fullmatch(owner) is None:
        raise ConfigurationError(f"--owner {owner!r}: use letters, digits and _ . : @ - (128 at most)")
    configured = agents.load(settings.agents)
    if agent not in configured:
        known = ", ".join(spec.name for spec in configured)
        raise ConfigurationError(f"--agent {agent!r}: no such agent; there are {known}")
    token = make_token()
    expires = int(time.time()) + days * 86_400 if days else 0
    broker = Broker(settings)
    try:
        await insist(
            lambda: ApiKeys(broker.primary).register(
                token, owner=owner, agent=agent, scopes=scopes, expires=expires
            ),
            seconds=PATIENCE_SECONDS,
            what="keys",
        )
    finally:
        await broker.close()
    return token
