"""The OpenAPI document names every route and every error that a route can give, and what it says is so."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from turnstream.api import services
from turnstream.api.admin.params import parse
from turnstream.api.app import create_app
from turnstream.api.http.error_shape import Problem
from turnstream.api.openapi.document import document
from turnstream.api.openapi.table import OPERATIONS, PARAMETERS
from turnstream.api.protocols import MODULES, error_shape
from turnstream.api.protocols.agent_api.requests import parse_process
from turnstream.api.protocols.liteagent.requests import parse_callback, parse_chat
from turnstream.api.services import Services
from turnstream.shared import errors
from turnstream.shared.agents import config
from turnstream.shared.errors import Refused, TurnstreamError, Unavailable
from turnstream.shared.protocol import AgentRequest
from turnstream.shared.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.client import Client, Stream
    from turnstream.api.http.operation import Operation

DOCUMENT = document()
STREAMED = "text/event-stream"
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "chat": parse_chat,
    "callback": parse_callback,
    "process": lambda body: parse_process(body, config.load(None)[config.DEMO]),
}

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Checks values against a schema of the document, wherever in it that refers to."""
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def described(operation: Operation, method: str = "") -> dict[str, Any]:
    """An operation of the table as the document has it."""
    found: dict[str, Any] = DOCUMENT["paths"][operation.path][(method or operation.methods[0]).lower()]
    return found


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


def routes() -> dict[tuple[str, str], Route]:
    """The application's routes, by method and path."""
    found: dict[tuple[str, str], Route] = {}
    for each in create_app(Settings(protocols=",".join(MODULES)), config.load(None)).routes:
        assert isinstance(each, Route), f"{each}: only routes can be described"
        if not each.include_in_schema:
            continue  # the files of a page for people
        found |= {(method, each.path_format): each for method in each.methods or ()}
    return found


ROUTES = routes()


# ── what a function can raise, read from its source ──

# The class behind each field of Services: `….auth.caller(…)` is a call of `Auth.caller`, and
# `self._log.meta(…)` one of `Log.meta`.
SERVICES = {name: vars(services).get(kind) for name, kind in Services.__annotations__.items()}


@cache
def raised(function: Callable[..., Any]) -> frozenset[type[TurnstreamError]]:
    """Every error that is made in the function, or in one of ours that it calls, as far as names tell."""
    found: set[type[TurnstreamError]] = set()
    seen: set[Callable[..., Any]] = set()
    waiting = [function]
    while waiting:
        current = inspect.unwrap(waiting.pop())
        if current in seen:
            continue
        seen.add(current)
        tree = ast.parse(textwrap.dedent(inspect.getsource(current)))
        caught = _caught(tree, current)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call | ast.Raise):
                continue
            made = named(node.func if isinstance(node, ast.Call) else node.exc, current)
            # A function that is handed over is called in the end, and an error raised: `_name(text, UnknownCall)`.
            handed = [named(each, current) for each in node.args] if isinstance(node, ast.Call) else []
            found |= {
                each
                for each in (made, *handed)
                if isinstance(each, type) and issubclass(each, TurnstreamError)
            }
            if isinstance(made, type) and made not in found and ours(made):
                waiting += [
                    each for each in vars(made).values() if inspect.isfunction(each) and written(each)
                ]
            called = [each for each in (made, *handed) if inspect.isfunction(each) and ours(each)]
            if node in caught:
                found |= frozenset[type[TurnstreamError]]().union(*map(raised, called)) - caught[node]
            else:
                waiting += called
    return frozenset(found)


def _caught(tree: ast.AST, function: Callable[..., Any]) -> dict[ast.AST, set[Any]]:
    """What is called within a ``try``: the errors of ours that it catches."""
    caught: dict[ast.AST, set[Any]] = {}
    for tried in ast.walk(tree):
        if isinstance(tried, ast.Try):
            kinds = {named(each.type, function) for each in tried.handlers if _gives_another(each)}
            kinds = {each for each in kinds if isinstance(each, type) and issubclass(each, TurnstreamError)}
            for node in (inner for line in tried.body for inner in ast.walk(line)) if kinds else ():
                caught[node] = caught.get(node, set()) | kinds
    return caught


def _gives_another(handler: ast.ExceptHandler) -> bool:
    """Whether it does not raise what it has caught."""
    return not any(isinstance(each, ast.Raise) and each.exc is None for each in ast.walk(handler))


def named(node: ast.AST | None, function: Callable[..., Any]) -> Any:
    """What a name or an attribute stands for in a function; None when only a run could tell."""
    if isinstance(node, ast.Name):
        return function.__globals__.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        base = function.__globals__.get(function.__qualname__.partition(".")[0])
    elif isinstance(node.value, ast.Attribute) and node.value.attr.lstrip("_") in SERVICES:
        base = SERVICES[node.value.attr.lstrip("_")]
    else:
        base = named(node.value, function)
    made = inspect.getattr_static(base, node.attr, None) if base is not None else None
    return made.__func__ if isinstance(made, classmethod | staticmethod) else made


def written(function: Callable[..., Any]) -> bool:
    """Whether it has a source; what dataclasses make has none."""
    return not inspect.unwrap(function).__code__.co_filename.startswith("<")


def ours(made: Any) -> bool:
    """Whether it is defined in this project."""
    return str(made.__module__).startswith(("turnstream.api.", "turnstream.shared."))


def status_of(operation: Operation, error: type[TurnstreamError]) -> int:
    """The status with which the operation's protocol answers an error."""
    return error_shape(operation.path).status(Problem.of(error()))


# ── the table and the application ──


def test_every_route_is_described_and_every_description_has_its_route() -> None:
    """A route that is added, removed or moved has to be so in the table too."""
    told = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert told == set(ROUTES)


@each_operation
def test_the_errors_of_an_operation_are_those_that_its_endpoint_can_raise(operation: Operation) -> None:
    """An endpoint that learns a new error, or loses one, has to say so in the table."""
    for method in operation.methods:
        assert raised(ROUTES[method, operation.path].endpoint) == operation.errors


@each_operation
def test_every_status_and_code_of_an_operations_errors_is_documented(operation: Operation) -> None:
    """The code of each error stands under its status, and so does that of our own bugs."""
    for method in operation.methods:
        responses = described(operation, method)["responses"]
        for error in operation.errors | {TurnstreamError}:
            response = responses[str(status_of(operation, error))]
            if method != "HEAD" and error not in operation.instead:
                body = error_shape(operation.path).body(Problem.of(error()))
                validator(response["content"]["application/json"]["schema"]).validate(orjson.loads(body))


def test_every_error_of_the_tree_is_given_by_some_operation() -> None:
    """An error that no route gives is left over, or the table forgot it."""
    given = frozenset().union(*(operation.errors for operation in OPERATIONS))
    # A protocol may have some of its own.
    given = frozenset(each for each in given if each.__module__ == errors.__name__)
    told = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, Refused | Unavailable)
    }
    assert given == told - {Refused, Unavailable}


@each_operation
def test_whoever_is_to_come_back_is_told_when(operation: Operation) -> None:
    """Where 429, or a 503 of ours, is the only meaning of the status, its Retry-After is documented."""
    for error in operation.errors:
        if issubclass(error, Unavailable):
            headers = described(operation)["responses"][str(status_of(operation, error))]["headers"]
            assert "Retry-After" in headers


def test_only_operations_without_a_key_say_so() -> None:
    """A route that needs no key cannot answer 401, and the others can."""
    for operation in OPERATIONS:
        for method in operation.methods:
            told = described(operation, method)
            assert (told.get("security") == []) is not operation.key
            assert ("401" in told["responses"]) is operation.key


# ── the document in itself ──


def test_everything_that_is_referred_to_is_there() -> None:
    """No reference leads nowhere."""
    for each in walk(DOCUMENT):
        if isinstance(each.get("$ref"), str):
            place: Any = DOCUMENT
            for step in each["$ref"].removeprefix("#/").split("/"):
                place = place[step]


def test_every_schema_is_one() -> None:
    """The schemas are valid JSON Schema."""
    for each in walk(DOCUMENT):
        if isinstance(each.get("schema"), dict):
            Draft202012Validator.check_schema(each["schema"])
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_operations_have_names_of_their_own() -> None:
    """No two operations share an id, and every parameter is used."""
    names = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))
    assert {name for operation in OPERATIONS for name in operation.parameters} == set(PARAMETERS)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if isinstance(each.body, type)], ids=lambda each: each.name
)
def test_examples_fit_their_schema_and_are_taken(operation: Operation) -> None:
    """A body that the document shows is valid by its schema and by the code that reads it."""
    content = described(operation)["requestBody"]["content"]["application/json"]
    assert content["examples"]
    for example in content["examples"].values():
        validator(content["schema"]).validate(example["value"])
        assert isinstance(operation.body, type)
        read = PARSERS.get(operation.name) or partial(parse, model=operation.body)
        assert read(orjson.dumps(example["value"]))


@pytest.mark.parametrize(
    "content", ["hello", ["hello"], [{"type": "text", "text": "hello"}], [{"type": "x"}]]
)
def test_what_the_agent_api_takes_as_content_is_described(content: Any) -> None:
    """Bare strings and parts of unknown types are valid by the schema, as they are by the models."""
    body = {"input": [{"role": "user", "content": content}]}
    content_type = DOCUMENT["paths"]["/process"]["post"]["requestBody"]["content"]["application/json"]
    validator(content_type["schema"]).validate(body)
    AgentRequest.model_validate(body)


def test_only_a_turn_of_liteagent_may_do_without_a_session() -> None:
    """One-shot agents need no ``sessionId`` on ``/chat``; whoever follows, answers, stops or clears names it."""
    needed = {
        operation.name: PARAMETERS[name].get("required", False)
        for operation in OPERATIONS
        for name in operation.parameters
        if PARAMETERS[name]["name"] == "sessionId"
    }
    assert [name for name, required in needed.items() if not required] == ["chat"]
    assert set(needed) == {"chat", "watchChat", "callback", "history", "stop", "clear"}


# ── what is served ──


async def test_the_document_is_served_without_a_key(client: Client) -> None:
    """`GET /openapi.json` gives the document to anybody."""
    client.http.headers.pop("authorization")
    answer = await client.http.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == orjson.loads(orjson.dumps(DOCUMENT))


COMMANDS = [
    "hello",
    "/tokens 3",
    "/tool add 1 2",
    "/think",
    "/dispatch",
    "/reflect",
    "/image https://example.com/a.png",
    "/fail boom",
]


def check_frames(operation: Operation, stream: Stream) -> None:
    """Every frame has a name that the document knows, and data that fits what it says of it."""
    assert stream.frames
    kinds = described(operation)["responses"]["200"]["content"][STREAMED]["schema"]["anyOf"]
    events = {
        kind["properties"].get("event", {}).get("const", ""): kind["properties"]["data"]["contentSchema"]
        for kind in kinds
    }
    for frame in stream.frames:
        validator(events[frame.event]).validate(frame.data)


async def test_agent_api_frames_are_as_described(client: Client) -> None:
    """Whatever the agent does, its events fit the document; so does the whole response."""
    operation = next(each for each in OPERATIONS if each.name == "process")
    for command in COMMANDS:
        async with client.process("s1", command) as stream:
            await stream.all()
        check_frames(operation, stream)
        answer = await client.http.post(
            "/process", json={"stream": False, "input": [{"role": "user", "content": command}]}
        )
        schema = described(operation)["responses"]["200"]["content"]["application/json"]["schema"]
        validator(schema).validate(answer.json())


@pytest.mark.parametrize("streamed", [True, False])
async def test_liteagent_frames_are_as_described(client: Client, *, streamed: bool) -> None:
    """Whatever the agent does, its events fit the document; so does the history."""
    operation = next(each for each in OPERATIONS if each.name == "chat")
    session = await client.init()
    for command in COMMANDS:
        async with client.chat(session, command, stream=streamed) as stream:
            await stream.all()
        check_frames(operation, stream)
    history = await client.http.get("/liteAgent/v1/history", params={"sessionId": session})
    schema = DOCUMENT["paths"]["/liteAgent/v1/history"]["get"]["responses"]["200"]["content"]
    validator(schema["application/json"]["schema"]).validate(history.json())
