"""AgentScope Runtime, in an environment of its own beside ours, with the same echo agent."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.peers.environment import serving
from deploy.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "AgentScope"
PACKAGES = ("agentscope-runtime==1.1.6.post2", "agentscope==2.0.10", "uvloop", "httptools")


@contextmanager
def agentscope() -> Iterator[tuple[int, int]]:
    """A running server: its port and process id.

    Raises:
        NotInstalledError: it could not be installed, or did not start.
    """
    port = free_port()
    with serving("agentscope", PACKAGES, "agentscope_echo.py", port) as pid:
        yield port, pid
