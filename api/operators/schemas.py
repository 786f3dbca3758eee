"""What is answered without a session: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turnstream.api.http.answers import Described


class Health(Described):
    """Whether this front end can be used."""

    status: Literal["up", "silent", "ready", "shutting_down", "broker_away"]


class KeyUse(Described):
    """What an API key is for: whom it speaks for, the agent it speaks to, and what it may do."""

    owner: str
    agent: str
    scopes: list[Literal["chat", "admin"]]
    largest_message: int | None = Field(
        None,
        description="Bytes that a message to the agent may have at most, with all that is attached to it.",
    )
    attachments: list[Literal["image", "audio", "video", "file"]] | None = Field(
        None, description="What a message to the agent may have beside text."
    )


class OpenCall(Described):
    """A call that a turn waits for."""

    task: str
    call: str
    kind: Literal["function", "approval"]
    name: str
    path: str


class Origin(Described):
    """What a conversation began with: another one up to the end of a turn."""

    session: str
    task: str


class ConversationRow(Described):
    """One conversation. Times are Unix seconds."""

    session: str
    title: str = Field(
        description="What its user called it, or its first words; empty where nothing is known."
    )
    named: bool = Field(description="Whether its user called it so.")
    state: Literal["needs_you", "running", "queued", "ended"]
    active_at: float = Field(description="Its last sign of life.")
    created_at: float | None = None
    expires_at: float
    forked_from: Origin | None = None
    calls: list[OpenCall] = Field(description="What it waits for, where it is `needs_you`.")


class ConversationList(Described):
    """Conversations, the newest first; ``next`` is the cursor to go on with, null on the last page."""

    conversations: list[ConversationRow]
    next: str | None = Field(json_schema_extra={"type": ["string", "null"]})


class ConversationNamed(Described):
    """What the conversation is called now; an empty title: by its first words."""

    session: str
    title: str


class ConversationDeleted(Described):
    """The conversation is gone."""

    session: str
    deleted: Literal[True]
