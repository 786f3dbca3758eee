"""The tables of the Agent API protocol's specification, row by row: words, fields, and what each takes.

Each row is a test of its own and is called by what it says. Editions: the newest, its older subset, and the
Java edition; what only the newest runtime knows is marked so.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from turnstream.shared.protocol import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    ComponentCall,
    ComponentCallOutput,
    Content,
    ContentType,
    DataContent,
    Error,
    Event,
    FileContent,
    FunctionCall,
    FunctionCallOutput,
    FunctionParameters,
    FunctionTool,
    ImageContent,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpCallOutput,
    McpListTools,
    McpTool,
    Message,
    MessageType,
    RefusalContent,
    ResponseBuilder,
    Role,
    RunStatus,
    TextContent,
    Tool,
    VideoContent,
    canonical,
    java,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

# ── vocabularies: member, word, and the editions that have it ──

WORDS: list[tuple[type[StrEnum], str, str, str]] = [
    (Role, "ASSISTANT", "assistant", "all editions"),
    (Role, "USER", "user", "all editions"),
    (Role, "SYSTEM", "system", "all editions"),
    (Role, "TOOL", "tool", "newest and Java edition"),
    (MessageType, "MESSAGE", "message", "all editions"),
    (MessageType, "FUNCTION_CALL", "function_call", "all editions"),
    (MessageType, "FUNCTION_CALL_OUTPUT", "function_call_output", "all editions"),
    (MessageType, "PLUGIN_CALL", "plugin_call", "all editions"),
    (MessageType, "PLUGIN_CALL_OUTPUT", "plugin_call_output", "all editions"),
    (MessageType, "COMPONENT_CALL", "component_call", "all editions"),
    (MessageType, "COMPONENT_CALL_OUTPUT", "component_call_output", "all editions"),
    (MessageType, "MCP_LIST_TOOLS", "mcp_list_tools", "all editions"),
    (MessageType, "MCP_APPROVAL_REQUEST", "mcp_approval_request", "all editions"),
    (MessageType, "MCP_TOOL_CALL", "mcp_call", "all editions"),
    (MessageType, "MCP_APPROVAL_RESPONSE", "mcp_approval_response", "all editions"),
    (MessageType, "HEARTBEAT", "heartbeat", "all editions"),
    (MessageType, "ERROR", "error", "all editions"),
    (MessageType, "REASONING", "reasoning", "newest edition"),
    (MessageType, "MCP_TOOL_CALL_OUTPUT", "mcp_call_output", "newest runtime"),
    (MessageType, "CHUNK", "chunk", "Java edition"),
    (MessageType, "SYSTEM", "system", "Java edition"),
    (MessageType, "USER", "user", "Java edition"),
    (MessageType, "ASSISTANT", "assistant", "Java edition"),
    (RunStatus, "Created", "created", "all editions"),
    (RunStatus, "InProgress", "in_progress", "all editions"),
    (RunStatus, "Completed", "completed", "all editions"),
    (RunStatus, "Canceled", "canceled", "all editions"),
    (RunStatus, "Failed", "failed", "all editions"),
    (RunStatus, "Rejected", "rejected", "all editions"),
    (RunStatus, "Unknown", "unknown", "all editions"),
    (RunStatus, "Queued", "queued", "newest edition"),
    (RunStatus, "Incomplete", "incomplete", "newest edition"),
    (ContentType, "TEXT", "text", "all editions"),
    (ContentType, "DATA", "data", "all editions"),
    (ContentType, "IMAGE", "image", "all editions"),
    (ContentType, "AUDIO", "audio", "newest edition, a constant of Java"),
    (ContentType, "FILE", "file", "newest edition"),
    (ContentType, "REFUSAL", "refusal", "newest edition"),
    (ContentType, "VIDEO", "video", "newest runtime"),
]


@pytest.mark.parametrize(
    ("enum", "member", "word"),
    [pytest.param(*row[:3], id=f"{row[0].__name__}.{row[1]} is {row[2]} ({row[3]})") for row in WORDS],
)
def test_word(enum: type[StrEnum], member: str, word: str) -> None:
    """Each member of a vocabulary has its name and its word."""
    assert enum[member] == word


@pytest.mark.parametrize("enum", [Role, MessageType, RunStatus, ContentType])
def test_vocabularies_have_no_other_words(enum: type[StrEnum]) -> None:
    """What no edition has is not in ours."""
    assert {member.name for member in enum} == {name for each, name, _, _ in WORDS if each is enum}


@pytest.mark.parametrize("name", [row[1] for row in WORDS if row[0] is MessageType])
def test_java_spelling_of_message_types(name: str) -> None:
    """The Java edition's name of a type, which is its enum constant, is read, and written on demand."""
    message = Message(type=name, role="assistant")
    assert message.type == MessageType[name]
    assert json.loads(java(canonical(message)))["type"] == name


# ── fields ──


@dataclass(frozen=True)
class Field:
    """One row: a model's field, values that it takes, what it is when left out, and values that it refuses.

    ``left_out`` is a value, a pattern for text, or `REQUIRED`.
    """

    model: type[BaseModel]
    name: str
    takes: tuple[Any, ...]
    left_out: Any = None
    refuses: tuple[Any, ...] = ()

    @property
    def id(self) -> str:
        """What the row is called."""
        need = "required" if self.left_out is REQUIRED else "optional"
        return f"{self.model.__name__}.{self.name} {need}"


REQUIRED = object()
SAID = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tells the weather.", "parameters": OBJECT}
PARTS = [
    {"type": "text", "text": "a"},
    {"type": "image", "image_url": "https://example.com/a.png"},
    {"type": "data", "data": {"a": None}},
]

# The least that makes each model valid; a required field is left out of it by its row.
LEAST: dict[type[BaseModel], dict[str, Any]] = {
    FunctionParameters: {"type": "object", "properties": {}},
    FunctionTool: FUNCTION,
    FunctionCallOutput: {"call_id": "c", "output": "1"},
    Content: {"type": "sketch"},
    AgentRequest: {"input": [SAID]},
    Error: {"code": "c", "message": "m"},
    McpTool: {"name": "n", "input_schema": {}},
    McpListTools: {"id": "i", "server_label": "s", "tools": []},
    McpCall: {"name": "n", "arguments": "{}"},
    McpCallOutput: {"call_id": "c"},
    McpApprovalRequest: {"id": "i", "name": "n", "arguments": "{}"},
    McpApprovalResponse: {"approve": True, "approval_request_id": "i"},
    ComponentCall: {"dispatch_id": "d", "agent_id": "a", "name": "n"},
    ComponentCallOutput: {"dispatch_id": "d", "agent_id": "a", "name": "n"},
    Event: {"object": "response"},
}


def _texts(model: type[BaseModel], *names: str) -> list[Field]:
    return [Field(model, name, ("x", ""), None, (5, {})) for name in names]


FIELDS = [
    # Tool definitions.
    Field(FunctionParameters, "type", ("object",), REQUIRED, ("array", 1)),
    Field(FunctionParameters, "properties", ({}, {"a": {"type": "string"}}), REQUIRED, ([], "x")),
    Field(FunctionParameters, "required", (["a"], []), None, ("a", [1])),
    Field(FunctionTool, "name", ("f",), REQUIRED, (1,)),
    Field(FunctionTool, "description", ("d", ""), REQUIRED, (1,)),
    Field(FunctionTool, "parameters", (OBJECT, {"$ref": "#/x"}), REQUIRED, ("x", [])),
    Field(Tool, "type", ("function",), None, (1,)),
    Field(Tool, "function", (FUNCTION,), None, ("x", {"name": "f"})),
    *_texts(FunctionCall, "call_id", "name", "arguments"),
    Field(FunctionCallOutput, "call_id", ("c",), REQUIRED, (1,)),
    Field(FunctionCallOutput, "output", ("", '{"a": 1}'), REQUIRED, (1, {})),
    Field(FunctionCallOutput, "name", ("f",), None, (1,)),
    # Events of the Java edition; response, message and content are events.
    Field(Event, "sequence_number", (0, 7), None, ("x", 1.5)),
    Field(Event, "object", ("response", "message", "content"), REQUIRED, (1,)),
    Field(Event, "status", tuple(map(str, RunStatus)), None, (1,)),
    Field(Event, "error", ({"code": "c", "message": "m"},), None, ("x", {"code": "c"})),
    # Content.
    Field(Content, "type", (*map(str, ContentType), "sketch"), REQUIRED, (1,)),
    Field(Content, "object", ("content",), "content"),
    Field(Content, "index", (0, 3), None, ("x",)),
    Field(Content, "delta", (True, False), False, ("x",)),
    Field(Content, "msg_id", ("msg_1",), None, (1,)),
    Field(TextContent, "type", ("text",), "text", ("image",)),
    Field(ImageContent, "type", ("image",), "image", ("text",)),
    Field(DataContent, "type", ("data",), "data", ("text",)),
    Field(AudioContent, "type", ("audio",), "audio", ("text",)),
    Field(FileContent, "type", ("file",), "file", ("text",)),
    Field(RefusalContent, "type", ("refusal",), "refusal", ("text",)),
    Field(VideoContent, "type", ("video",), "video", ("text",)),
    *_texts(TextContent, "text"),
    *_texts(ImageContent, "image_url"),
    Field(DataContent, "data", ({}, {"a": [None, {"b": 1}]}), None, ("x", [1])),
    *_texts(AudioContent, "data", "format"),
    *_texts(FileContent, "file_url", "file_id", "filename", "file_data"),
    *_texts(RefusalContent, "refusal"),
    *_texts(VideoContent, "video_url"),
    # Messages.
    Field(Message, "id", ("msg_x",), re.compile(r"msg_[0-9a-f-]{36}"), (1,)),
    Field(Message, "object", ("message",), "message"),
    Field(Message, "type", (*map(str, MessageType), "telepathy"), "message", (1,)),
    Field(Message, "status", ("in_progress", "completed", "incomplete"), "created", (1,)),
    Field(Message, "role", tuple(map(str, Role)), None, (1,)),
    Field(Message, "content", (PARTS, []), None, (7, [7], [{"text": "no type"}])),
    *_texts(Message, "code", "message"),
    Field(Message, "usage", ({"input_tokens": 1},), None, ("x",)),
    Field(Message, "metadata", ({"a": None},), None, ("x",)),
    # Requests.
    Field(AgentRequest, "input", ([SAID], [SAID, SAID]), REQUIRED, ([], "x", [1])),
    Field(AgentRequest, "stream", (True, False), True, ("x",)),
    *_texts(AgentRequest, "model", "user_id"),
    Field(AgentRequest, "top_p", (0.5, 1), None, ("x", float("nan"))),
    Field(AgentRequest, "temperature", (0, 0.7, 2), None, ("x", float("inf"))),
    Field(AgentRequest, "frequency_penalty", (-2, 0.1), None, ("x",)),
    Field(AgentRequest, "presence_penalty", (-2, 0.1), None, ("x",)),
    Field(AgentRequest, "max_tokens", (1, 4096), None, (0, "x", 1.5)),
    Field(AgentRequest, "stop", ("END", ["a", "b"]), None, (1, [1])),
    Field(AgentRequest, "n", (1, 2, 5), 1, (0, 6, "x")),
    Field(AgentRequest, "seed", (0, 42), None, ("x",)),
    Field(
        AgentRequest,
        "tools",
        ([{"type": "function", "function": FUNCTION}], [{"name": "f"}]),
        None,
        ([1], "x"),
    ),
    Field(AgentRequest, "session_id", ("s1", "a.b:c@d-e_f"), None, ("a b", "x" * 129, 1)),
    Field(AgentRequest, "response_id", ("r1",), None, ("a b", 1)),
    Field(AgentRequest, "id", ("r1",), None, ("a b", 1)),
    Field(AgentRequest, "metadata", ({"a": None},), None, ("x",)),
    Field(AgentRequest, "reconnect", (True, False), False, ("x",)),
    # Responses.
    Field(AgentResponse, "sequence_number", (0, 7), None, ("x",)),
    Field(AgentResponse, "id", ("r1",), re.compile(r"response_[0-9a-f-]{36}"), (1,)),
    Field(AgentResponse, "object", ("response",), "response"),
    Field(AgentResponse, "status", tuple(map(str, RunStatus)), "created", (1,)),
    Field(AgentResponse, "created_at", (1_700_000_000,), re.compile(r"\d{10}"), ("x",)),
    Field(AgentResponse, "completed_at", (1_700_000_000,), None, ("x",)),
    Field(AgentResponse, "error", ({"code": "c", "message": "m"},), None, ("x",)),
    Field(AgentResponse, "output", ([], [{"id": "m", "content": PARTS}]), None, ("x", [1])),
    Field(AgentResponse, "usage", ({"input_tokens": 1, "output_tokens": 2},), None, ("x",)),
    *_texts(AgentResponse, "session_id", "user_id"),
    Field(AgentResponse, "metadata", ({"a": 1},), None, ("x",)),
    # Errors.
    Field(Error, "code", ("c",), REQUIRED, ({},)),
    Field(Error, "message", ("m",), REQUIRED, ({},)),
    # What tool messages hold in the newest runtime.
    Field(McpTool, "name", ("n",), REQUIRED, (1,)),
    Field(McpTool, "input_schema", ({"type": "object"},), REQUIRED),
    *_texts(McpTool, "description"),
    Field(McpTool, "annotations", ({"readOnlyHint": True},)),
    Field(McpListTools, "id", ("i",), REQUIRED, (1,)),
    Field(McpListTools, "server_label", ("s",), REQUIRED, (1,)),
    Field(McpListTools, "tools", ([], [{"name": "n", "input_schema": {}}]), REQUIRED, ("x",)),
    *_texts(McpListTools, "error"),
    Field(McpCall, "name", ("n",), REQUIRED, (1,)),
    Field(McpCall, "arguments", ("{}",), REQUIRED, ({},)),
    *_texts(McpCall, "id", "call_id", "server_label", "error", "output"),
    Field(McpCallOutput, "call_id", ("c",), REQUIRED, (1,)),
    *_texts(McpCallOutput, "name", "server_label", "output", "error"),
    Field(McpApprovalRequest, "id", ("i",), REQUIRED, (1,)),
    Field(McpApprovalRequest, "name", ("n",), REQUIRED, (1,)),
    Field(McpApprovalRequest, "arguments", ("{}",), REQUIRED, ({},)),
    # Our own: `reason`, of a call that was lost.
    *_texts(McpApprovalRequest, "server_label", "reason"),
    Field(McpApprovalResponse, "approve", (True, False), REQUIRED, ("perhaps",)),
    Field(McpApprovalResponse, "approval_request_id", ("i",), REQUIRED, (1,)),
    *_texts(McpApprovalResponse, "id", "reason"),
]


def _least(row: Field) -> dict[str, Any]:
    return {key: value for key, value in LEAST.get(row.model, {}).items() if key != row.name}


def _written(made: BaseModel, name: str) -> Any:
    fields = made.model_dump(mode="json", exclude_none=True)
    return fields.get(name, fields.get(to_camel(name)))


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.id)
def test_field(row: Field) -> None:
    """A field takes its values in both spellings, writes them as given, has its default, and refuses the rest."""
    least = _least(row)
    for value in row.takes:
        for name in dict.fromkeys((row.name, to_camel(row.name))):
            made = row.model.model_validate({**least, name: value})
            kept = _written(made, row.name)
            assert _contains(kept, value), f"{value!r} became {kept!r}"
            assert row.model.model_validate_json(made.model_dump_json()) == made
    if row.left_out is REQUIRED:
        with pytest.raises(ValidationError, match=row.name):
            row.model.model_validate(least)
    else:
        made = row.model.model_validate(least)
        default = getattr(made, row.name)
        expected = row.left_out.fullmatch(str(default)) if isinstance(row.left_out, re.Pattern) else None
        assert expected or default == row.left_out
    for value in row.refuses:
        with pytest.raises(ValidationError):
            row.model.model_validate({**least, row.name: value})


def _contains(kept: Any, given: Any) -> bool:
    """Whether all that was given was kept; models add their own fields."""
    if isinstance(given, dict):
        return isinstance(kept, dict) and all(
            value is None or _contains(kept.get(key), value) for key, value in given.items()
        )
    if isinstance(given, list):
        return isinstance(kept, list) and len(kept) == len(given) and all(map(_contains, kept, given))
    return bool(kept == given)


@pytest.mark.parametrize(
    "model", list(dict.fromkeys(row.model for row in FIELDS)), ids=lambda each: each.__name__
)
def test_models_have_no_unknown_fields(model: type[BaseModel]) -> None:
    """Every field of a model is in a row here, or in one of the model that it stands on."""
    rows = {row.name for row in FIELDS if issubclass(model, row.model)}
    shared = {row.name for row in FIELDS if row.model in (Event, Content) and issubclass(model, Event)}
    assert set(model.model_fields) <= rows | shared | {"dispatch_id", "agent_id", "name", "content"}


@pytest.mark.parametrize(
    "model", list(dict.fromkeys(row.model for row in FIELDS)), ids=lambda each: each.__name__
)
def test_fields_explain_themselves(model: type[BaseModel]) -> None:
    """Every field says what it means, for ``/openapi.json`` and for who writes an agent."""
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, name


# ── methods ──

METHODS: list[tuple[str, Callable[[], Any], Any]] = [
    ("Event.created sets created", lambda: Message().in_progress().created().status, "created"),
    ("Event.in_progress sets in_progress", lambda: Message().in_progress().status, "in_progress"),
    ("Event.completed sets completed", lambda: Message().completed().status, "completed"),
    ("Event.rejected sets rejected", lambda: Message().rejected().status, "rejected"),
    ("Event.canceled sets canceled", lambda: Message().canceled().status, "canceled"),
    (
        "Message.add_delta_content appends partial content to the message",
        lambda: _said("add_delta_content", ("Hel", 0), ("lo", 0)).get_text_content(),
        "Hello",
    ),
    (
        "Message.content_completed marks a content segment as complete",
        lambda: getattr(_said("add_delta_content", ("a", 0)).content_completed(0), "status", None),
        "completed",
    ),
    (
        "Message.add_content adds a fully formed content segment",
        lambda: [part.status for part in _said("add_content", ("a", 0), ("b", 1)).content or []],
        ["completed", "completed"],
    ),
    (
        "Message.get_text_content is the first text",
        lambda: Message.model_validate({"content": PARTS}).get_text_content(),
        "a",
    ),
    (
        "Message.get_image_content is the list of image links",
        lambda: Message.model_validate({"content": PARTS}).get_image_content(),
        ["https://example.com/a.png"],
    ),
    (
        "AgentResponse.add_new_message adds to the output",
        lambda: _with_message().output,
        [Message(id="m1", role="assistant")],
    ),
]


def _said(method: str, *pieces: tuple[str, int]) -> Message:
    message = Message(role="assistant")
    for text, index in pieces:
        getattr(message, method)(TextContent(text=text, index=index, delta=method == "add_delta_content"))
    return message


def _with_message() -> AgentResponse:
    response = AgentResponse()
    response.add_new_message(Message(id="m1", role="assistant"))
    return response


@pytest.mark.parametrize(
    ("call", "expected"), [pytest.param(call, expected, id=name) for name, call, expected in METHODS]
)
def test_method(call: Callable[[], Any], expected: Any) -> None:
    """Each documented method does what its row says."""
    assert call() == expected


# ── the builder's sequence and types ──

SEQUENCE = [
    (0, "response", "created", "response creation"),
    (1, "response", "in_progress", "response start"),
    (2, "message", "created", "message creation"),
    (4, "content", "in_progress", "content streaming output"),
    (-3, "content", "completed", "content completion"),
    (-2, "message", "completed", "message completion"),
    (-1, "response", "completed", "response completion"),
]


@pytest.mark.parametrize(("place", "kind", "status"), [pytest.param(*row[:3], id=row[3]) for row in SEQUENCE])
def test_streaming_sequence(place: int, kind: str, status: str) -> None:
    """``generate_streaming_response`` says the standard sequence, each step in its place."""
    events = list(ResponseBuilder(session_id="s").generate_streaming_response(["Hello", " ", "World", "!"]))
    assert (events[place].object, events[place].status) == (kind, status)
    deltas = [event for event in events if getattr(event, "delta", False)]
    assert [getattr(event, "text", None) for event in deltas] == ["Hello", " ", "World", "!"]


BUILT: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("TextContent, incremental", "text", ("add_text_delta", "a"), {"text": "a"}),
    ("TextContent, whole", "text", ("set_text", "a"), {"text": "a"}),
    ("ImageContent by URL", "image", ("set_image_url", "https://x/a.png"), {"image_url": "https://x/a.png"}),
    ("ImageContent as base64", "image", ("set_image_url", "data:image/png;base64,AA"), {"image_url": "data:image/png;base64,AA"}),
    ("DataContent, arbitrary JSON", "data", ("set_data", {"a": [None, {"b": 1.5}]}), {"data": {"a": [None, {"b": 1.5}]}}),
    ("DataContent, incremental", "data", ("add_data_delta", {"a": "b"}), {"data": {"a": "b"}}),
    ("AudioContent, any format", "audio", ("set_audio", "AA", "mp3"), {"data": "AA", "format": "mp3"}),
    ("FileContent by URL", "file", ("set_file", "https://x/a.pdf"), {"file_url": "https://x/a.pdf"}),
    ("FileContent by id", "file", ("set_file", None, "f-1", "a.pdf"), {"file_id": "f-1", "filename": "a.pdf"}),
    ("FileContent as data", "file", ("set_file", None, None, None, "AA"), {"file_data": "AA"}),
    ("RefusalContent", "refusal", ("set_refusal", "no"), {"refusal": "no"}),
    ("VideoContent", "video", ("set_video", "https://x/a.mp4"), {"video_url": "https://x/a.mp4"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "said"), [pytest.param(*row[1:], id=row[0]) for row in BUILT])
def test_built_content(kind: str, call: tuple[Any, ...], said: dict[str, Any]) -> None:
    """Each content type is built by its calls, and is whole in its last event and in the output."""
    responses = ResponseBuilder()
    message = responses.create_message_builder()
    part = message.create_content_builder(kind, index=0)
    getattr(part, call[0])(*call[1:])
    whole = json.loads(canonical(part.complete()))
    message.complete()
    (listed,) = json.loads(canonical(responses.completed()))["output"][0]["content"]
    assert said.items() <= whole.items()
    assert listed == whole
    assert (whole["type"], whole["status"], whole["delta"], whole["index"]) == (kind, "completed", False, 0)


def test_a_message_says_what_else_it_holds() -> None:
    """An error message's code and text, and whatever an author attaches, are in each of the message's events."""
    about = {
        "code": "out_of_stock",
        "message": "There is none left.",
        "metadata": {"a": None},
        "x_later": [1],
    }
    responses = ResponseBuilder()
    message = responses.create_message_builder(
        "assistant", "error", about={**about, "status": "odd", "id": "x"}
    )
    events = [message.created(), message.in_progress(), message.complete()]
    listed = (responses.completed().output or [])[0]
    for event in (*events, listed):
        told = json.loads(canonical(event))
        assert about.items() <= told.items()
        assert (told["type"], told["id"]) == ("error", message.message_id)
