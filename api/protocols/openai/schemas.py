"""What OpenAI's clients are answered, as /openapi.json describes it. Items and events are as OpenAI documents them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.http.answers import Described
from turnstream.api.http.schemas import OrNull


class _Open(BaseModel):
    """With more fields than these."""

    model_config = ConfigDict(extra="allow")


class Item(Described):
    """One item of an input or an output."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str


class Usage(_Open):
    """Tokens of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class ResponseObject(_Open):
    """A response: a turn, or what comes of it after its client has answered calls."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: OrNull[int]
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    error: OrNull[dict[str, Any]]
    incomplete_details: OrNull[dict[str, Any]]
    model: str
    output: list[Item]
    usage: OrNull[Usage]


class ResponseEvent(_Open):
    """One event of a response, of that type."""

    type: str = Field(pattern=r"^response\.")
    sequence_number: int = Field(ge=0)


class DeletedResponse(Described):
    """The response is found no more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(Described):
    """A page of items."""

    object: Literal["list"]
    data: list[Item]
    first_id: OrNull[str]
    last_id: OrNull[str]
    has_more: bool


class Conversation(Described):
    """A session."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Described):
    """The session is no more."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class Completion(_Open):
    """A completion, with one choice."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]


class Chunk(_Open):
    """A piece of a completion; `usage` on the last one, if it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[dict[str, Any]]


class Failure(_Open):
    """What ended a turn."""

    message: str
    type: Literal["server_error"]
    param: OrNull[str]
    code: str


class FailedTurn(_Open):
    """The turn failed: its own code, not one of ours."""

    error: Failure
