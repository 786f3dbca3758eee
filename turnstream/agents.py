"""``turnstream agents check``: what a worker would find in an agents file, without starting one."""

from __future__ import annotations

import inspect
import shutil
from typing import TYPE_CHECKING

from turnstream.shared.agents import config
from turnstream.shared.errors import AgentFieldError
from turnstream.table import aligned
from turnstream.worker.agents import registry
from turnstream.worker.agents.registry import ConfiguredAgent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnstream.shared.agents.config import AgentSpec
    from turnstream.worker.agents.registry import Runnable

_HEADINGS = ("AGENT", "MODEL", "TOOLS", "CLIENT", "MCP", "HELPERS", "BUSY", "REQUESTS MAY SET")


def check(path: Path) -> str:
    """A table of the file's agents, and below it what is allowed but most likely a mistake, a line each.

    Raises:
        ConfigurationError: all that is wrong, a line each.
    """
    found = config.load(path)
    built = registry.build(found)
    mine = found.of_the_file()
    rows = [_row(spec, built[spec.name]) for spec in mine]
    warnings = [
        found.explain(each)
        for spec in mine
        for each in (*_programs(spec), *_undescribed(spec, built[spec.name]))
    ]
    warnings += found.unused_limits(registry.model_names(built))
    if not mine:
        warnings.append(f"{path}: there is no agent in it: a table [agents.NAME] makes one")
    return "\n".join([aligned([_HEADINGS, *rows]), *(f"warning: {line}" for line in warnings)])


def _programs(spec: AgentSpec) -> Iterator[AgentFieldError]:
    """MCP servers whose program is not on this machine; the workers' may be another one."""
    for number, server in enumerate(spec.mcp):
        if server.command and shutil.which(server.command) is None:
            yield AgentFieldError(
                spec.name, f"mcp.{number}.command", f"there is no program {server.command!r} on this machine"
            )


def _undescribed(spec: AgentSpec, agent: Runnable) -> Iterator[AgentFieldError]:
    """Tools of which a model learns too little: it reads names, annotations and the docstring."""
    if not isinstance(agent, ConfiguredAgent):
        return
    field = "python" if spec.python else "tools"
    for name, tool in agent.own_tools.items():
        bare = [
            parameter.name
            for parameter in inspect.signature(tool.function).parameters.values()
            if parameter.annotation is parameter.empty
        ]
        if bare:
            yield AgentFieldError(
                spec.name,
                field,
                f"the tool {name!r} has no annotation for {', '.join(bare)}: its model may pass anything",
            )
        if not tool.description:
            yield AgentFieldError(
                spec.name,
                field,
                f"the tool {name!r} has no docstring: its model learns its purpose from that",
            )


def _row(spec: AgentSpec, agent: Runnable) -> tuple[str, ...]:
    return (
        spec.name,
        spec.python or spec.model,
        str(len(agent.own_tools) if isinstance(agent, ConfiguredAgent) else len(spec.tools)),
        str(len(spec.client_tools)),
        str(len(spec.mcp)),
        str(len(spec.subagents) + len(spec.critics)),
        spec.busy,
        _requests_may_set(spec),
    )


def _requests_may_set(spec: AgentSpec) -> str:
    refused = ", all else is 422" if spec.strict_overrides else ""
    if spec.allow_overrides == config.USUAL_OVERRIDES:
        return f"all but model{refused}"
    return (", ".join(spec.allow_overrides) or "nothing") + refused
