# ruff: noqa: INP001 - the documentation is no package
"""The MCP server that the protocol reference is captured from: ``python showcase_mcp.py``, over stdio."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server: MCPServer[None] = MCPServer("sums", log_level="CRITICAL")


@server.tool()
async def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


if __name__ == "__main__":
    server.run("stdio")
