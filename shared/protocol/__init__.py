"""The Agent API protocol: models, wire forms, builders, and the fold that undoes them."""

from __future__ import annotations

from shared.protocol.builder import MessageBuilder, ResponseBuilder
from shared.protocol.content import (
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
from shared.protocol.content_builder import BuilderError, ContentBuilder
from shared.protocol.enums import ENDED, ContentType, MessageType, Role, RunStatus
from shared.protocol.error import Error
from shared.protocol.event import Event
from shared.protocol.fold import Fold, incomplete_events
from shared.protocol.message import Message, new_message_id
from shared.protocol.request import AgentRequest, BaseRequest, explain
from shared.protocol.response import AgentResponse, BaseResponse, new_response_id
from shared.protocol.tools import (
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
from shared.protocol.wire import canonical, java

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
