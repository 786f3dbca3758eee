"""A2A as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.api.http.operation import (
    BODY_ERRORS,
    CALL_ERRORS,
    KEY_ERRORS,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.a2a.card import BASE, WELL_KNOWN
from turnstream.api.protocols.a2a.errors import (
    A2aErrors,
    NoAgent,
    NoPushNotifications,
    NotCancelable,
    RpcErrors,
    UnknownMediaType,
    UnknownVersion,
    UnsupportedOperation,
)
from turnstream.api.protocols.a2a.requests import PushConfig, SendMessage
from turnstream.api.protocols.a2a.routes import CONFIGS, TASK, A2aRoutes
from turnstream.api.protocols.a2a.schemas import (
    A2aCall,
    A2aDeleted,
    A2aEvent,
    A2aPushConfig,
    A2aPushConfigs,
    A2aReply,
    A2aSent,
    A2aTask,
    A2aTasks,
)
from turnstream.api.protocols.a2a.task_encoder import DIALECT, STATES
from turnstream.shared.errors import (
    BadCursor,
    BadRequest,
    CursorGone,
    InvalidBody,
    NoSession,
    NoTask,
    Overloaded,
    ShuttingDown,
    TooMany,
)

if TYPE_CHECKING:
    from turnstream.api.http.error_shape import ErrorShape

_PARAMETERS = {
    "a2aAgent": parameter("path", "agent", "An agent that is published.", required=True),
    "a2aTask": parameter("path", "task_id", "A task's id, as it was told.", required=True),
    "a2aConfig": parameter("path", "config_id", "The id of a push notification config.", required=True),
    "A2A-Version": parameter("header", "A2A-Version", "`1.0`.", required=True),
    "A2A-Extensions": parameter(
        "header",
        "A2A-Extensions",
        "URIs of extensions that are wanted, with commas between them: see the card.",
    ),
    "a2aCursor": parameter(
        "header",
        "Last-Event-ID",
        "The cursor behind which to go on: also when the task has ended meanwhile.",
    ),
    "a2aHistoryLength": parameter(
        "query", "historyLength", "Messages at most, the newest.", pattern="^[0-9]{1,9}$"
    ),
    "a2aContext": parameter("query", "contextId", "Only tasks of that context."),
    "a2aStatus": parameter("query", "status", "Only tasks of that state.", enum=list(STATES)),
    "a2aPageSize": parameter("query", "pageSize", "Tasks at most, 1 to 100; 50.", pattern="^[0-9]{1,3}$"),
    "a2aPageToken": parameter("query", "pageToken", "`nextPageToken` of the page before."),
    "a2aAfter": parameter(
        "query", "statusTimestampAfter", "Only tasks whose state is not older.", format="date-time"
    ),
    "a2aArtifacts": parameter(
        "query", "includeArtifacts", "`true`: with what the agent said.", enum=["true", "false"]
    ),
}

_EVENTS = Stream(dialects=(DIALECT,), frame="id: CURSOR\ndata: JSON\n\n", events={"": A2aEvent})
_REPLIES = Stream(dialects=(DIALECT,), frame="id: CURSOR\ndata: JSON\n\n", events={"": A2aReply})

_COMMON = ("a2aAgent", "A2A-Version")
_OWN = KEY_ERRORS | {NoAgent, UnknownVersion}
_TASK_ERRORS = _OWN | {NoTask, NoSession, CursorGone}
_SEND_ERRORS = ((TURN_ERRORS | CALL_ERRORS | _OWN) - {BadCursor, BadRequest}) | {
    UnsupportedOperation,
    NoPushNotifications,
    UnknownMediaType,
}
_CONFIG_ERRORS = _OWN | {NoTask, NoSession, NoPushNotifications}
_EXAMPLE: dict[str, Any] = {
    "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "/tokens 3"}]}
}

_OPERATIONS = (
    Operation(
        ("GET",),
        BASE + WELL_KNOWN,
        "agentCard",
        "The agent's card.",
        {200: (dict[str, Any],)},
        frozenset({NoAgent}),
        ("a2aAgent",),
        key=False,
    ),
    Operation(
        ("GET",),
        WELL_KNOWN,
        "onlyAgentCard",
        "The card of the only agent that is published, if one is.",
        {200: (dict[str, Any],)},
        frozenset({NoAgent}),
        key=False,
    ),
    *(
        Operation(
            ("POST",),
            path,
            name,
            "Call a method by JSON-RPC. A method's errors are answers, with their codes; streams are of answers.",
            {200: (_REPLIES, A2aReply)},
            _SEND_ERRORS | {BadCursor},
            (*_COMMON, "A2A-Extensions", "a2aCursor"),
            A2aCall,
            {"send": {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": _EXAMPLE}},
        )
        for path, name in ((BASE, "a2aCall"), (BASE + "/", "a2aCallSlash"))
    ),
    Operation(
        ("POST",),
        BASE + "/message:send",
        "a2aSend",
        "Send a message: it begins a task, or answers what one asks. The answer comes when the task ends or asks, or at once.",
        {200: (A2aSent,)},
        _SEND_ERRORS,
        (*_COMMON, "A2A-Extensions", "traceparent"),
        SendMessage,
        {"send": _EXAMPLE},
    ),
    Operation(
        ("POST",),
        BASE + "/message:stream",
        "a2aStream",
        "Send a message, and follow the task to its end, also where it asks.",
        {200: (_EVENTS,)},
        _SEND_ERRORS,
        (*_COMMON, "A2A-Extensions", "traceparent"),
        SendMessage,
        {"send": _EXAMPLE},
    ),
    Operation(
        ("GET",),
        BASE + "/extendedAgentCard",
        "a2aExtendedCard",
        "There is none.",
        {},
        _OWN | {UnsupportedOperation},
        _COMMON,
    ),
    Operation(
        ("GET",),
        BASE + "/tasks",
        "a2aTasks",
        "The owner's newest tasks with this agent that came by A2A, those whose state is the newest first.",
        {200: (A2aTasks,)},
        _TASK_ERRORS | {InvalidBody},
        (
            *_COMMON,
            "a2aContext",
            "a2aStatus",
            "a2aPageSize",
            "a2aPageToken",
            "a2aHistoryLength",
            "a2aAfter",
            "a2aArtifacts",
        ),
    ),
    Operation(
        ("GET",),
        TASK,
        "a2aTask",
        "A task as it is.",
        {200: (A2aTask,)},
        _TASK_ERRORS | {InvalidBody},
        (*_COMMON, "a2aTask", "a2aHistoryLength"),
    ),
    Operation(
        ("POST",),
        TASK + ":cancel",
        "a2aCancel",
        "Stop a task. When this answers, its end is in the log.",
        {200: (A2aTask,)},
        _TASK_ERRORS | {NotCancelable},
        (*_COMMON, "a2aTask"),
    ),
    Operation(
        ("GET", "POST"),
        TASK + ":subscribe",
        "a2aSubscribe",
        "The task as it is, then its events; behind a cursor, as it was there, and all events since.",
        {200: (_EVENTS,)},
        _TASK_ERRORS | {UnsupportedOperation, BadCursor, TooMany, Overloaded, ShuttingDown},
        (*_COMMON, "a2aTask", "A2A-Extensions", "a2aCursor"),
    ),
    Operation(
        ("POST",),
        CONFIGS,
        "a2aCreateConfig",
        "Have an address told when the task asks, and when it has ended.",
        {200: (A2aPushConfig,)},
        _CONFIG_ERRORS | BODY_ERRORS | {TooMany, Overloaded},
        (*_COMMON, "a2aTask"),
        PushConfig,
        {"webhook": {"url": "https://client.example/told"}},
    ),
    Operation(
        ("GET",),
        CONFIGS,
        "a2aConfigs",
        "Who is told of the task.",
        {200: (A2aPushConfigs,)},
        _CONFIG_ERRORS,
        (*_COMMON, "a2aTask"),
    ),
    Operation(
        ("GET",),
        CONFIGS + "/{config_id}",
        "a2aConfig",
        "One of them.",
        {200: (A2aPushConfig,)},
        _CONFIG_ERRORS,
        (*_COMMON, "a2aTask", "a2aConfig"),
    ),
    Operation(
        ("DELETE",),
        CONFIGS + "/{config_id}",
        "a2aDeleteConfig",
        "Have it told no more.",
        {200: (A2aDeleted,)},
        _CONFIG_ERRORS,
        (*_COMMON, "a2aTask", "a2aConfig"),
    ),
)

_ERRORS, _RPC_ERRORS = A2aErrors(), RpcErrors()


def _errors_of(path: str) -> ErrorShape:
    """JSON-RPC's own at its one address."""
    return _RPC_ERRORS if path.removeprefix("/a2a/").removesuffix("/").count("/") == 0 else _ERRORS


PROTOCOL = WireProtocol(
    "/a2a",
    A2aRoutes,
    _OPERATIONS,
    _PARAMETERS,
    _ERRORS,
    _errors_of,
    opt_in=True,
    beside=(WELL_KNOWN,),
)
