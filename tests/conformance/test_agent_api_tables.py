"""What the Agent API protocol says in prose and tables, row by row: life cycle, statuses, practices, requests.

Each row is a test of its own and is called by what it says; the fields of the models have theirs in
``tests/unit/shared/protocol/test_specification_tables.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.captures import from_entries, recorded
from tests.conformance.process_visit import process_visit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.capture import Json
    from tests.conformance.visit import Answer


def _of(feature: str, wire: Any = "agentscope") -> list[Json]:
    """The events of a feature."""
    return [frame.json for frame in from_entries(recorded(feature), wire).said]


def _told(feature: str, kind: str) -> list[str]:
    """The statuses of the events of one kind, in order, each change once."""
    statuses: list[str] = []
    for event in _of(feature):
        if event["object"] == kind and statuses[-1:] != [event["status"]]:
            statuses.append(event["status"])
    return statuses


def _types(feature: str) -> list[str]:
    """The types of the messages that a feature's output has."""
    return [message["type"] for message in _of(feature)[-1]["output"]]


def _messages(feature: str, kind: str) -> list[Json]:
    return [
        event["content"][0]["data"]
        for event in _of(feature)
        if event.get("type") == kind and event["status"] == "completed" and "content" in event
    ]


def _ok(name: str) -> Answer:
    answer = process_visit()[name]
    assert answer.status == 200, answer.body
    return answer


def _events(name: str) -> list[Json]:
    return [frame.json for frame in _ok(name).frames]


def _last(name: str) -> Json:
    return _events(name)[-1]


def _said(response: Json) -> str:
    """The text of a response's last message."""
    return "".join(part.get("text", "") for part in response["output"][-1]["content"])


def _refused(name: str, status: int, code: Any, *words: str) -> bool:
    answer = process_visit()[name]
    body = answer.json
    return (answer.status, body["code"]) == (status, code) and all(word in body["message"] for word in words)


_NUMBERS = range(10_000)

ROWS: list[tuple[str, Callable[[], Any]]] = [
    # The life of a request.
    ("the client sends input messages, and the agent has them", lambda: _said(_last("stream")) == "You said: hello there"),
    ("a response goes from created to in_progress to completed", lambda: _told("text", "response")[-3:] == ["created", "in_progress", "completed"]),
    ("with a queue in front, queued comes first", lambda: _told("text", "response")[0] == "queued"),
    ("created and in_progress are two events of a message", lambda: _told("text", "message") == ["created", "in_progress", "completed"]),
    ("the response has output messages with their content", lambda: _said(_of("text")[-1]) == "You said: hello there, how are you"),
    ("the response ends with usage", lambda: set(_of("text")[-1]["usage"]) >= {"input_tokens", "output_tokens"}),
    # Streams.
    ("text comes in segments with delta true", lambda: next(event["text"] for event in _of("text") if event.get("delta")).startswith("You ")),
    ("each segment has the index of its content slot", lambda: {event["index"] for event in _of("text") if event["object"] == "content"} == {0}),
    ("the first delta's index is a number", lambda: next(event for event in _of("text") if event.get("delta"))["index"] == 0),
    ("the final segment is whole, delta false, completed", lambda: [event["text"] for event in _of("text") if event["object"] == "content" and event["status"] == "completed" and event["delta"] is False] == ["You said: hello there, how are you"]),
    ("segments are buffered until completed: joined, they are the whole", lambda: "".join(event["text"] for event in _of("tokens") if event.get("delta")) == _said(_of("tokens")[-1])),
    ("msg_id correlates content with its message", lambda: {event["msg_id"] for event in _of("thinking") if event["object"] == "content"} == {message["id"] for message in _of("thinking")[-1]["output"]}),
    ("index counts the segments of a message", lambda: [part["index"] for part in _of("every_content_type_said")[-1]["output"][1]["content"]] == list(range(7))),
    ("sequence_number orders the events, from 0 and dense", lambda: [event["sequence_number"] for event in _of("client_call")] == list(_NUMBERS[: len(_of("client_call"))])),
    ("no content comes before its message is in progress", lambda: _of("text")[4]["object"] == "message" and _of("text")[5]["object"] == "content"),
    ("the user's own message is not in the stream", lambda: all(event.get("role") != "user" for event in _of("text"))),
    ("message ids are msg_<uuid>", lambda: all(re.fullmatch(r"msg_[0-9a-f-]{36}", message["id"]) for message in _of("text")[-1]["output"])),
    ("response ids are response_<uuid>", lambda: re.fullmatch(r"response_[0-9a-f-]{36}", _events("stream")[0]["id"])),
    ("an event stream says UTF-8", lambda: _ok("stream").media_type == "text/event-stream; charset=utf-8"),
    # Statuses.
    ("created: the initial state", lambda: _told("text", "response")[1] == _told("text", "message")[0] == "created"),
    ("in_progress: being processed", lambda: "in_progress" in _told("text", "response") and _told("text", "content")[0] == "in_progress"),
    ("completed: finished successfully", lambda: _told("text", "response")[-1] == _told("text", "message")[-1] == _told("text", "content")[-1] == "completed"),
    ("failed: terminated with errors", lambda: _told("failure", "response")[-1] == "failed"),
    ("canceled: canceled by the user", lambda: _told("stop", "response")[-1] == _last("canceled")["status"] == "canceled"),
    ("rejected: rejected by the system", lambda: process_visit()["busy"].json["status"] == "rejected"),
    ("queued: waits for a worker", lambda: _events("stream")[0]["status"] == "queued"),
    ("incomplete: cut off before it was whole", lambda: _told("stop", "message")[-1] == "incomplete"),
    ("unknown: never said", lambda: b"unknown" not in _ok("stream").body),
    # The end.
    ("the terminal event has the whole output when completed", lambda: len(_of("server_tool")[-1]["output"]) == 3),
    ("the terminal event has the whole output when failed", lambda: _last("failure")["status"] == "failed" and isinstance(_last("failure")["output"], list)),
    ("the terminal event has the whole output when canceled", lambda: _last("canceled")["output"][0]["content"][0]["text"].startswith("tok0 ")),
    ("created_at and completed_at are Unix seconds, in order", lambda: 1_600_000_000 < _last("stream")["created_at"] <= _last("stream")["completed_at"] < 10_000_000_000),
    ("usage comes with every end", lambda: all("usage" in _last(name) for name in ("stream", "failure", "canceled"))),
    # Errors.
    ("a failed response has error with code and message", lambda: _last("failure")["error"] == {"code": "demo_failure", "message": "on purpose"}),
    ("an invalid body is 422 and names the field", lambda: _refused("wrong field", 422, "invalid_body", "input[0].content[0].text")),
    ("a busy session is 409 with a rejected response", lambda: process_visit()["busy"].status == 409 and process_visit()["busy"].json["object"] == "response"),
    ("a rejected response has its id, its session and its error", lambda: {"id": "mine.5", "session_id": "s-busy"}.items() <= process_visit()["busy"].json.items() and process_visit()["busy"].json["error"]["code"] == "session_busy"),
    # Message types, by who runs what.
    ("reasoning comes before the answer", lambda: _types("thinking") == ["reasoning", "message"]),
    ("plugin_call and its output: a tool of the server", lambda: _types("server_tool")[:2] == ["plugin_call", "plugin_call_output"]),
    ("function_call and its output: a function of the client", lambda: _types("client_call")[:2] == ["function_call", "function_call_output"]),
    ("component_call and its output: a sub-agent, its words between them", lambda: _types("dispatch")[1:4] == ["component_call", "message", "component_call_output"]),
    ("mcp_approval_request and its response", lambda: _types("approval_yes")[:2] == ["mcp_approval_request", "mcp_approval_response"]),
    ("a FunctionCall has call_id, name, and arguments as text", lambda: [set(data) for data in _messages("client_call", "function_call")] == [{"call_id", "name", "arguments"}]),
    ("a FunctionCallOutput has call_id, name, and output as text", lambda: [type(data["output"]) for data in _messages("client_call", "function_call_output")] == [str]),
    ("calls and outputs are snapshots, not deltas", lambda: not any(event.get("delta") for event in _of("parallel_calls") if event.get("type") == "data")),
    # Requests.
    ("id becomes the response id", lambda: {event["id"] for event in _events("id") if event["object"] == "response"} == {"mine.1"}),
    ("response_id is taken as id", lambda: _last("response_id")["id"] == "mine.2"),
    ("id wins over response_id", lambda: _last("id and response_id")["id"] == "mine.3"),
    ("the same id once more is the same turn", lambda: _ok("id, once more").body == _ok("id").body),
    ("session_id is the client's choice, and named in every response event", lambda: {event["session_id"] for event in _events("stream") if event["object"] == "response"} == {"s1"}),
    ("without session_id each request has a session of its own", lambda: _last("no session")["session_id"] != _last("no session, once more")["session_id"]),
    ("a session_id has its characters", lambda: _refused("bad session id", 422, "invalid_body", "session_id")),
    ("unknown fields are accepted", lambda: _last("unknown fields")["status"] == "completed"),
    ("a bare string is one text part", lambda: _said(_last("bare string")) == "You said: hello there"),
    ("stream false gives the terminal response as one JSON object", lambda: (_ok("whole").media_type, _ok("whole").json["status"]) == ("application/json", "completed")),
    ("stream false is answered at once when the turn parks", lambda: (_ok("callback: parked").json["status"], _ok("callback: parked").json["output"][-1]["type"]) == ("in_progress", "function_call")),
    ("the documentation's example request", lambda: _last("example")["output"][0]["content"][0]["data"]["given"][0]["text"] == "Describe this image"),
    # Answers to calls.
    ("answered through /callback, the turn goes on", lambda: _said(_last("callback: answered")) == 'The result is {"ok":true}.'),
    ("answered through a further /process, the rest is streamed", lambda: _events("process: answered")[0].get("type") == "function_call_output" and _last("process: answered")["status"] == "completed"),
    ("the rest is of the same response, and its output what it streamed", lambda: _last("process: answered")["id"] == _ok("process: parked").json["id"] and _last("process: answered")["output"][0]["type"] == "function_call_output"),
    ("several calls are answered in one message", lambda: [message["type"] for message in _last("several through process: answered")["output"]].count("function_call_output") == 2),
    ("an approval is answered by mcp_approval_response", lambda: _last("approval through process: answered")["output"][0]["content"][0]["data"]["reason"] == "no"),
    # Coming back.
    ("a POST with Last-Event-ID resumes, and begins nothing", lambda: [frame.id for frame in _ok("resume").frames] == [frame.id for frame in _ok("id").frames[4:]]),
    ("reconnect true follows the running turn from its start", lambda: _ok("reconnected").body == _ok("to be reconnected").body),
    ("reconnect true without a running turn is refused", lambda: _refused("reconnect to nothing", 404, "task_not_found")),
    # The Java edition.
    ("java: asked for in the query", lambda: _events("java by query")[0]["sequenceNumber"] == 0),
    ("java: asked for in Accept", lambda: _events("java by accept")[0]["sessionId"] == "s1"),
    ("java: message types in upper case", lambda: [message["type"] for message in _last("java by query")["output"]] == ["MESSAGE"]),
    ("java: msgId on content", lambda: all("msgId" in event for event in _events("java by query") if event["object"] == "content")),
    ("java: createdAt and completedAt in milliseconds", lambda: 1_600_000_000_000 < _last("java by query")["createdAt"] <= _last("java by query")["completedAt"]),
    ("java: a request in its spelling is taken, whatever is asked for", lambda: {"id": "java-response-1", "session_id": "java-1"}.items() <= _last("java request").items()),
    ("java: the type USER is the user's message", lambda: _last("java request")["status"] == "completed"),
    ("java: the documentation's example request", lambda: _last("java example")["output"][0]["content"][0]["data"]["given"][0]["text"] == "描述这张图片"),
    ("java: tools in their upper-case names", lambda: [message["type"] for message in _of("server_tool", "java")[-1]["output"]] == ["PLUGIN_CALL", "PLUGIN_CALL_OUTPUT", "MESSAGE"]),
]  # fmt: skip


@pytest.mark.parametrize("holds", [pytest.param(holds, id=words) for words, holds in ROWS])
def test_row(holds: Callable[[], Any]) -> None:
    """What the row says holds, in what a real agent said or over HTTP."""
    assert holds()
