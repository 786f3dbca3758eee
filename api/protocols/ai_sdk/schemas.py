"""What the AI SDK's clients are answered, as /openapi.json describes it. Chunks and parts are as the SDK documents them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.http.answers import Described


class Chunk(BaseModel):
    """One chunk of a message; `type` says which other fields there are. More are named `data-*`."""

    model_config = ConfigDict(extra="allow")

    type: str


class ChatMessage(Described):
    """A message of a chat. An assistant's has the id of its turn."""

    id: str
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]
    metadata: dict[str, Any] = Field(
        {}, description="Of an assistant's: `usage`, and the request's settings that were `ignored`."
    )


class Stopped(Described):
    """Nothing of the chat is live."""

    success: Literal[True]
