"""AG-UI as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from turnstream.api.http.operation import (
    BODY_ERRORS,
    CALL_ERRORS,
    FOLLOW_ERRORS,
    KEY_ERRORS,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.ag_ui.requests import RunAgentInput
from turnstream.api.protocols.ag_ui.routes import PATH, AgUiRoutes
from turnstream.api.protocols.ag_ui.runs import AG_UI
from turnstream.api.protocols.ag_ui.schemas import AgUiEvent, Info, Stopped
from turnstream.shared.errors import BadCursor, BadRequest, NoModel, NoSession, UnknownCall

PARAMETERS = {
    "aguiAgent": parameter("query", "agent", "The agent, of those of the key; else its first."),
    "aguiThread": parameter("path", "thread_id", "The thread.", required=True),
    "aguiRun": parameter("query", "run", "The run, where only that one is to be stopped."),
}

EVENTS = Stream(dialects=(AG_UI,), frame="data: JSON\n\n", events={"": AgUiEvent})

RUN_ERRORS = (TURN_ERRORS | CALL_ERRORS | {NoModel}) - {BadCursor}
CONNECT_ERRORS = (FOLLOW_ERRORS | BODY_ERRORS | {NoModel, UnknownCall}) - {BadCursor, BadRequest, NoSession}

EXAMPLE = {
    "threadId": "t1",
    "runId": "0b8f3a52-7c83-4c5e-8d3e-9f0a5b1c2d3e",
    "protocolVersion": "1.0",
    "messages": [{"id": "m1", "role": "user", "content": "/tokens 3"}],
}

_OPERATIONS = (
    Operation(
        ("POST",),
        PATH,
        "runAgent",
        "Take a user's message, or answers to interrupts or calls, and tell the run that comes of it.",
        {200: (EVENTS,)},
        RUN_ERRORS,
        ("aguiAgent", "Idempotency-Key", "traceparent"),
        RunAgentInput,
        {"run": EXAMPLE},
    ),
    Operation(
        ("POST",),
        f"{PATH}/connect",
        "connectAgent",
        "Tell what was said in a thread, as messages, and its newest run, until that ends. Of a thread that is not known, nothing.",
        {200: (EVENTS,)},
        CONNECT_ERRORS,
        ("aguiAgent",),
        RunAgentInput,
        {"connect": {**EXAMPLE, "messages": []}},
    ),
    Operation(
        ("POST",),
        PATH + "/stop/{thread_id}",
        "stopThread",
        "Stop what runs in a thread. When this answers, its end is in the log.",
        {200: (Stopped,)},
        KEY_ERRORS | {NoSession, NoModel},
        ("aguiThread", "aguiAgent", "aguiRun"),
    ),
    Operation(
        ("GET",),
        f"{PATH}/info",
        "agentsOfKey",
        "The agents of the key, and what they can do.",
        {200: (Info,)},
        KEY_ERRORS,
    ),
)

PROTOCOL = WireProtocol(PATH, AgUiRoutes, _OPERATIONS, PARAMETERS, in_browsers=True)
