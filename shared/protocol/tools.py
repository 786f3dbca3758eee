"""Tools: how they are declared, and what a tool message's data part holds (Agent API protocol §2).

The models of the second half are the ``data`` of a `DataContent`: ``DataContent(data=FunctionCall(…))``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from turnstream.shared.protocol.base import ProtocolModel


class FunctionParameters(ProtocolModel):
    """JSON Schema of a function's arguments."""

    type: Literal["object"]
    """Must be ``object``."""

    properties: dict[str, Any]
    """Name of an argument → its JSON Schema."""

    required: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Arguments that must be given."""


class FunctionTool(ProtocolModel):
    """A function that the model may call."""

    name: str
    """How the model calls it."""

    description: str
    """What it does, for the model."""

    parameters: Annotated[FunctionParameters | dict[str, Any], Field(union_mode="left_to_right")]
    """Its arguments; any other JSON Schema is kept as it is."""


class Tool(ProtocolModel):
    """A tool offered with a request."""

    type: str | None = None
    """Only ``function`` so far."""

    function: FunctionTool | None = None
    """The function, when ``type`` is ``function``."""


class FunctionCall(ProtocolModel):
    """A call of a client's function (``function_call``) or of a server tool (``plugin_call``)."""

    call_id: str | None = None
    """What the output refers to."""

    name: str | None = None
    """The function."""

    arguments: str | None = None
    """Its arguments as JSON text, as the model wrote it: it may be invalid."""


class FunctionCallOutput(ProtocolModel):
    """The result of a `FunctionCall`."""

    call_id: str
    """The call it answers."""

    name: str | None = None
    """The function, when the sender says so."""

    output: str
    """The result as text; JSON when it has structure."""


class McpTool(ProtocolModel):
    """A tool of an MCP server."""

    name: str
    """How it is called."""

    input_schema: Any
    """JSON Schema of its arguments."""

    description: str | None = None
    """What it does."""

    annotations: Any = None
    """The server's hints about it."""


class McpListTools(ProtocolModel):
    """What an MCP server offers (``mcp_list_tools``)."""

    id: str
    """Unique id of this list."""

    server_label: str
    """The server, as the agent's configuration names it."""

    tools: list[McpTool]
    """Its tools."""

    error: str | None = None
    """Why the tools could not be listed."""


class McpCall(ProtocolModel):
    """A call of an MCP server's tool (``mcp_call``)."""

    id: str | None = None
    """Unique id of the call."""

    call_id: str | None = None
    """The same id under the name that function calls use."""

    name: str
    """The tool."""

    arguments: str
    """Its arguments as JSON text."""

    server_label: str | None = None
    """The server."""

    error: str | None = None
    """Why it failed."""

    output: str | None = None
    """Its result, when call and result travel together."""


class McpCallOutput(ProtocolModel):
    """The result of an `McpCall` (``mcp_call_output``)."""

    call_id: str
    """The call it answers."""

    name: str | None = None
    """The tool."""

    server_label: str | None = None
    """The server."""

    output: str | None = None
    """The result as text."""

    error: str | None = None
    """Why it failed."""


class McpApprovalRequest(ProtocolModel):
    """A tool waits for a person's consent (``mcp_approval_request``)."""

    id: str
    """What the response refers to."""

    name: str
    """The tool."""

    arguments: str
    """Its arguments as JSON text."""

    server_label: str | None = None
    """The MCP server, or the agent itself for a tool of its own; we always say it."""

    reason: str | None = None
    """Why it is asked, where that is not the tool's nature: the call was interrupted, and would run again."""


class McpApprovalResponse(ProtocolModel):
    """Consent or refusal (``mcp_approval_response``)."""

    approve: bool
    """True: run the tool."""

    approval_request_id: str
    """The request it answers."""

    id: str | None = None
    """Unique id of the response."""

    reason: str | None = None
    """Why; the model gets to read it."""


class _CamelData(ProtocolModel):
    """Data that LiteAgent clients know in camelCase; read in both spellings, written in camelCase."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(alias=to_camel),
        validate_by_name=True,
        serialize_by_alias=True,
    )


class ComponentCall(_CamelData):
    """A sub-agent is given work (``component_call``)."""

    dispatch_id: str
    """What the output refers to."""

    agent_id: str
    """The sub-agent."""

    name: str
    """Its name, for people."""

    content: list[dict[str, Any]] = Field(default_factory=list)
    """What it is asked: LiteAgent parts ``{type, message}``."""


class ComponentCallOutput(_CamelData):
    """What a sub-agent answered (``component_call_output``)."""

    dispatch_id: str
    """The call it answers."""

    agent_id: str
    """The sub-agent."""

    name: str
    """Its name, for people."""

    content: list[dict[str, Any]] = Field(default_factory=list)
    """Its answer: LiteAgent parts ``{type, message}``."""


class ReflectScore(_CamelData):
    """One critic's opinion."""

    score: int
    """0 to 10."""

    description: str | None = None
    """Why."""


class MessageScore(_CamelData):
    """What was judged, and how."""

    content: list[dict[str, Any]] = Field(default_factory=list)
    """The user's own message: LiteAgent parts ``{type, message}``."""

    content_list: list[dict[str, Any]] = Field(default_factory=list)
    """The same under the name that other clients read."""

    message_type: str = "text"
    """``text`` or ``functionCalling``."""

    message: str = ""
    """The answer that was judged."""

    reflect_score_list: list[ReflectScore] = Field(default_factory=list)
    """One opinion per critic."""


class ReflectionContent(_CamelData):
    """One round of the critics (``component_call_output`` named ``reflection``)."""

    is_pass: bool
    """True when the answer is good enough."""

    agent_id: str | None = None
    """The agent that was judged."""

    name: str = "reflection"
    """Always ``reflection``: it tells this data from a sub-agent's."""

    message_score: MessageScore
    """What was judged, and how."""

    pass_score: int = 8
    """The score that is good enough, 0 to 10."""

    count: int
    """This round, from 1."""

    max_count: int = 10
    """Rounds at most."""

    score: int | None = None
    """The score of this round, over all critics."""
