"""A worker loads the library of MCP only for agents that have MCP servers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from turnstream.shared.agents import config
from turnstream.worker import worker
from turnstream.worker.agents import registry
registry.build(config.load(None))
print(sorted({"fastmcp", "mcp", "mcp_types"} & set(sys.modules)))
"""


def test_agents_without_mcp_servers_load_no_library_of_mcp() -> None:
    """In a fresh process, with the agents that are there without a configuration."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
