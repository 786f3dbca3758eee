"""How entries are written to each kind of client, and what LiteAgent clients send."""
