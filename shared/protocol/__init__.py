"""The Agent API protocol: models, wire forms, builders, and the fold that undoes them."""

from __future__ import annotations

from turnstream.shared.protocol.builder import MessageBuilder, ResponseBuilder
from turnstream.shared.protocol.content import (
    AnyContent,
    AudioContent,
    Content,
    DataContent,
    FileContent,
    ImageContent,
    RefusalContent,
    TextContent,
    VideoContent,
)
from turnstream.shared.protocol.content_builder import BuilderError, ContentBuilder
from turnstream.shared.protocol.enums import ENDED, ContentType, MessageType, Role, RunStatus
from turnstream.shared.protocol.error import Error
from turnstream.shared.protocol.event import Event
from turnstream.shared.protocol.fold import Fold, incomplete_events
from turnstream.shared.protocol.message import Message, new_message_id
from turnstream.shared.protocol.request import AgentRequest, BaseRequest, explain
from turnstream.shared.protocol.response import AgentResponse, BaseResponse, new_response_id
from turnstream.shared.protocol.tools import (
    ComponentCall,
    ComponentCallOutput,
    FunctionCall,
    FunctionCallOutput,
    FunctionParameters,
    FunctionTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpCallOutput,
    McpListTools,
    McpTool,
    MessageScore,
    ReflectionContent,
    ReflectScore,
    Tool,
)
from turnstream.shared.protocol.wire import canonical, java

__all__ = [
    "ENDED",
    "AgentRequest",
    "AgentResponse",
    "AnyContent",
    "AudioContent",
    "BaseRequest",
    "BaseResponse",
    "BuilderError",
    "ComponentCall",
    "ComponentCallOutput",
    "Content",
    "ContentBuilder",
    "ContentType",
    "DataContent",
    "Error",
    "Event",
    "FileContent",
    "Fold",
    "FunctionCall",
    "FunctionCallOutput",
    "FunctionParameters",
    "FunctionTool",
    "ImageContent",
    "McpApprovalRequest",
    "McpApprovalResponse",
    "McpCall",
    "McpCallOutput",
    "McpListTools",
    "McpTool",
    "Message",
    "MessageBuilder",
    "MessageScore",
    "MessageType",
    "ReflectScore",
    "ReflectionContent",
    "RefusalContent",
    "ResponseBuilder",
    "Role",
    "RunStatus",
    "TextContent",
    "Tool",
    "VideoContent",
    "canonical",
    "explain",
    "incomplete_events",
    "java",
    "new_message_id",
    "new_response_id",
]
