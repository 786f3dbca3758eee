"""Following a session: start position, hub, rings, gaps, server-sent events."""
