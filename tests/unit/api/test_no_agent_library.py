"""The front end stays thin: it knows agents by their specs only, and loads nothing on a chance."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import {first}
for package in {packages}:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
libraries = {{"pydantic_ai", "pydantic_graph", "fastmcp", "mcp", "mcp_types", "openai", "rich"}}
libraries |= {{"prometheus_client", "opentelemetry"}}
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(libraries & loaded), [name for name in sys.modules if name.startswith("turnstream.worker")])
"""


@pytest.mark.parametrize(
    ("first", "packages"),
    [
        ("turnstream.api, turnstream.shared", "(turnstream.api, turnstream.shared)"),
        ("turnstream.api.server, turnstream.cli, turnstream.roles", "()"),
    ],
)
def test_the_front_end_imports_no_agent_library(first: str, packages: str) -> None:
    """In a fresh process: every module of its own and of what it shares, and what `turnstream api` begins with."""
    program = PROGRAM.format(first=first, packages=packages)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
