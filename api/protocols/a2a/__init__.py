"""A2A 1.0: a turn is a task, a session a context. For other agents' clients; each agent is published by its table."""
