"""What LiteAgent clients are answered: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from turnstream.api.http.answers import Described


class NewSession(Described):
    """A session was made."""

    sessionId: str  # noqa: N815 - the wire's names, here and below


class CallbackTaken(Described):
    """The answer was taken, now or before."""

    result: Literal["success"]


class Stopped(Described):
    """What was stopped: the task, or without ``taskId`` all of the session's."""

    sessionId: str  # noqa: N815
    taskId: str | None = None  # noqa: N815


class SessionCleared(Described):
    """The session that was cleared, under both names that clients read."""

    id: str
    sessionId: str  # noqa: N815


class Usage(Described):
    """Tokens of one answer of the model."""

    promptTokens: int  # noqa: N815
    completionTokens: int  # noqa: N815
    totalTokens: int  # noqa: N815


class Completions(Described):
    """One answer of the model; present as a whole or not at all."""

    usage: Usage
    id: str
    model: str


Speaker = Literal[
    "developer", "user", "agent", "assistant", "dispatcher", "subagent", "reflection", "tool", "client"
]

Kind = Literal[
    "text",
    "imageUrl",
    "contentList",
    "toolCalls",
    "dispatch",
    "reflection",
    "toolReturn",
    "functionCall",
    "taskStatus",
    "reasoningContent",
    "planning",
]


CreateTime = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0800$")]


class _Origin(Described):
    """Where a LiteAgent message comes from, and who is meant. The fields are written in the order of the models."""

    sessionId: str  # noqa: N815
    taskId: str  # noqa: N815
    agentId: str | None = Field(None, description="The sub-agent that speaks.")  # noqa: N815
    parentTaskId: str | None = Field(None, description="The task that it serves.")  # noqa: N815
    role: Speaker
    to: Speaker


class Envelope(_Origin):
    """One message of the LiteAgent protocol; ``type`` says what ``content`` is."""

    type: Kind
    content: str | dict[str, Any] | list[dict[str, Any]]
    completions: Completions | None = None
    createTime: CreateTime  # noqa: N815


class Remembered(Envelope):
    """A message of the history: ``message`` repeats ``content``, for clients that look there."""

    message: str | dict[str, Any] | list[dict[str, Any]]


class Chunk(_Origin):
    """A piece of an answer's text; an empty ``part`` closes it."""

    type: Literal["text"]
    part: str
    createTime: CreateTime  # noqa: N815


class Nothing(Described):
    """An empty object."""
