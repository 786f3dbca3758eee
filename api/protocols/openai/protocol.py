"""OpenAI's API as one object: its routes, and how /openapi.json describes them."""

from __future__ import annotations

from turnstream.api.http.operation import (
    BODY_ERRORS,
    CALL_ERRORS,
    KEY_ERRORS,
    SESSION_ERRORS,
    TURN_ERRORS,
    Operation,
    Stream,
    parameter,
)
from turnstream.api.http.wire_protocol import WireProtocol
from turnstream.api.protocols.openai.chat_requests import ChatBody
from turnstream.api.protocols.openai.chat_routes import CHAT
from turnstream.api.protocols.openai.chat_routes import PATH as CHAT_PATH
from turnstream.api.protocols.openai.conversation_routes import BASE as CONVERSATIONS
from turnstream.api.protocols.openai.conversation_routes import ConversationBody
from turnstream.api.protocols.openai.errors import NotServed, OpenAiErrors
from turnstream.api.protocols.openai.model_routes import Model, Models
from turnstream.api.protocols.openai.not_served import ADD_ITEMS, COMPACT, COUNT_TOKENS
from turnstream.api.protocols.openai.response_requests import CreateResponse
from turnstream.api.protocols.openai.response_routes import BASE, RESPONSES
from turnstream.api.protocols.openai.routes import OpenAiRoutes
from turnstream.api.protocols.openai.schemas import (
    Chunk,
    Completion,
    Conversation,
    DeletedConversation,
    DeletedResponse,
    FailedTurn,
    Item,
    ItemList,
    ResponseEvent,
    ResponseObject,
)
from turnstream.api.streaming.dialect import LAST
from turnstream.shared.errors import (
    BadCursor,
    BadRequest,
    CursorGone,
    NoModel,
    NoSession,
    NoTask,
    Overloaded,
    SessionBusy,
    ShuttingDown,
    TooMany,
)

_PARAMETERS = {
    "openaiResponse": parameter("path", "response_id", "`resp_…`, as a response tells it.", required=True),
    "openaiConversation": parameter("path", "conversation_id", "`conv_…`: a session.", required=True),
    "openaiItem": parameter("path", "item_id", "The id of an item.", required=True),
    "openaiModel": parameter("path", "model", "An agent.", required=True),
    "openaiStream": parameter(
        "query", "stream", "`true`: its events, from the first or behind `starting_after`."
    ),
    "openaiStartingAfter": parameter(
        "query",
        "starting_after",
        "The `sequence_number` of the last event that was received.",
        pattern="^[0-9]{1,12}$",
    ),
    "X-Session-Id": parameter(
        "header",
        "X-Session-Id",
        "The session; what its log has is not taken again. `X-OpenWebUI-Chat-Id`, `X-Conversation-Id` and `X-Chat-Id` say the same.",
    ),
    "openaiLimit": parameter("query", "limit", "Items at most, 1 to 100; 20.", pattern="^[0-9]{1,3}$"),
    "openaiOrder": parameter("query", "order", "The oldest first, or the newest.", enum=["asc", "desc"]),
    "openaiAfter": parameter("query", "after", "The id of the item behind which the page begins."),
}

_STREAM = Stream(
    dialects=(RESPONSES,),
    frame="event: TYPE\ndata: JSON\n\n",
    events={"": ResponseEvent},
    last=LAST,
)

_CHUNKS = Stream(
    dialects=(CHAT,),
    frame="data: JSON\n\n",
    events={"": Chunk | FailedTurn},
    last=LAST,
)

_ID_ERRORS = SESSION_ERRORS | {NoTask, CursorGone}
_OPERATIONS = (
    Operation(
        ("GET",), "/v1/models", "models", "The agents of the key, as models.", {200: (Models,)}, KEY_ERRORS
    ),
    Operation(
        ("GET",),
        "/v1/models/{model}",
        "modelOfKey",
        "One of them.",
        {200: (Model,)},
        KEY_ERRORS | {NoModel},
        ("openaiModel",),
    ),
    Operation(
        ("POST",),
        BASE,
        "createResponse",
        "Take a turn, or answers to calls. With `stream` the response's events, with `background` the response as it is, else "
        "the response when the turn ends or asks its client.",
        {200: (_STREAM, ResponseObject)},
        (TURN_ERRORS | CALL_ERRORS | {NoModel}) - {BadCursor},
        ("Idempotency-Key", "traceparent"),
        CreateResponse,
        {
            "turn": {"model": "demo", "input": "/tokens 3", "stream": True},
            "whole": {"model": "demo", "input": [{"role": "user", "content": "/think"}]},
        },
    ),
    Operation(
        ("GET",),
        BASE + "/{response_id}",
        "retrieveResponse",
        "The response as it is; or its events, which go on as they come.",
        {200: (_STREAM, ResponseObject)},
        _ID_ERRORS | {ShuttingDown, Overloaded, TooMany},
        ("openaiResponse", "openaiStream", "openaiStartingAfter"),
    ),
    Operation(
        ("DELETE",),
        BASE + "/{response_id}",
        "deleteResponse",
        "Have the response be found no more. A live turn whose last response it is, so far, is stopped; its items stay in the session.",
        {200: (DeletedResponse,)},
        _ID_ERRORS - {BadRequest},
        ("openaiResponse",),
    ),
    Operation(
        ("POST",),
        BASE + "/{response_id}/cancel",
        "cancelResponse",
        "Stop the turn. When this answers, its end is in the log.",
        {200: (ResponseObject,)},
        _ID_ERRORS - {BadRequest},
        ("openaiResponse",),
    ),
    Operation(
        ("GET",),
        BASE + "/{response_id}/input_items",
        "inputItems",
        "What the response answers: the user's messages, or the answers that it begins with.",
        {200: (ItemList,)},
        _ID_ERRORS,
        ("openaiResponse", "openaiLimit", "openaiOrder", "openaiAfter"),
    ),
    Operation(
        ("POST",),
        CHAT_PATH,
        "chatCompletions",
        "Take a turn, or answers to calls, and answer with the completion. The session is that which `X-Session-Id` names, else one for "
        "this turn.",
        {200: (_CHUNKS, Completion), 500: (FailedTurn,)},
        (TURN_ERRORS | CALL_ERRORS | {NoModel}) - {BadCursor},
        ("X-Session-Id", "Idempotency-Key", "traceparent"),
        ChatBody,
        {
            "stream": {
                "model": "demo",
                "messages": [{"role": "user", "content": "/tokens 3"}],
                "stream": True,
            },
            "whole": {"model": "demo", "messages": [{"role": "user", "content": "/think"}]},
        },
    ),
    Operation(
        ("POST",),
        CONVERSATIONS,
        "createConversation",
        "Make a session. Until a response is created in it, it lives for a quarter of an hour.",
        {200: (Conversation,)},
        KEY_ERRORS | BODY_ERRORS | {TooMany, Overloaded, ShuttingDown, NoSession, NoModel},
        (),
        ConversationBody,
        {"new": {"metadata": {"topic": "demo"}}},
    ),
    Operation(
        ("GET",),
        CONVERSATIONS + "/{conversation_id}",
        "retrieveConversation",
        "What is known of it.",
        {200: (Conversation,)},
        KEY_ERRORS | {NoSession},
        ("openaiConversation",),
    ),
    Operation(
        ("POST",),
        CONVERSATIONS + "/{conversation_id}",
        "updateConversation",
        "Replace its metadata.",
        {200: (Conversation,)},
        KEY_ERRORS | BODY_ERRORS | {TooMany, Overloaded, NoSession},
        ("openaiConversation",),
        ConversationBody,
        {"other": {"metadata": {"topic": "demo"}}},
    ),
    Operation(
        ("DELETE",),
        CONVERSATIONS + "/{conversation_id}",
        "deleteConversation",
        "Stop what is live in it, and forget it.",
        {200: (DeletedConversation,)},
        KEY_ERRORS | {NoSession, SessionBusy},
        ("openaiConversation",),
    ),
    Operation(
        ("GET",),
        CONVERSATIONS + "/{conversation_id}/items",
        "conversationItems",
        "Its items.",
        {200: (ItemList,)},
        SESSION_ERRORS | {NoTask},
        ("openaiConversation", "openaiLimit", "openaiOrder", "openaiAfter"),
    ),
    Operation(
        ("GET",),
        CONVERSATIONS + "/{conversation_id}/items/{item_id}",
        "conversationItem",
        "One item of it.",
        {200: (Item,)},
        KEY_ERRORS | {NoSession, NoTask},
        ("openaiConversation", "openaiItem"),
    ),
    *(
        Operation(
            ("POST",),
            path,
            name,
            "Not served: the error says what to do instead.",
            {},
            KEY_ERRORS | {NotServed},
            parameters,
        )
        for path, name, parameters in (
            (ADD_ITEMS, "addItems", ("openaiConversation",)),
            (COUNT_TOKENS, "countInputTokens", ()),
            (COMPACT, "compactResponse", ()),
        )
    ),
)

PROTOCOL = WireProtocol("/v1", OpenAiRoutes, _OPERATIONS, _PARAMETERS, OpenAiErrors(), in_browsers=True)
