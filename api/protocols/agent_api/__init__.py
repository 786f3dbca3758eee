"""The Agent API protocol (AgentScope Runtime), in both editions."""
