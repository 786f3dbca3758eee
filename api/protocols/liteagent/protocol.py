"""The LiteAgent protocol as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from operator import attrgetter

from turnstream.api.http.error_shape import JsonErrors
from turnstream.api.http.operation import (
    BODY_ERRORS,
    CALL_ERRORS,
    FOLLOW_ERRORS,
    ID,
    SEGMENT_ID,
    SESSION_ERRORS,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.schemas import Version
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM
from turnstream.api.protocols.liteagent.requests import CallbackRequest, ChatBody
from turnstream.api.protocols.liteagent.routes import BASE, LiteAgentRoutes
from turnstream.api.protocols.liteagent.schemas import (
    CallbackTaken,
    Chunk,
    Envelope,
    NewSession,
    Nothing,
    Remembered,
    SessionCleared,
    Stopped,
)
from turnstream.shared.errors import (
    CursorGone,
    IdempotencyMismatch,
    NoTask,
    Overloaded,
    SessionBusy,
    ShuttingDown,
    TooMany,
)

_PARAMETERS = {
    "sessionId": parameter("query", "sessionId", "The session.", required=True, pattern=ID),
    "chatSessionId": parameter(
        "query",
        "sessionId",
        "The session. A one-shot agent needs none: each of its turns has one of its own.",
        pattern=ID,
    ),
    "taskId": parameter("query", "taskId", "The task; absent: all of the session.", pattern=SEGMENT_ID),
    "stream": parameter(
        "query", "stream", "Whether the answer's text is wanted in chunks.", enum=["true", "1", "false", "0"]
    ),
    "forkOf": parameter("query", "forkOf", "The session that the new one begins with.", pattern=ID),
    "forkTask": parameter(
        "query",
        "forkTask",
        "With `forkOf`: the task up to whose end; it must have ended.",
        pattern=SEGMENT_ID,
    ),
    "owner": parameter(
        "query", "owner", "Whose session it is; needs an admin key. Absent: the key's own.", pattern=ID
    ),
    "agentId": parameter("query", "agentId", "Ignored: the key selects the agent.") | {"deprecated": True},
}

_STREAM = Stream(
    dialects=(LITEAGENT_STREAM,),
    frame="id:CURSOR\nevent:NAME\ndata:JSON\n\n",
    events={"message": Envelope, "chunk": Chunk, "functionCall": Envelope, "ping": Nothing},
)

_OPERATIONS = (
    Operation(("GET",), f"{BASE}/version", "liteagentVersion", "Our version.", {200: (Version,)}, key=False),
    Operation(
        ("POST",),
        f"{BASE}/initSession",
        "initSession",
        "Make a session: empty, or one that begins with what was said in another one up to the end of a turn. That is a copy: both "
        "go on by themselves. With the `Idempotency-Key` of an earlier fork it is the same session.",
        {200: (NewSession,)},
        SESSION_ERRORS
        | {NoTask, SessionBusy, CursorGone, IdempotencyMismatch}
        | {Overloaded, TooMany, ShuttingDown},
        parameters=("agentId", "forkOf", "forkTask", "Idempotency-Key"),
    ),
    Operation(
        ("POST",),
        f"{BASE}/chat",
        "chat",
        "Take a user's message and follow its task; with a known taskId or a cursor, only follow.",
        {200: (_STREAM,)},
        TURN_ERRORS,
        ("chatSessionId", "agentId", "cursor", "Last-Event-ID", "Idempotency-Key", "traceparent"),
        ChatBody,
        {
            "streamed": {"content": [{"type": "text", "message": "/tokens 3"}], "stream": True},
            "whole": {"content": [{"type": "text", "message": "hello"}], "taskId": "turn1"},
        },
    ),
    Operation(
        ("GET",),
        f"{BASE}/chat",
        "watchChat",
        "Follow a task, or without taskId the whole session.",
        {200: (_STREAM,)},
        FOLLOW_ERRORS,
        ("sessionId", "taskId", "stream", "agentId", "cursor", "Last-Event-ID"),
    ),
    Operation(
        ("POST",),
        f"{BASE}/callback",
        "callback",
        "Answer a function call, or a request for approval. A repeat changes nothing.",
        {200: (CallbackTaken,)},
        SESSION_ERRORS | BODY_ERRORS | CALL_ERRORS | {TooMany, Overloaded, ShuttingDown},
        ("sessionId", "agentId"),
        CallbackRequest,
        {
            "result": {"id": "call_1", "result": {"temperature": 21}},
            "approval": {"id": "call_2", "result": {"approve": True, "reason": "go on"}},
        },
    ),
    Operation(
        ("GET",),
        f"{BASE}/history",
        "history",
        "What was said in the session so far.",
        {200: (list[Remembered],)},
        SESSION_ERRORS,
        ("sessionId", "agentId"),
    ),
    Operation(
        ("GET", "POST"),
        f"{BASE}/stop",
        "stop",
        "End one task, or all of the session. When this answers, their ends are in the log.",
        {200: (Stopped,)},
        SESSION_ERRORS | {NoTask},
        ("sessionId", "taskId", "owner", "agentId"),
    ),
    Operation(
        ("GET", "POST"),
        f"{BASE}/clear",
        "clear",
        "End what runs, then forget everything that was said. With the `Idempotency-Key` of the session's latest clear nothing is "
        "done: what was said since stays.",
        {200: (SessionCleared,)},
        SESSION_ERRORS | {SessionBusy},
        ("sessionId", "agentId", "Idempotency-Key"),
    ),
)

# LiteAgent's clients compare numbers: the number, the word for it, and the text.
NUMBERED_ERRORS = JsonErrors(code=attrgetter("number"), reason=attrgetter("word"), message=attrgetter("text"))

PROTOCOL = WireProtocol("/liteAgent", LiteAgentRoutes, _OPERATIONS, _PARAMETERS, NUMBERED_ERRORS)
