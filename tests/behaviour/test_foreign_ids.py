"""Every place of a request where an id can stand: a foreign id is answered as one that nothing ever had, to the byte.

The places are those of the OpenAPI document: a new parameter, or a new field of a body that is named like an id, fails the
first test until a row below has it.
"""

from __future__ import annotations

import re
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import orjson
import pytest

from tests.support.a2a import VERSION
from tests.support.client import calls_of, text_of
from tests.support.stack import Stack
from turnstream.api.openapi.document import document
from turnstream.shared.agents import config
from turnstream.shared.agents.config import A2aCard, Agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from tests.conftest import Place
    from tests.support.client import Client

Json = dict[str, Any]

# Parameters that name nothing that was made.
NO_IDS = {
    "A2A-Extensions", "A2A-Version", "Idempotency-Key", "Last-Event-ID", "agentId", "cursor", "dialect", "ended",
    "historyLength", "includeArtifacts", "limit", "on_park", "order", "pageSize", "starting_after", "status",
    "statusTimestampAfter", "stream", "strict", "traceparent",
    # Within an owner's sessions: see test_another_user_does_not_see_the_session.
    "user_id",
    # A place in the caller's own list, and what is looked for there.
    "pageToken", "search", "state",
}  # fmt: skip

# Fields of bodies whose names are those of ids. Those of the second set are the client's own names of what it sends, and of its runs.
ID_FIELD = re.compile(r"(^|_)ids?$|Ids?$|^conversation$")
UNREAD = {"file_id", "msg_id", "input.id", "user_id", "messageId", "message.id", "messages.id", "runId"}

# What is refused whatever it names: nothing is looked for.
NOT_SERVED = {"POST /v1/conversations/{conversation_id}/items"}

# What stands in a row for something foreign: neither the caller's session nor its agent.
FOREIGN = re.compile(r"\$\{?(?!own\b|agent\b)")

# What is known of the foreign turn (`$session`, `$task`, …) and, in its place, what never was. `$own` is a session of the caller,
# `$agent` an agent of it.
_CONSENT = [{"interruptId": "call_$call", "status": "resolved", "payload": True}]
_AG_UI: Json = {"runId": "r", "messages": []}
_CALL = "call_${session}~${task}~$call"
_RESPONSE = "resp_${session}~${task}~0"
_TASK = "${session}~$task"

# A2A's error codes for them; an agent has none of its own.
_NO_TASK, _NO_AGENT = -32001, -32600


class Row(NamedTuple):
    """A request; what it is refused with."""

    what: str
    body: Json | None = None
    status: int = 404
    headers: Mapping[str, str] = MappingProxyType({})


def _answer(session: str) -> Json:
    data = {"call_id": "call_$call", "output": "theirs"}
    content = [{"type": "data", "data": data}]
    return {
        "session_id": session,
        "input": [{"role": "tool", "type": "function_call_output", "content": content}],
    }


def _agent_api() -> Iterator[Row]:
    for session, more in (("$session", {}), ("$session", {"id": "$task"}), ("$own", {"id": "$task"})):
        yield Row("POST /process", {"session_id": session, "reconnect": True, **more})
    yield Row("POST /process", {"session_id": "$session", "response_id": "$task", "reconnect": True})
    yield Row("POST /process", _answer("$session"))
    yield Row("POST /process", _answer("$own"))
    yield Row("GET /process?session_id=$session")
    yield Row("GET /process?session_id=$session&response_id=$task")
    yield Row("GET /process?session_id=$own&response_id=$task")


def _liteagent() -> Iterator[Row]:
    base = "/liteAgent/v1"
    chat = {"content": [{"type": "text", "message": "hi"}]}
    yield Row(f"POST {base}/initSession?forkOf=$session&forkTask=$task")
    yield Row(f"POST {base}/initSession?forkOf=$own&forkTask=$task")
    yield Row(f"POST {base}/chat?sessionId=$session", chat)
    yield Row(f"POST {base}/chat?sessionId=$session", {**chat, "taskId": "$task"})
    yield Row(f"POST {base}/callback?sessionId=$session", {"id": "call_$call", "result": "theirs"})
    yield Row(f"POST {base}/callback?sessionId=$own", {"id": "call_$call", "result": "theirs"})
    yield Row(f"GET {base}/history?sessionId=$session")
    for method in ("GET", "POST"):
        yield Row(f"{method} {base}/clear?sessionId=$session")
        for session in ("$session", "$own"):
            yield Row(f"{method} {base}/stop?sessionId={session}&taskId=$task")
        yield Row(f"{method} {base}/stop?sessionId=$session")
        # Only operators name an owner.
        yield Row(f"{method} {base}/stop?sessionId=$session&owner=$owner", status=403)
    for place in ("sessionId=$session", "sessionId=$session&taskId=$task", "sessionId=$own&taskId=$task"):
        yield Row(f"GET {base}/chat?{place}")


def _openai() -> Iterator[Row]:
    result = {"type": "function_call_output", "call_id": _CALL, "output": "theirs"}
    consent = {"type": "mcp_approval_response", "approval_request_id": _CALL, "approve": True}
    for body in (
        {"input": "hi", "previous_response_id": _RESPONSE},
        {"input": "hi", "conversation": "conv_$session"},
        {"input": "hi", "conversation": {"id": "conv_$session"}},
        {"input": [result]},
        {"input": [consent]},
        {"input": [{**result, "call_id": "$call"}], "previous_response_id": _RESPONSE},
        {"input": [{**result, "call_id": "call_${own}~own~$call"}]},
        {"input": "hi", "model": "$other"},
    ):
        yield Row("POST /v1/responses", body)
    one = f"/v1/responses/{_RESPONSE}"
    for what in (f"GET {one}", f"GET {one}?stream=true", f"DELETE {one}", f"POST {one}/cancel"):
        yield Row(what)
    yield Row(f"GET {one}/input_items")
    yield Row(f"GET {one}/input_items?after=$item")
    yield Row("GET /v1/responses/resp_${own}~${task}~0")
    said = [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": _CALL, "content": "theirs"}]
    for headers in ({}, {"X-Session-Id": "$session"}):
        yield Row("POST /v1/chat/completions", {"messages": said}, headers=headers)
    yield Row("POST /v1/chat/completions", {"messages": said[:1], "model": "$other"})
    yield Row("POST /v1/conversations", {"model": "$other"})
    one = "/v1/conversations/conv_$session"
    for what in (f"GET {one}", f"DELETE {one}", f"GET {one}/items", f"GET {one}/items?after=$item"):
        yield Row(what)
    yield Row(f"POST {one}", {"metadata": {"a": "b"}})
    yield Row(f"GET {one}/items/$item")
    yield Row("GET /v1/conversations/conv_$own/items/$item")
    yield Row("GET /v1/conversations/conv_$own/items?after=$item")
    yield Row("GET /v1/models/$other")


def _ai_sdk() -> Iterator[Row]:
    part = {"type": "tool-f", "toolCallId": "call_$call", "state": "output-available", "output": "theirs"}
    for base in ("/ai-sdk/chat", "/ai-sdk/v5/chat"):
        for chat in ("$session", "$own"):
            message = {"id": "$task", "role": "assistant", "parts": [part]}
            yield Row(f"POST {base}", {"id": chat, "messages": [message]})
        # What the SDK takes for "nothing runs".
        yield Row(f"GET {base}/$session/stream", status=204)
        yield Row(f"GET {base}/$session/messages")
        yield Row(f"POST {base}/$session/stop")


def _ag_ui() -> Iterator[Row]:
    def runs(run: str, **more: Any) -> Iterator[Row]:
        for thread in ("$session", "$own"):
            yield Row(run, {**_AG_UI, **more, "threadId": thread, "resume": _CONSENT})
        # In a known thread: else messages begin one, whatever they are.
        for call in (_CALL, "call_$call"):
            result = {"id": "a", "role": "tool", "toolCallId": call, "content": "theirs"}
            yield Row(run, {**_AG_UI, **more, "threadId": "$own", "messages": [result]})

    connect = {**_AG_UI, "threadId": "$session", "resume": _CONSENT}
    yield from runs("POST /ag-ui")
    yield Row("POST /ag-ui?agent=$other", {**_AG_UI, "threadId": "$session", "resume": _CONSENT})
    # A thread that is not known yet has an empty stream.
    yield Row("POST /ag-ui/connect", connect, 200)
    yield Row("POST /ag-ui/connect?agent=$other", connect)
    yield Row("POST /ag-ui/stop/$session")
    yield Row("POST /ag-ui/stop/$session?run=$task")
    yield Row("POST /ag-ui/stop/$session?agent=$other")
    base = "/copilotkit/agent"
    yield from runs(f"POST {base}/$agent/run")
    yield Row(f"POST {base}/$other/run", {**_AG_UI, "threadId": "$session", "resume": _CONSENT})
    yield Row(f"POST {base}/$agent/connect", connect, 200)
    yield Row(f"POST {base}/$other/connect", connect)
    for agent in ("$agent", "$other"):
        yield Row(f"POST {base}/{agent}/stop/$session", {"runId": "$task"})
        for method, body, status in (
            ("run", {**_AG_UI, "threadId": "$session", "resume": _CONSENT}, 404),
            ("connect", connect, 200 if agent == "$agent" else 404),
            ("stop", None, 404),
        ):
            given = {"agentId": agent, "threadId": "$session"}
            call = {"method": f"agent/{method}", "params": given} | ({"body": body} if body else {})
            yield Row("POST /copilotkit", call, status)


def _a2a() -> Iterator[Row]:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "yes"}], "taskId": _TASK}
    sent: list[Json] = [
        {"message": message},
        {"message": {**message, "contextId": "$session", "referenceTaskIds": [_TASK]}},
        {
            "message": message,
            "configuration": {
                "taskPushNotificationConfig": {"id": "$config", "taskId": _TASK, "url": "https://a.example/"}
            },
        },
        {"message": {**message, "taskId": "${own}~$task"}},
    ]
    webhook = {"id": "$config", "taskId": _TASK, "url": "https://a.example/"}
    calls: list[tuple[str, Json]] = [
        *(("SendMessage", each) for each in sent),
        *(("SendStreamingMessage", each) for each in sent),
        ("GetTask", {"id": _TASK}),
        ("GetTask", {"id": "${own}~$task"}),
        ("CancelTask", {"id": _TASK}),
        ("SubscribeToTask", {"id": _TASK}),
        ("CreateTaskPushNotificationConfig", webhook),
        ("GetTaskPushNotificationConfig", {"id": "$config", "taskId": _TASK}),
        ("GetTaskPushNotificationConfig", {"id": "$config", "taskId": "${own}~own"}),
        ("ListTaskPushNotificationConfigs", {"taskId": _TASK}),
        ("DeleteTaskPushNotificationConfig", {"id": "$config", "taskId": _TASK}),
        ("ListTasks", {"contextId": "$session"}),
    ]
    for path in ("/a2a/$agent", "/a2a/$agent/"):
        for name, params in calls:
            # Errors of JSON-RPC are answers; see `check`.
            yield Row(
                f"POST {path}", {"jsonrpc": "2.0", "id": "7", "method": name, "params": params}, 200, VERSION
            )
    for path in ("/a2a/$other", "/a2a/$other/"):
        yield Row(f"POST {path}", {"jsonrpc": "2.0", "id": "7", "method": "ListTasks"}, 200, VERSION)
    for send in ("send", "stream"):
        for each in sent:
            yield Row(f"POST /a2a/$agent/message:{send}", each, headers=VERSION)
        yield Row(f"POST /a2a/$other/message:{send}", sent[0], headers=VERSION)
    for what, body, status in (
        (f"GET /tasks/{_TASK}", None, 404),
        (f"POST /tasks/{_TASK}:cancel", None, 404),
        (f"GET /tasks/{_TASK}:subscribe", None, 404),
        (f"POST /tasks/{_TASK}:subscribe", None, 404),
        (f"GET /tasks/{_TASK}/pushNotificationConfigs", None, 404),
        (f"POST /tasks/{_TASK}/pushNotificationConfigs", webhook, 404),
        (f"GET /tasks/{_TASK}/pushNotificationConfigs/$config", None, 404),
        (f"DELETE /tasks/{_TASK}/pushNotificationConfigs/$config", None, 404),
        # A list of the caller's own.
        ("GET /tasks?contextId=$session", None, 200),
    ):
        for agent in ("$agent", "$other"):
            there = what.replace(" ", f" /a2a/{agent}", 1)
            yield Row(there, body, status if agent == "$agent" else 404, VERSION)
    yield Row("GET /a2a/$other/extendedAgentCard", headers=VERSION)
    yield Row("GET /a2a/$secret/.well-known/agent-card.json")


def _admin() -> Iterator[Row]:
    """Operators see what they name; keys of users are refused, whatever they name."""
    task = "/admin/v1/tasks/$owner/$session/$task"
    for what in (
        f"GET {task}",
        f"GET {task}/events",
        f"GET {task}/follow",
        f"POST {task}/stop",
        f"POST {task}/replay",
    ):
        yield Row(what, status=403)
    for what in ("POST /admin/v1/keys/$key/revoke", "POST /admin/v1/keys/$key/rotate"):
        yield Row(what, status=403)
    query = "owner=$owner&agent=$other&user=$owner&session=$session&older_than=$older&younger_than=$older&worker=$other&why=$other"
    yield Row(f"GET /admin/v1/tasks?{query}", status=403)
    yield Row("GET /admin/v1/sessions?owner=$owner", status=403)


def _console() -> Iterator[Row]:
    yield Row("GET /console/sessions/$session")
    yield Row("POST /console/sessions/$session", {"title": "mine"})
    yield Row("DELETE /console/sessions/$session")


ROWS = (*_agent_api(), *_liteagent(), *_openai(), *_ai_sdk(), *_ag_ui(), *_a2a(), *_admin(), *_console())


# ── the places of the document ──


def places() -> set[str]:
    """Where ids can stand: ``POST /process session_id`` and the like."""
    described = document()
    parts = described["components"]
    found = set()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            what = f"{method.upper()} {path}"
            if what in NOT_SERVED:
                continue
            for each in operation.get("parameters", []):
                name = parts["parameters"][each["$ref"].rpartition("/")[2]]["name"]
                if name not in NO_IDS:
                    found.add(f"{what} {name}")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for field in _fields(content["schema"], parts["schemas"], frozenset()):
                    name = field.rpartition(".")[2]
                    if ID_FIELD.search(name) and not UNREAD & {name, ".".join(field.split(".")[-2:])}:
                        found.add(f"{what} {name}")
    return found


def _fields(schema: Any, schemas: Json, within: frozenset[str]) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _fields(each, schemas, within)
    elif isinstance(schema, dict):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        if name and name not in within:
            yield from _fields(schemas[name], schemas, within | {name})
        for name, each in schema.get("properties", {}).items():
            yield name
            yield from (f"{name}.{inner}" for inner in _fields(each, schemas, within))
        for word in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
            yield from _fields(schema.get(word), schemas, within)


def covered() -> set[str]:
    """Where the rows have ids."""
    paths = [
        (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/:]+)", re.escape(path)) + "$"), path)
        for path in document()["paths"]
    ]
    found = set()
    for row in ROWS:
        method, _, target = row.what.partition(" ")
        target, _, query = target.partition("?")
        for pattern, path in paths:
            if match := pattern.match(target):
                given = [*match.groupdict().items(), *parse_qsl(query), *row.headers.items()]
                names = {name for name, value in given if FOREIGN.search(value)}
                found |= {f"{method} {path} {name}" for name in names | set(_named(row.body))}
    return found


def _named(body: Any, name: str = "") -> Iterator[str]:
    """The fields of a body that hold ids."""
    if isinstance(body, dict):
        for key, value in body.items():
            yield from _named(value, key)
    elif isinstance(body, list):
        for each in body:
            yield from _named(each, name)
    elif isinstance(body, str) and FOREIGN.search(body):
        yield name


def test_every_place_of_an_id_has_a_row() -> None:
    """Of every route, those of families that are off by default, too."""
    assert places() - covered() == set()


# ── the requests ──


@pytest.fixture
async def stack(place: Place) -> AsyncIterator[Stack]:
    """Every family is served, and two agents are published."""
    specs = {spec.name: spec for spec in config.load(None)}
    for name in ("demo", "demo-researcher"):
        specs[name] = specs[name].model_copy(update={"a2a": A2aCard()})
    stack = Stack(place, Agents(specs), protocols="default,copilotkit,a2a", public_url="http://front.example")
    yield stack
    await stack.close()


@pytest.mark.parametrize("backend", ["fakeredis"], indirect=True)
@pytest.mark.parametrize(("owner", "agent"), [("eve", "demo"), ("dev", "demo-researcher")])
async def test_no_foreign_id_is_found(client: Client, stack: Stack, owner: str, agent: str) -> None:
    """Another owner, or another agent of the same owner: nothing is told of the turn, and nothing is done to it."""
    async with client.process("s1", "/call f {}", id="t1") as stream:
        (call,) = calls_of(await stream.until(calls_of))
        webhooks = "/a2a/demo/tasks/s1~t1/pushNotificationConfigs"
        webhook = {"id": "c1", "url": "https://a.example/"}
        assert (await client.http.post(webhooks, json=webhook, headers=VERSION)).status_code == 200
        items = (await client.http.get("/v1/conversations/conv_s1/items")).json()["data"]
        operator = stack.client(client.base_url, stack.admin)
        made = await operator.http.post("/admin/v1/keys", json={"owner": owner, "agent": agent})
        eve = stack.client(client.base_url, made.json()["token"])
        await eve.turn("own", "hello", id="own")
        same = {"own": "own", "agent": agent}
        foreign = {
            "session": "s1", "task": "t1", "call": call["call_id"].removeprefix("call_"), "item": items[0]["id"],
            "config": "c1", "other": "demo-critic", "secret": "demo-critic", "owner": "dev", "key": "key_" + "1" * 12,
            "older": "1",
        }  # fmt: skip
        never = {
            "session": "s9", "task": "t9", "call": "0" * len(foreign["call"]), "item": "msg_" + "0" * 32,
            "config": "c9", "other": "nothing", "secret": "nothing", "owner": "nobody", "key": "key_" + "9" * 12,
            "older": "2",
        }  # fmt: skip
        wrong: list[Any] = []
        for row in ROWS:
            answers = [await _send(eve, row, {**same, **names}) for names in (foreign, never)]
            if answers[0] != answers[1] or answers[0][0] != row.status:
                wrong.append((row.what, row.body, *answers))
            elif (row.body or {}).get("jsonrpc") and row.status == 200:
                reply = orjson.loads(answers[0][1])
                unknown = reply.get("error", {}).get("code") in (_NO_TASK, _NO_AGENT)
                if not unknown and reply.get("result", {}).get("tasks") != []:
                    wrong.append((row.what, row.body, *answers))
        assert not wrong, "\n".join(map(str, wrong))
        assert len((await client.http.get(webhooks, headers=VERSION)).json()["configs"]) == 1
        await client.callback("s1", call["call_id"], "mine")
        assert text_of(await stream.all()) == "The result is mine."


async def _send(client: Client, row: Row, names: dict[str, str]) -> tuple[int, bytes]:
    method, target = Template(row.what).substitute(names).split(" ", 1)
    body = Template(orjson.dumps(row.body).decode()).substitute(names) if row.body else None
    headers = {name: Template(value).substitute(names) for name, value in row.headers.items()}
    if body:
        headers["Content-Type"] = "application/json"
    answer = await client.http.request(method, target, content=body, headers=headers)
    return answer.status_code, answer.content
