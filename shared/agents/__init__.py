"""The configuration of agents (`agents.toml`), and the checks it needs."""
