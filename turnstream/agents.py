"""``turnstream agents check``: what a worker would find in an agents file, without starting one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared import agents
from turnstream.table import aligned
from worker.agents import configured

if TYPE_CHECKING:
    from pathlib import Path

    from shared.agents import AgentSpec

_HEADINGS = ("AGENT", "MODEL", "TOOLS", "CLIENT", "MCP", "HELPERS", "BUSY", "REQUESTS MAY SET")


def check(path: Path) -> str:
    """A table of the file's agents.

    Raises:
        ConfigurationError: all that is wrong, a line each.
    """
    found = agents.load(path)
    configured.build(found)
    rows = [_row(spec) for spec in found.of_the_file()]
    return aligned([_HEADINGS, *rows])


def _row(spec: AgentSpec) -> tuple[str, ...]:
    return (
        spec.name,
        spec.python or spec.model,
        str(len(spec.tools)),
        str(len(spec.client_tools)),
        str(len(spec.mcp)),
        str(len(spec.subagents) + len(spec.critics)),
        spec.busy,
        _requests_may_set(spec),
    )


def _requests_may_set(spec: AgentSpec) -> str:
    refused = ", all else is 422" if spec.strict_overrides else ""
    if spec.allow_overrides == agents.USUAL_OVERRIDES:
        return f"all but model{refused}"
    return (", ".join(spec.allow_overrides) or "nothing") + refused
