"""What A2A's answers hold, for /openapi.json; the tests hold them against the specification's own types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from turnstream.api.http.schemas import OrNull
from turnstream.api.protocols.a2a.task_encoder import STATES


class _Told(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)


class A2aMessage(_Told):
    """A message, with parts as A2A has them."""

    message_id: str
    context_id: str
    task_id: str
    role: str
    parts: list[dict[str, Any]]


class A2aStatus(_Told):
    """What a task is, and since when."""

    state: Literal[STATES]  # type: ignore[valid-type]
    timestamp: str
    message: A2aMessage | None = None


class A2aArtifact(_Told):
    """What the agent says: one of its messages."""

    artifact_id: str
    parts: list[dict[str, Any]]


class A2aTask(_Told):
    """A task."""

    id: str
    context_id: str
    status: A2aStatus
    artifacts: list[A2aArtifact] | None = None
    history: list[A2aMessage] | None = None
    metadata: dict[str, Any] | None = None


class A2aSent(_Told):
    """What a message is answered with."""

    task: A2aTask


class A2aStatusUpdate(_Told):
    """A task's new status."""

    task_id: str
    context_id: str
    status: A2aStatus
    metadata: dict[str, Any] | None = None


class A2aArtifactUpdate(_Told):
    """A piece of an artifact."""

    task_id: str
    context_id: str
    artifact: A2aArtifact
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: dict[str, Any] | None = None


class A2aEvent(_Told):
    """One of these; a stream begins with the task."""

    task: A2aTask | None = None
    status_update: A2aStatusUpdate | None = None
    artifact_update: A2aArtifactUpdate | None = None


class A2aTasks(_Told):
    """A page of tasks."""

    tasks: list[A2aTask]
    next_page_token: str
    page_size: int
    total_size: int


class A2aPushConfig(_Told):
    """Who is told of a task."""

    id: str
    task_id: str
    url: str
    token: str
    authentication: dict[str, str] | None = None


class A2aPushConfigs(_Told):
    """All of them."""

    configs: list[A2aPushConfig]
    next_page_token: str


class A2aDeleted(_Told):
    """Nothing."""


class A2aCall(BaseModel):
    """A call of JSON-RPC."""

    jsonrpc: Literal["2.0"]
    method: str = Field(description="`SendMessage`, `GetTask`, …")
    id: str | int | float | None = None
    params: dict[str, Any] | None = None


class A2aReply(BaseModel):
    """An answer of JSON-RPC; in a stream, each event is one."""

    jsonrpc: Literal["2.0"]
    id: OrNull[str | int | float]
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
