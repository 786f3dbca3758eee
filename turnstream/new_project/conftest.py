"""For pytest: the fixture `served` serves the agents of agents.toml, on models that follow a script."""

pytest_plugins = ["turnstream.testing.plugin"]
