"""AG-UI, and the routes of CopilotKit's runtime, which speak it."""
