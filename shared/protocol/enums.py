"""The closed vocabularies of the Agent API protocol (§1).

Members keep the names of the specification. They are strings: ``RunStatus.Created == "created"``, and
JSON holds the value. Models type these fields as ``str``, so that a value this edition does not know
survives a round trip.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Who speaks in a message."""

    ASSISTANT = "assistant"
    USER = "user"
    SYSTEM = "system"
    TOOL = "tool"


class MessageType(StrEnum):
    """What a message is; it decides what its content parts hold.

    ``FUNCTION_CALL`` waits for the client's answer; ``PLUGIN_CALL`` is a tool that the server ran.
    ``CHUNK``, ``SYSTEM``, ``USER`` and ``ASSISTANT`` come from clients of the Java edition only.
    """

    MESSAGE = "message"
    FUNCTION_CALL = "function_call"
    FUNCTION_CALL_OUTPUT = "function_call_output"
    PLUGIN_CALL = "plugin_call"
    PLUGIN_CALL_OUTPUT = "plugin_call_output"
    COMPONENT_CALL = "component_call"
    COMPONENT_CALL_OUTPUT = "component_call_output"
    MCP_LIST_TOOLS = "mcp_list_tools"
    MCP_APPROVAL_REQUEST = "mcp_approval_request"
    MCP_TOOL_CALL = "mcp_call"
    MCP_TOOL_CALL_OUTPUT = "mcp_call_output"
    MCP_APPROVAL_RESPONSE = "mcp_approval_response"
    REASONING = "reasoning"
    HEARTBEAT = "heartbeat"
    ERROR = "error"
    CHUNK = "chunk"
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class RunStatus(StrEnum):
    """Where a response, a message or a content part stands."""

    Created = "created"
    InProgress = "in_progress"
    Completed = "completed"
    Canceled = "canceled"
    Failed = "failed"
    Rejected = "rejected"
    Unknown = "unknown"
    Queued = "queued"
    Incomplete = "incomplete"


class ContentType(StrEnum):
    """What a content part holds."""

    TEXT = "text"
    DATA = "data"
    IMAGE = "image"
    AUDIO = "audio"
    FILE = "file"
    REFUSAL = "refusal"
    VIDEO = "video"


# A response, message or part with one of these says nothing more.
ENDED: frozenset[str] = frozenset(
    {
        RunStatus.Completed,
        RunStatus.Canceled,
        RunStatus.Failed,
        RunStatus.Rejected,
        RunStatus.Incomplete,
    }
)
