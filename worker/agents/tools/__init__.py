"""Tools that an agent can call: the server's, the client's, MCP servers', other agents."""
