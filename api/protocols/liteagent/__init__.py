"""The LiteAgent server API."""
