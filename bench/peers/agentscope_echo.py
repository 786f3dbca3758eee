"""The echo agent on AgentScope Runtime. Runs in an environment of its own: python agentscope_echo.py PORT."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from agentscope_runtime.engine import AgentApp, Runner  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Echo(Runner):  # type: ignore[misc,unused-ignore]
    """Says fifty tokens; their text adapter carries them, nothing is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.framework_type = "text"

    async def query_handler(self, request: Any = None, **_: Any) -> AsyncIterator[str]:  # noqa: ARG002
        """The same generator as ours."""
        for number in range(50):
            await asyncio.sleep(0)
            yield f"tok{number} "


if __name__ == "__main__":
    app = AgentApp(app_name="bench", app_description="echo", runner=Echo())
    # What it says of every request is for debugging; a deployment would have it off.
    logging.disable(logging.WARNING)
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning"
    )
