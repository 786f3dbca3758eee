"""OpenAI's API under ``/v1``: responses, conversations, chat completions, models."""
