"""The protocol of the AI SDK's pages: UI messages, and streams of their chunks."""
