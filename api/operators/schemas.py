"""What is answered without a session: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from turnstream.api.http.answers import Described


class Health(Described):
    """Whether this front end can be used."""

    status: Literal["up", "silent", "ready", "shutting_down", "broker_away"]


class KeyUse(Described):
    """What an API key is for: whom it speaks for, the agent it speaks to, and what it may do."""

    owner: str
    agent: str
    scopes: list[Literal["chat", "admin"]]
