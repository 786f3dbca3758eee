"""The front end stays thin: it knows agents by their specs only."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import api.server, turnstream.cli, turnstream.roles
libraries = {"pydantic_ai", "fastmcp", "mcp", "mcp_types", "openai"}
print(sorted(libraries & {name.partition(".")[0] for name in sys.modules}))
"""


def test_the_front_end_imports_no_agent_library() -> None:
    """In a fresh process, with everything imported that `turnstream api` needs."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
