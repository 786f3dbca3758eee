"""The Python client: chats with an agent over HTTP, and keeps its turns through every interruption."""

from __future__ import annotations

from turnstream.client.calls import Approval, Call, Consent, FunctionError
from turnstream.client.client import Client, Identity
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
from turnstream.client.following import Following
from turnstream.client.reply import Reply
from turnstream.client.retrying import Backoff, ConnectionLost, ConnectionNews, ConnectionRestored
from turnstream.client.session import Remembered, Session
from turnstream.client.speech import Piece, Speech, Voice
from turnstream.shared.protocol import (
    AgentResponse,
    AudioContent,
    Content,
    ContentType,
    DataContent,
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
    "Approval",
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
