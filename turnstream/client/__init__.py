"""The Python client: chats with an agent over HTTP, and keeps its turns through every interruption."""

from __future__ import annotations

from turnstream.client.calls import Approval, Call, Consent, FunctionError
from turnstream.client.client import AsyncClient, Identity
from turnstream.client.errors import (
    BadAnswer,
    ClientError,
    Conflict,
    Gone,
    InvalidRequest,
    KeyRefused,
    NotFound,
    Refused,
    TurnCanceled,
    TurnError,
    TurnFailed,
    UnansweredCall,
    Unavailable,
)
from turnstream.client.events import Part, TurnEvent
from turnstream.client.following import AsyncFollowing
from turnstream.client.reply import AsyncReply
from turnstream.client.retrying import Backoff, ConnectionLost, ConnectionNews, ConnectionRestored
from turnstream.client.session import AsyncSession, Remembered
from turnstream.client.speech import Piece, Speech, Voice
from turnstream.client.sync import Client, Following, Reply, Session
from turnstream.shared.protocol import (
    AgentResponse,
    AnyContent,
    AudioContent,
    Content,
    ContentType,
    DataContent,
    Error,
    Event,
    FileContent,
    ImageContent,
    Message,
    MessageType,
    RefusalContent,
    Role,
    RunStatus,
    TextContent,
    VideoContent,
)

__all__ = [
    "AgentResponse",
    "AnyContent",
    "Approval",
    "AsyncClient",
    "AsyncFollowing",
    "AsyncReply",
    "AsyncSession",
    "AudioContent",
    "Backoff",
    "BadAnswer",
    "Call",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionLost",
    "ConnectionNews",
    "ConnectionRestored",
    "Consent",
    "Content",
    "ContentType",
    "DataContent",
    "Error",
    "Event",
    "FileContent",
    "Following",
    "FunctionError",
    "Gone",
    "Identity",
    "ImageContent",
    "InvalidRequest",
    "KeyRefused",
    "Message",
    "MessageType",
    "NotFound",
    "Part",
    "Piece",
    "RefusalContent",
    "Refused",
    "Remembered",
    "Reply",
    "Role",
    "RunStatus",
    "Session",
    "Speech",
    "TextContent",
    "TurnCanceled",
    "TurnError",
    "TurnEvent",
    "TurnFailed",
    "UnansweredCall",
    "Unavailable",
    "VideoContent",
    "Voice",
]
