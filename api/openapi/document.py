"""The HTTP interface as an OpenAPI 3.1 document, and the route that serves it.

It is generated: bodies from the models that read them, errors from their classes, frames by the dialects
that write them, and the rest from the table in `turnstream.api.openapi.table`, to which each protocol brings its rows.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from starlette.responses import Response

from turnstream.api.http.error_shape import Problem
from turnstream.api.http.operation import Stream, Text
from turnstream.api.http.params import route
from turnstream.api.openapi.table import OPERATIONS, PARAMETERS
from turnstream.api.protocols import error_shape
from turnstream.shared import protocol
from turnstream.shared.errors import TurnstreamError, Unavailable
from turnstream.shared.protocol.content import part_of, parts_of
from turnstream.shared.session.entry import Entry
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import core_schema
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.http.error_shape import ErrorShape
    from turnstream.api.http.operation import Json, Operation

# Words of the protocols that fields hold as plain strings, or as the ``data`` of a part.
_VOCABULARY = (
    protocol.Role,
    protocol.MessageType,
    protocol.RunStatus,
    protocol.ContentType,
    protocol.FunctionCall,
    protocol.FunctionCallOutput,
    protocol.McpListTools,
    protocol.McpCall,
    protocol.McpCallOutput,
    protocol.McpApprovalRequest,
    protocol.McpApprovalResponse,
    protocol.ComponentCall,
    protocol.ComponentCallOutput,
    protocol.ReflectionContent,
)

_JSON = "application/json"


class OpenApiRoutes:
    """Serves the document; needs no key."""

    def routes(self) -> list[Route]:
        """The route."""
        return [route("/openapi.json", self.document, "GET")]

    async def document(self, request: Request) -> Response:  # noqa: ARG002 - a route's signature
        """The document."""
        return Response(_written(), media_type="application/json")


@lru_cache(maxsize=1)
def _written() -> bytes:
    return orjson.dumps(document())


def document() -> Json:
    """The OpenAPI document of this version."""
    schemas = _Schemas()
    paths: dict[str, Json] = defaultdict(dict)
    for operation in OPERATIONS:
        for method in operation.methods:
            paths[operation.path][method.lower()] = _operation(operation, method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnstream",
            "version": VERSION,
            "description": "Chat agents whose turns survive dropped connections: the Agent API protocol at "
            "`/process`, the LiteAgent server API at `/liteAgent/v1`, OpenAI's API at `/v1`, the AI SDK's chats at "
            "`/ai-sdk`, A2A at `/a2a` where the operator wants it.",
        },
        "security": [{"key": []}],
        "paths": dict(paths),
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "bearerFormat": "sk-<32 hexadecimal digits>"}
            },
            "parameters": PARAMETERS,
            "schemas": schemas.named,
        },
    }


def _operation(operation: Operation, method: str, schemas: _Schemas) -> Json:
    first = method == operation.methods[0]
    made: Json = {
        "operationId": operation.name if first else f"{operation.name}_{method.lower()}",
        "summary": operation.summary,
        "responses": _responses(operation, method, schemas),
    }
    if operation.parameters:
        made["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in operation.parameters]
    if isinstance(operation.body, Text):
        made["requestBody"] = {
            "required": True,
            "content": {operation.body.media_type: _text(operation.body)},
        }
    elif operation.body is not None:
        examples = {name: {"value": body} for name, body in operation.examples.items()}
        content = {"schema": schemas.read[operation.body], "examples": examples}
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
    if not operation.key:
        made["security"] = []
    return made


# What an answer says that is not the one that was asked for, and no refusal.
_NOT_200 = {204: "No turn is live.", 500: "The turn failed.", 503: "Not now."}


def _responses(operation: Operation, method: str, schemas: _Schemas) -> Json:
    texts: dict[int, list[str]] = defaultdict(list)
    bodies: dict[int, dict[str, list[Json]]] = defaultdict(lambda: defaultdict(list))
    contents: dict[int, Json] = defaultdict(dict)
    headers: dict[int, Json] = defaultdict(dict)
    for status, answers in operation.answers.items():
        texts[status].append(_NOT_200.get(status, operation.summary))
        for answer in answers:
            if isinstance(answer, Stream):
                contents[status][answer.media_type] = _stream(answer, schemas)
            elif isinstance(answer, Text):
                contents[status][answer.media_type] = _text(answer)
            else:
                bodies[status][_JSON].append(schemas.written[answer])
        if operation.body is not None:
            headers[status]["Turnstream-Replicas"] = {
                "description": "How many replicas are known to have the write; only where the operator asks for it.",
                "schema": {"type": "integer"},
            }
    shape = error_shape(operation.path)
    for status, errors in _by_status(operation.errors | {TurnstreamError}, shape).items():
        told = [error for error in errors if error not in operation.instead]
        texts[status] += [error.text for error in errors]
        for error in errors:
            if error in operation.instead:
                bodies[status][_JSON].append(schemas.written[operation.instead[error]])
        if told:
            media_type = shape.content_type.partition(";")[0]
            bodies[status][media_type].append(shape.schema([Problem.of(error()) for error in told]))
        if all(issubclass(error, Unavailable) for error in errors):
            headers[status]["Retry-After"] = {
                "description": "Seconds after which to try again.",
                "schema": {"type": "integer"},
                "required": True,
            }
        if status == 401:
            headers[status]["WWW-Authenticate"] = {"schema": {"const": "Bearer"}, "required": True}
    made: Json = {}
    for status in sorted(texts):
        described: Json = {"description": " ".join(texts[status])}
        if headers[status]:
            described["headers"] = headers[status]
        for media_type, found in bodies[status].items():
            contents[status][media_type] = {"schema": found[0] if len(found) == 1 else {"anyOf": found}}
        if method != "HEAD":
            described["content"] = contents[status]
        made[str(status)] = described
    return made


def _by_status(
    errors: Iterable[type[TurnstreamError]], shape: ErrorShape
) -> dict[int, list[type[TurnstreamError]]]:
    grouped: dict[int, list[type[TurnstreamError]]] = defaultdict(list)
    for error in sorted(errors, key=lambda each: each.__name__):
        grouped[shape.status(Problem.of(error()))].append(error)
    return grouped


def _text(text: Text) -> Json:
    return {"schema": {"type": "string"}, "example": text.example}


_EXAMPLE = Entry(
    seq=7,
    task="turn1",
    path="",
    kind="message",
    created=1_760_000_000_000,
    event=b'{"sequence_number":4,"object":"content","status":"in_progress","type":"text","index":0,'
    b'"delta":true,"msg_id":"msg_1","text":"tok0 "}',
)


def _stream(stream: Stream, schemas: _Schemas) -> Json:
    """A stream as tools for OpenAPI 3.1 read it: the schema is that of one event."""
    epoch = _EXAMPLE.created
    return {
        "schema": {
            "description": "One server-sent event of the stream.",
            "anyOf": [
                *(_event(name, schemas.written[model]) for name, model in stream.events.items()),
                *([_LAST | {"properties": {"data": {"const": stream.last}}}] if stream.last else ()),
            ],
        },
        "examples": {
            dialect.name: {"value": dialect.frames("s1", epoch, _EXAMPLE).decode()}
            for dialect in stream.dialects
        },
        "x-event-stream": {
            "frame": stream.frame,
            "heartbeat": stream.dialects[0].ping.decode(),
        },
    }


_LAST: Json = {"type": "object", "description": "The last one.", "required": ["data"]}


def _event(name: str, data: Json) -> Json:
    """One kind of event, and the JSON in its data; the name is empty where events have none."""
    properties: Json = {
        "id": {"type": "string", "description": "The cursor to come back with."},
        "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
    }
    required = ["data"]
    if name:
        properties["event"] = {"const": name}
        required.append("event")
    return {"type": "object", "required": required, "properties": properties}


class _Generator(GenerateJsonSchema):
    """As pydantic describes models, and what it cannot know of ours."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> Json:
        """Any, not just one: a part of a known type also fits the part of an unknown one."""
        made = super().tagged_union_schema(schema)
        made["anyOf"] = made.pop("oneOf")
        return made

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Json:
        """A bare string is read as a text part."""
        made = super().function_before_schema(schema)
        if self.mode == "validation" and schema["function"]["function"] in (part_of, parts_of):
            return {"anyOf": [made, {"type": "string"}]}
        return made

    def nullable_schema(self, schema: core_schema.NullableSchema) -> Json:
        """What we write has no nulls: a field is there or it is not."""
        if self.mode == "serialization":
            return self.generate_inner(schema["schema"])
        return super().nullable_schema(schema)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Json:
        """Null as a default says nothing."""
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if key != "default" or value is not None}


class _Schemas:
    """The schemas of all that is read and written; shared ones by reference.

    Attributes:
        read, written: schema by type.
        named: what they refer to, by name.
    """

    def __init__(self) -> None:
        bodies = [operation.body for operation in OPERATIONS]
        read = [body for body in bodies if body is not None and not isinstance(body, Text)]
        written: list[Any] = [*_VOCABULARY]
        for operation in OPERATIONS:
            written += operation.instead.values()
            for answer in (each for answers in operation.answers.values() for each in answers):
                if isinstance(answer, Stream):
                    written += answer.events.values()
                elif not isinstance(answer, Text):
                    written.append(answer)
        made, rest = TypeAdapter.json_schemas(
            [(each, "validation", TypeAdapter(each)) for each in read]
            + [(each, "serialization", TypeAdapter(each)) for each in dict.fromkeys(written)],
            ref_template="#/components/schemas/{model}",
            schema_generator=_Generator,
        )
        self.read: dict[Any, Json] = {each: made[each, "validation"] for each in read}
        self.written: dict[Any, Json] = {each: made[each, "serialization"] for each in written}
        self.named: Json = rest["$defs"]
