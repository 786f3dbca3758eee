"""What is answered by routes of no protocol: models for the OpenAPI document only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Health(BaseModel):
    """Whether this front end can be used."""

    status: Literal["up", "ready", "shutting_down", "broker_away"]


class KeyUse(BaseModel):
    """What an API key is for: whom it speaks for, the agent it speaks to, and what it may do."""

    owner: str
    agent: str
    scopes: list[Literal["chat", "admin"]]
