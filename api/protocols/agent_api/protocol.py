"""The Agent API protocol as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from turnstream.api.http.operation import (
    CALL_ERRORS,
    FOLLOW_ERRORS,
    ID,
    SEGMENT_ID,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE, AGENTSCOPE_JAVA
from turnstream.api.protocols.agent_api.routes import ProcessRoutes
from turnstream.shared.errors import Overloaded, SessionBusy, TooMany
from turnstream.shared.protocol import AgentRequest, AgentResponse, AnyContent, Message

_PARAMETERS = {
    "session_id": parameter("query", "session_id", "The session.", required=True, pattern=ID),
    "response_id": parameter(
        "query",
        "response_id",
        "The response; absent: all of the session. `~` and a number behind it name a further segment of its turn.",
        pattern=SEGMENT_ID,
    ),
    "user_id": parameter("query", "user_id", "The session's user, when it has one."),
    "dialect": parameter(
        "query",
        "dialect",
        "The edition of the protocol; `java` writes camelCase keys, upper-case message types and "
        "milliseconds. `Accept: text/event-stream;dialect=java` asks for the same.",
        enum=[AGENTSCOPE.name, AGENTSCOPE_JAVA.name],
    ),
    "on_park": parameter(
        "query",
        "on_park",
        "Where the client is asked: `follow` keeps the stream open; `complete` ends it with `response` completed, and answers "
        "through `/process` begin a response of their own. Absent: the agent's setting.",
        enum=["follow", "complete"],
    ),
    "strict": parameter(
        "query",
        "strict",
        "With `dialect=java`: only words of the Java edition that was published.",
        enum=["001"],
    ),
}

_STREAM = Stream(
    dialects=(AGENTSCOPE, AGENTSCOPE_JAVA),
    frame="id: CURSOR\ndata: JSON\n\n",
    events={"": AgentResponse | Message | AnyContent},
)
_SAID = {"role": "user", "type": "message", "content": [{"type": "text", "text": "/tokens 3"}]}
_OUTPUT = {
    "role": "tool",
    "type": "function_call_output",
    "content": [{"type": "data", "data": {"call_id": "call_1", "output": "21 °C"}}],
}

_OPERATIONS = (
    Operation(
        ("POST",),
        "/process",
        "process",
        "Take a turn, answers to calls, or a wish to reconnect; then follow the task. With stream false, one "
        "response when the task ends, or parks on calls to the client.",
        {200: (_STREAM, AgentResponse)},
        TURN_ERRORS | CALL_ERRORS,
        ("dialect", "strict", "on_park", "cursor", "Last-Event-ID", "Idempotency-Key", "traceparent"),
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
        {200: (_STREAM,)},
        FOLLOW_ERRORS,
        ("session_id", "response_id", "user_id", "dialect", "strict", "on_park", "cursor", "Last-Event-ID"),
    ),
)

PROTOCOL = WireProtocol("/process", ProcessRoutes, _OPERATIONS, _PARAMETERS)
