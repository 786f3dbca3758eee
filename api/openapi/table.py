"""The one table of what can be asked of a front end, and what can come back.

Each protocol brings its own rows and parameters. Tests compare the table with the application's routes, and with the
errors that each endpoint can raise.
"""

from __future__ import annotations

from typing import Any

from turnstream.api.http.operation import (
    BODY_ERRORS,
    ID,
    KEY_ERRORS,
    SESSION_ERRORS,
    Json,
    Operation,
    Text,
    parameter,
)
from turnstream.api.http.schemas import Version
from turnstream.api.openapi.admin_table import ADMIN_OPERATIONS, ADMIN_PARAMETERS
from turnstream.api.operators.conversations import BASE, ONE, NameBody
from turnstream.api.operators.schemas import (
    ConversationDeleted,
    ConversationList,
    ConversationNamed,
    ConversationRow,
    Health,
    KeyUse,
)
from turnstream.api.protocols import protocols
from turnstream.shared.errors import BadRequest, Forbidden, Overloaded, SessionBusy, ShuttingDown, TooMany
from turnstream.shared.names import NAME

_CURSOR: Json = {"pattern": "^[0-9]{1,16}-[0-9]{1,15}$", "examples": ["1760000000000000-7"]}

PARAMETERS: dict[str, Json] = {
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
        "The same key with the same body gives the same task, as the same id or taskId does; another body is refused. A clear "
        "with the key of the one before does nothing.",
        pattern="^[ -~]{1,256}$",
    ),
    "traceparent": parameter(
        "header",
        "traceparent",
        "W3C trace context; kept with the task. A malformed one is ignored.",
        examples=["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    ),
    "conversation": parameter("path", "session", "The conversation.", required=True, pattern=ID),
    "conversations": parameter(
        "query", "limit", "Rows wanted at most.", type="integer", minimum=1, maximum=100
    ),
    "search": parameter("query", "search", "Only those whose title has this in it, in any case."),
    "conversation_state": parameter(
        "query", "state", "Only those in this state.", enum=["needs_you", "running", "queued", "ended"]
    ),
    "list_page": parameter(
        "query",
        "cursor",
        "What the page before gave as `next`.",
        pattern=f"^[0-9]{{1,16}}:{NAME}$",
        examples=["1760000000000:s1"],
    ),
    **{name: each for protocol in protocols().values() for name, each in protocol.parameters.items()},
    **ADMIN_PARAMETERS,
}

METRICS = Text("text/plain", "# TYPE turnstream_followers gauge\nturnstream_followers 12.0\n")

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
        KEY_ERRORS,
    ),
    Operation(
        ("GET",),
        "/console/key",
        "key",
        "What the key of this request is for.",
        {200: (KeyUse,)},
        KEY_ERRORS - {Forbidden},
    ),
    Operation(
        ("GET",),
        BASE,
        "listSessions",
        "A page of the conversations of the key's owner with its agent, the newest first. It may hold fewer than wanted and yet not "
        "be the last one.",
        {200: (ConversationList,)},
        KEY_ERRORS | {BadRequest},
        ("search", "conversation_state", "user_id", "conversations", "list_page"),
    ),
    Operation(
        ("GET",),
        ONE,
        "session",
        "One conversation, as the list has it.",
        {200: (ConversationRow,)},
        SESSION_ERRORS - {BadRequest},
        ("conversation", "user_id"),
    ),
    Operation(
        ("POST",),
        ONE,
        "nameSession",
        "Call a conversation something; an empty title takes the name away.",
        {200: (ConversationNamed,)},
        SESSION_ERRORS - {BadRequest} | BODY_ERRORS | {TooMany, Overloaded, ShuttingDown},
        ("conversation", "user_id"),
        NameBody,
        {"named": {"title": "The weather in Bern"}},
    ),
    Operation(
        ("DELETE",),
        ONE,
        "deleteSession",
        "End what is live in a conversation, and delete it with all that was said.",
        {200: (ConversationDeleted,)},
        SESSION_ERRORS - {BadRequest} | {SessionBusy},
        ("conversation", "user_id"),
    ),
    *(operation for protocol in protocols().values() for operation in protocol.operations),
    *ADMIN_OPERATIONS,
)
