"""Health, metrics and the console."""
