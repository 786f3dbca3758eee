"""The AI SDK's protocol as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from turnstream.api.http.operation import (
    CALL_ERRORS,
    KEY_ERRORS,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.ai_sdk.chunks import CHUNKS
from turnstream.api.protocols.ai_sdk.requests import ChatPost
from turnstream.api.protocols.ai_sdk.routes import CHAT, FIFTH_CHAT, PREFIX, AiSdkRoutes
from turnstream.api.protocols.ai_sdk.schemas import ChatMessage, Chunk, Stopped
from turnstream.api.streaming.dialect import LAST
from turnstream.shared.errors import (
    BadCursor,
    CursorGone,
    NoSession,
    NoTask,
    Overloaded,
    ShuttingDown,
    TooMany,
)

_PARAMETERS = {
    "aiSdkChat": parameter(
        "path", "chat_id", "The chat's id; its session, where it can be one.", required=True
    ),
    "aiSdkEnded": parameter("query", "ended", "`true`: the newest turn is told also when it has ended."),
}

_STREAM = Stream(dialects=(CHUNKS,), frame="data: JSON\n\n", events={"": Chunk}, last=LAST)

_TURN = {
    "id": "chat-1",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "/tokens 3"}]}],
    "trigger": "submit-message",
}


def _operations(path: str, version: str) -> tuple[Operation, ...]:
    one = path + "/{chat_id}"
    return (
        Operation(
            ("POST",),
            path,
            f"uiChat{version}",
            "Take a turn, or answers to calls, and tell what comes of it.",
            {200: (_STREAM,)},
            (TURN_ERRORS | CALL_ERRORS) - {BadCursor},
            ("Idempotency-Key", "traceparent"),
            ChatPost,
            {"turn": _TURN},
        ),
        Operation(
            ("GET",),
            f"{one}/stream",
            f"resumeUiChat{version}",
            "The newest turn, from its beginning.",
            {200: (_STREAM,), 204: ()},
            KEY_ERRORS | {NoTask, NoSession, CursorGone, ShuttingDown, Overloaded, TooMany},
            ("aiSdkChat", "aiSdkEnded"),
        ),
        Operation(
            ("POST",),
            f"{one}/stop",
            f"stopUiChat{version}",
            "Stop what is live. When this answers, its end is in the log.",
            {200: (Stopped,)},
            KEY_ERRORS | {NoSession},
            ("aiSdkChat",),
        ),
        Operation(
            ("GET",),
            f"{one}/messages",
            f"uiChatMessages{version}",
            "What was said in the chat.",
            {200: (list[ChatMessage],)},
            KEY_ERRORS | {NoSession},
            ("aiSdkChat",),
        ),
    )


PROTOCOL = WireProtocol(
    PREFIX,
    AiSdkRoutes,
    (*_operations(CHAT, ""), *_operations(FIFTH_CHAT, "OfVersion5")),
    _PARAMETERS,
    in_browsers=True,
)
