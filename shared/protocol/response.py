"""Responses: what a turn answers (Agent API protocol §6)."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from pydantic import Field

from turnstream.shared.protocol.enums import RunStatus
from turnstream.shared.protocol.event import Event
from turnstream.shared.protocol.message import Message


def new_response_id() -> str:
    """A fresh response id: ``response_<uuid>``."""
    return f"response_{uuid4()}"


def unix_seconds() -> int:
    """Now, by the wall clock."""
    return int(time.time())


class BaseResponse(Event):
    """The envelope of one turn."""

    id: str = Field(default_factory=new_response_id)
    """Unique; the request's ``id`` when it gave an unused one."""

    object: str = "response"
    """Always ``response``."""

    status: str | None = RunStatus.Created
    """A `RunStatus` value; after completed, failed, canceled or rejected nothing follows."""

    created_at: int | None = Field(default_factory=unix_seconds)
    """When the turn was accepted, in Unix seconds (the Java edition writes milliseconds)."""

    completed_at: int | None = None
    """When it ended, in Unix seconds; on terminal events only."""

    output: list[Message] | None = None
    """Every message of the turn in order of creation; on terminal events only."""

    usage: dict[str, Any] | None = None
    """Tokens used: ``input_tokens``, ``output_tokens`` and what else the model reports."""

    def add_new_message(self, message: Message) -> None:
        """Append a message to the output."""
        self.output = self.output if self.output is not None else []
        self.output.append(message)


class AgentResponse(BaseResponse):
    """A response within a session."""

    session_id: str | None = None
    """The session it belongs to."""

    user_id: str | None = None
    """The user it belongs to, when the request named one."""

    metadata: dict[str, Any] | None = None
    """``ignored``: names of the request's fields that were not applied; absent when there are none. ``model``: on terminal
    events, the model that answered, where the agent has a fallback."""
