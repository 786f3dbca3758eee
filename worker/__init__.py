"""The worker: claims launches, runs agents, appends what they produce."""
