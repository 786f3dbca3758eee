"""The one table of what can be asked of a front end, and what can come back.

Tests compare it with the application's routes, and with the errors that each endpoint can raise.
"""

from __future__ import annotations

from typing import Any

from turnstream.api.openapi.admin_table import ADMIN_OPERATIONS, ADMIN_PARAMETERS
from turnstream.api.openapi.row import ID, Json, Operation, Stream, Text, parameter
from turnstream.api.openapi.schemas import (
    CallbackTaken,
    Chunk,
    Envelope,
    Health,
    KeyUse,
    NewSession,
    Nothing,
    Remembered,
    SessionCleared,
    Stopped,
    Version,
)
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE, AGENTSCOPE_JAVA
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM
from turnstream.api.protocols.liteagent.requests import CallbackRequest, ChatBody
from turnstream.api.protocols.liteagent.routes import BASE
from turnstream.shared.errors import (
    BadCursor,
    BadRequest,
    BadToken,
    BodyTooLarge,
    BodyTooSlow,
    BrokerAway,
    CallEnded,
    CallExpired,
    CallWithdrawn,
    CursorGone,
    Forbidden,
    IdempotencyMismatch,
    InvalidBody,
    NoSession,
    NoTask,
    Overloaded,
    SessionBusy,
    ShuttingDown,
    TooMany,
    TurnstreamError,
    UnknownCall,
    UnknownKey,
)
from turnstream.shared.protocol import AgentRequest, AgentResponse, AnyContent, Message

_CURSOR: Json = {"pattern": "^[0-9]{1,15}-[0-9]{1,15}$", "examples": ["1760000000000-7"]}

PARAMETERS: dict[str, Json] = {
    "sessionId": parameter("query", "sessionId", "The session.", required=True, pattern=ID),
    "chatSessionId": parameter(
        "query",
        "sessionId",
        "The session. A one-shot agent needs none: each of its turns has one of its own.",
        pattern=ID,
    ),
    "taskId": parameter("query", "taskId", "The task; absent: all of the session.", pattern=ID),
    "stream": parameter(
        "query", "stream", "Whether the answer's text is wanted in chunks.", enum=["true", "1", "false", "0"]
    ),
    "owner": parameter(
        "query", "owner", "Whose session it is; needs an admin key. Absent: the key's own.", pattern=ID
    ),
    "agentId": parameter("query", "agentId", "Ignored: the key selects the agent.") | {"deprecated": True},
    "session_id": parameter("query", "session_id", "The session.", required=True, pattern=ID),
    "response_id": parameter("query", "response_id", "The response; absent: all of the session.", pattern=ID),
    "user_id": parameter("query", "user_id", "The session's user, when it has one."),
    "dialect": parameter(
        "query",
        "dialect",
        "The edition of the protocol; `java` writes camelCase keys, upper-case message types and "
        "milliseconds. `Accept: text/event-stream;dialect=java` asks for the same.",
        enum=[AGENTSCOPE.name, AGENTSCOPE_JAVA.name],
    ),
    "strict": parameter(
        "query",
        "strict",
        "With `dialect=java`: only words of the Java edition that was published.",
        enum=["001"],
    ),
    "cursor": parameter(
        "query", "cursor", "As `Last-Event-ID`, for clients that cannot set headers.", **_CURSOR
    ),
    "Last-Event-ID": parameter(
        "header",
        "Last-Event-ID",
        "The `id:` of the last event that was received, `<epoch>-<seq>`: what came after it is sent. On a "
        "POST it resumes the task of that event; no second one is started.",
        **_CURSOR,
    ),
    "Idempotency-Key": parameter(
        "header",
        "Idempotency-Key",
        "The same key with the same body gives the same task, as the same id or taskId does; another body is refused.",
        pattern="^[ -~]{1,256}$",
    ),
    "traceparent": parameter(
        "header",
        "traceparent",
        "W3C trace context; kept with the task. A malformed one is ignored.",
        examples=["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    ),
    **ADMIN_PARAMETERS,
}

_KEY: frozenset[type[TurnstreamError]] = frozenset({BadToken, UnknownKey, Forbidden, BrokerAway})
_SESSION = _KEY | {BadRequest, NoSession}
_FOLLOW = _SESSION | {NoTask, BadCursor, CursorGone, ShuttingDown, Overloaded, TooMany}
_CALL = frozenset({UnknownCall, CallEnded, CallWithdrawn, CallExpired})
_BODY = frozenset({InvalidBody, BodyTooLarge, BodyTooSlow})
_TURN = _FOLLOW | _BODY | {SessionBusy, IdempotencyMismatch}

AGENT_STREAM = Stream(
    dialects=(AGENTSCOPE, AGENTSCOPE_JAVA),
    frame="id: CURSOR\ndata: JSON\n\n",
    events={"": AgentResponse | Message | AnyContent},
)
METRICS = Text("text/plain", "# TYPE turnstream_followers gauge\nturnstream_followers 12.0\n")
LITEAGENT = Stream(
    dialects=(LITEAGENT_STREAM,),
    frame="id:CURSOR\nevent:NAME\ndata:JSON\n\n",
    events={"message": Envelope, "chunk": Chunk, "functionCall": Envelope, "ping": Nothing},
)

_SAID = {"role": "user", "type": "message", "content": [{"type": "text", "text": "/tokens 3"}]}
_OUTPUT = {
    "role": "tool",
    "type": "function_call_output",
    "content": [{"type": "data", "data": {"call_id": "call_1", "output": "21 °C"}}],
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(("GET", "HEAD"), "/healthz", "up", "The process runs.", {200: (Health,)}, key=False),
    Operation(
        ("GET", "HEAD"),
        "/readyz",
        "ready",
        "Requests can be served here.",
        {200: (Health,), 503: (Health,)},
        key=False,
    ),
    Operation(("GET",), "/version", "version", "Our version.", {200: (Version,)}, key=False),
    Operation(("GET",), "/openapi.json", "openapi", "This document.", {200: (dict[str, Any],)}, key=False),
    Operation(
        ("GET",),
        "/metrics",
        "metrics",
        "What this front end counts, and what it sees of the deployment, for Prometheus. Where the operator wants it "
        "so, it needs an admin key.",
        {200: (METRICS,)},
        _KEY,
    ),
    Operation(
        ("GET",),
        "/console/key",
        "key",
        "What the key of this request is for.",
        {200: (KeyUse,)},
        _KEY - {Forbidden},
    ),
    Operation(("GET",), f"{BASE}/version", "liteagentVersion", "Our version.", {200: (Version,)}, key=False),
    Operation(
        ("POST",),
        f"{BASE}/initSession",
        "initSession",
        "Make a session.",
        {200: (NewSession,)},
        _KEY | {Overloaded, TooMany, ShuttingDown},
        parameters=("agentId",),
    ),
    Operation(
        ("POST",),
        f"{BASE}/chat",
        "chat",
        "Take a user's message and follow its task; with a known taskId or a cursor, only follow.",
        {200: (LITEAGENT,)},
        _TURN,
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
        {200: (LITEAGENT,)},
        _FOLLOW,
        ("sessionId", "taskId", "stream", "agentId", "cursor", "Last-Event-ID"),
    ),
    Operation(
        ("POST",),
        f"{BASE}/callback",
        "callback",
        "Answer a function call, or a request for approval. A repeat changes nothing.",
        {200: (CallbackTaken,)},
        _SESSION | _BODY | _CALL | {TooMany, Overloaded, ShuttingDown},
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
        _SESSION,
        ("sessionId", "agentId"),
    ),
    Operation(
        ("GET", "POST"),
        f"{BASE}/stop",
        "stop",
        "End one task, or all of the session. When this answers, their ends are in the log.",
        {200: (Stopped,)},
        _SESSION | {NoTask},
        ("sessionId", "taskId", "owner", "agentId"),
    ),
    Operation(
        ("GET", "POST"),
        f"{BASE}/clear",
        "clear",
        "End what runs, then forget everything that was said.",
        {200: (SessionCleared,)},
        _SESSION | {SessionBusy},
        ("sessionId", "agentId"),
    ),
    Operation(
        ("POST",),
        "/process",
        "process",
        "Take a turn, answers to calls, or a wish to reconnect; then follow the task. With stream false, one "
        "response when the task ends, or parks on calls to the client.",
        {200: (AGENT_STREAM, AgentResponse)},
        _TURN | _CALL,
        ("dialect", "strict", "cursor", "Last-Event-ID", "Idempotency-Key", "traceparent"),
        AgentRequest,
        {
            "turn": {"session_id": "s1", "id": "turn1", "input": [_SAID]},
            "whole": {"session_id": "s1", "stream": False, "input": [_SAID]},
            "answer": {"session_id": "s1", "input": [_OUTPUT]},
            "reconnect": {"session_id": "s1", "reconnect": True},
        },
        instead={SessionBusy: AgentResponse, TooMany: AgentResponse, Overloaded: AgentResponse},
    ),
    Operation(
        ("GET",),
        "/process",
        "watchProcess",
        "Follow a response, or without response_id the whole session.",
        {200: (AGENT_STREAM,)},
        _FOLLOW,
        ("session_id", "response_id", "user_id", "dialect", "strict", "cursor", "Last-Event-ID"),
    ),
    *ADMIN_OPERATIONS,
)
