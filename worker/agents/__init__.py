"""Agents: configured ones, coded ones, their models and tools."""
