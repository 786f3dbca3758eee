"""Versions of agents, by which a turn goes on with the table that it has; the code behind it is no part of a digest."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from turnstream.shared.agents.config import Agents

# Characters of a digest: enough to tell the few versions apart that are ever served side by side.
_DIGITS = 12

# Part of none: what decides about versions, and what only front ends read, whose word a request may overrule.
_NO_PART = {"version", "on_version", "version_wait", "on_park", "attachments", "a2a"}


def versions(agents: Agents) -> dict[str, str]:
    """Agent → its version: the one in its table, else a digest of the table and those of its helpers."""
    return {spec.name: spec.version or _digest(agents, spec.name) for spec in agents}


def _digest(agents: Agents, name: str) -> str:
    """Of what the tables say, defaults left out: a new release with more fields has the same."""
    tables: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        spec = agents.get(waiting.pop())
        if spec is None or spec.name in tables:
            continue
        if spec.version:
            tables[spec.name] = spec.version
            continue
        tables[spec.name] = spec.model_dump(mode="json", exclude_defaults=True, exclude=_NO_PART)
        waiting += [*spec.subagents, *spec.critics]
    return sha256(orjson.dumps(tables, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]
