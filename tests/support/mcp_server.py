"""A real MCP server, made with the official SDK: ``python mcp_server.py`` (stdio) or ``… http PORT``.

With ``MCP_LOG`` set it notes in that file its process id at the start, and every tool as it begins.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server: MCPServer[None] = MCPServer("tests", log_level="CRITICAL")


def note(what: str) -> None:
    """Tell the test what happened."""
    if log := os.environ.get("MCP_LOG"):
        with Path(log).open("a") as out:
            out.write(what + "\n")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    note("add")
    return a + b


@server.tool()
async def slow(seconds: float) -> str:
    """Take that many seconds."""
    note("slow")
    await anyio.sleep(seconds)
    note("slow done")
    return f"That took {seconds:g} seconds."


@server.tool()
async def crash() -> str:
    """Take the whole server down in the middle of the call."""
    note("crash")
    os._exit(3)


@server.tool()
async def fail(reason: str) -> str:
    """Fail, as tools do."""
    raise ValueError(reason)


@server.tool()
async def refuse() -> str:
    """Answer with an error of the protocol."""
    raise MCPError(-32001, "Redirect to http://10.0.0.1/latest/meta-data not followed")


@server.tool()
async def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG", format="png")


@server.tool(structured_output=False)
async def echo(text: str) -> str:
    """Return the text, as text alone."""
    return text


@server.tool(structured_output=False)
async def marks(ctx: Context) -> str:
    """Return what stands in the request's ``_meta``."""
    return json.dumps(
        {name: value for name, value in dict(ctx.request_context.meta or {}).items() if "/" in name}
    )


@server.tool()
async def stay() -> str:
    """Never return at the first call."""
    return await _stay_first("stay")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def stay_idempotent() -> str:
    """Never return at the first call; may be repeated."""
    return await _stay_first("stay_idempotent")


async def _stay_first(name: str) -> str:
    note(name)
    if noted().count(name) == 1:
        await anyio.sleep_forever()
    return "went on"


def noted() -> list[str]:
    """What was noted so far, by former processes too."""
    return Path(os.environ["MCP_LOG"]).read_text().split()


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def secret(what: str) -> str:
    """Tell a secret, for which somebody should be asked."""
    note("secret")
    return f"The secret of {what} is {os.environ.get('MCP_SECRET', 'nothing')}."


@server.tool()
async def unreadable(anything: dict[str, str]) -> str:
    """Have a schema that is nested deeper than anybody reads."""
    return str(anything)


def _nest() -> None:
    tool = server._tool_manager.get_tool("unreadable")
    if tool is not None:
        schema: dict[str, object] = {"type": "string"}
        for _ in range(40):
            schema = {"type": "object", "properties": {"x": schema}}
        tool.parameters["properties"]["anything"] = schema


if __name__ == "__main__":
    _nest()
    note(f"pid {os.getpid()}")
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run()
