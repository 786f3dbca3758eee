"""What AG-UI's clients are answered, as /openapi.json describes it. Events are as AG-UI documents them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnstream.api.http.answers import Described


class AgUiEvent(BaseModel):
    """One event of a run; which one, its type says."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(pattern=r"^[A-Z_]+$")


class Stopped(Described):
    """Whether there was anything to stop."""

    stopped: bool


class Agent(Described):
    """An agent of the key."""

    name: str
    description: str
    className: str  # noqa: N815 - the wire's name
    capabilities: dict[str, Any] = Field(description="As AG-UI's `AgentCapabilities`.")


class Info(Described):
    """The key's agents, as CopilotKit's clients ask for them."""

    version: str
    agents: dict[str, Agent]
    mode: Literal["sse"]
    audioFileTranscriptionEnabled: Literal[False]  # noqa: N815 - the wire's name
    telemetryDisabled: Literal[True]  # noqa: N815 - the wire's name
