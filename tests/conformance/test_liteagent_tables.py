"""The tables of the LiteAgent API's documentation, row by row: routes, fields, contents and states.

Each row is a test of its own and is called by what it says. Where the documentation disagrees with itself or
with its clients, the row says what is done.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.conformance.captures import from_entries, recorded, recordings
from tests.conformance.features import PIXEL
from tests.conformance.visit import TASK, TEXT, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.capture import Json
    from tests.conformance.visit import Answer

ROLES = {"developer", "user", "agent", "assistant", "dispatcher", "subagent", "reflection", "tool", "client"}
TYPES = {
    *("text", "imageUrl", "contentList", "toolCalls", "dispatch", "reflection", "toolReturn"),
    *("functionCall", "taskStatus", "reasoningContent", "planning"),
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0800")


def text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def words(value: Any) -> bool:
    """A string that is not empty."""
    return isinstance(value, str) and value != ""


def number(value: Any) -> bool:
    """An int that is no truth value."""
    return type(value) is int


def mapping(value: Any) -> bool:
    """An object."""
    return isinstance(value, dict)


def listed(value: Any) -> bool:
    """An array of objects."""
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def one_of(*known: Any) -> Callable[[Any], bool]:
    """One of these."""
    return lambda value: value in known


# ── what was heard ──


@cache
def heard() -> tuple[tuple[str, Json], ...]:
    """Every frame of every feature, with chunks and without: its event and its data."""
    return tuple(
        (frame.event, frame.json)
        for name in recordings()
        for stream in (True, False)
        for frame in from_entries(recorded(name), "liteagent", stream=stream).said
    )


@cache
def told(source: str) -> tuple[Json, ...]:
    """What a table is about: frames of an event, messages of a type, or all of the histories."""
    if source == "history":
        bodies = [body for one in recordings().values() for body in orjson.loads(one.history)]
    elif source in ("message", "chunk"):
        bodies = [body for event, body in heard() if (event == "chunk") == (source == "chunk")]
    else:
        bodies = [body for _, body in heard() if body["type"] == source and "content" in body]
    assert bodies, f"nobody said {source}"
    return tuple(bodies)


def values(body: Any, path: str) -> Iterator[Any]:
    """What stands at a path: ``content[].name`` is the name of each item of the content."""
    if not path:
        yield body
        return
    step, _, rest = path.partition(".")
    name, each, _ = step.partition("[]")
    if not isinstance(body, dict) or name not in body:
        yield MISSING
    elif each:
        for item in body[name]:
            yield from values(item, rest)
    else:
        yield from values(body[name], rest)


MISSING = object()

# ── fields: the table they stand in, their path, what they are, and whether they may be left out ──

ALWAYS, SOMETIMES = False, True
Row = tuple[str, str, "Callable[[Any], bool]", bool]

_ENVELOPE: tuple[tuple[str, Callable[[Any], bool], bool], ...] = (
    ("sessionId", words, ALWAYS),
    ("taskId", words, ALWAYS),
    ("role", one_of(*ROLES), ALWAYS),
    ("to", one_of(*ROLES), ALWAYS),
    ("type", one_of(*TYPES), ALWAYS),
    ("completions", mapping, SOMETIMES),
    ("completions.usage", mapping, SOMETIMES),
    ("completions.usage.promptTokens", number, SOMETIMES),
    ("completions.usage.completionTokens", number, SOMETIMES),
    ("completions.usage.totalTokens", number, SOMETIMES),
    ("completions.id", text, SOMETIMES),
    ("completions.model", words, SOMETIMES),
    ("createTime", lambda value: bool(TIME.fullmatch(value)), ALWAYS),
    ("agentId", words, SOMETIMES),
    ("parentTaskId", words, SOMETIMES),
)
# A chunk's completions come with the message behind it.
_CHUNK = tuple(row for row in _ENVELOPE if not row[0].startswith(("completions", "role", "to", "type")))


def _parts(source: str, path: str) -> list[Row]:
    return [
        (source, path, listed, ALWAYS),
        (source, f"{path}[].type", one_of("text", "imageUrl"), ALWAYS),
        (source, f"{path}[].message", text, ALWAYS),
    ]


FIELDS: list[Row] = [
    *[("message", *row) for row in _ENVELOPE],
    ("message", "content", lambda value: isinstance(value, str | list | dict), ALWAYS),
    *[("chunk", *row) for row in _CHUNK],
    ("chunk", "role", one_of("agent", "assistant", "subagent"), ALWAYS),
    ("chunk", "to", one_of(*ROLES), ALWAYS),
    ("chunk", "type", one_of("text"), ALWAYS),
    ("chunk", "part", text, ALWAYS),
    *[("history", *row) for row in _ENVELOPE],
    ("history", "type", one_of(*TYPES - {"taskStatus", "functionCall"}), ALWAYS),
    ("history", "message", lambda value: isinstance(value, str | list | dict), ALWAYS),
    ("history", "content", lambda value: isinstance(value, str | list | dict), ALWAYS),
    ("text", "content", text, ALWAYS),
    ("imageUrl", "content", words, ALWAYS),
    ("reasoningContent", "content", words, ALWAYS),
    *_parts("contentList", "content"),
    ("toolCalls", "content", listed, ALWAYS),
    ("toolCalls", "content[].id", words, ALWAYS),
    ("toolCalls", "content[].name", words, ALWAYS),
    ("toolCalls", "content[].parameters", mapping, ALWAYS),
    ("toolCalls", "content[].arguments", mapping, ALWAYS),
    ("toolReturn", "content.id", words, ALWAYS),
    ("toolReturn", "content.result", mapping, ALWAYS),
    ("reflection", "content.isPass", lambda value: isinstance(value, bool), ALWAYS),
    ("reflection", "content.agentId", text, ALWAYS),
    ("reflection", "content.name", text, ALWAYS),
    ("reflection", "content.messageScore", mapping, ALWAYS),
    *_parts("reflection", "content.messageScore.content"),
    *_parts("reflection", "content.messageScore.contentList"),
    ("reflection", "content.messageScore.messageType", one_of("text", "functionCalling"), ALWAYS),
    ("reflection", "content.messageScore.message", words, ALWAYS),
    ("reflection", "content.messageScore.reflectScoreList", listed, ALWAYS),
    ("reflection", "content.messageScore.reflectScoreList[].score", number, ALWAYS),
    ("reflection", "content.messageScore.reflectScoreList[].description", text, ALWAYS),
    ("reflection", "content.passScore", one_of(8), ALWAYS),
    ("reflection", "content.count", one_of(1, 2), ALWAYS),
    ("reflection", "content.maxCount", one_of(10), ALWAYS),
    (
        "taskStatus",
        "content.status",
        one_of("start", "stop", "done", "toolsStart", "toolsDone", "exception"),
        ALWAYS,
    ),
    ("taskStatus", "content.description", mapping, ALWAYS),
    ("taskStatus", "content.taskId", words, ALWAYS),
    ("dispatch", "content", mapping, ALWAYS),
    ("dispatch", "content.dispatchId", words, ALWAYS),
    ("dispatch", "content.agentId", words, ALWAYS),
    ("dispatch", "content.name", words, ALWAYS),
    *_parts("dispatch", "content.content"),
    ("functionCall", "content", mapping, ALWAYS),
    ("functionCall", "content.id", words, ALWAYS),
    ("functionCall", "content.name", words, ALWAYS),
    ("functionCall", "content.parameters", mapping, ALWAYS),
    ("functionCall", "content.arguments", mapping, ALWAYS),
]


@pytest.mark.parametrize(
    ("source", "path", "fits", "optional"), [pytest.param(*row, id=f"{row[0]}: {row[1]}") for row in FIELDS]
)
def test_field(source: str, path: str, fits: Callable[[Any], bool], optional: bool) -> None:
    """A documented field is there, and is what its row says, wherever any agent's answer has it."""
    found = [value for body in told(source) for value in values(body, path)]
    there = [value for value in found if value is not MISSING]
    assert there, f"no {source} has {path}"
    assert optional or len(there) == len(found)
    assert [value for value in there if not fits(value)] == []


TEXT_HEARD = {"type": "text", "message": "hello there, how are you"}

# ── the documented examples of each message: who says it to whom ──

EXAMPLES: list[tuple[str, str, str, str, Callable[[Json], bool]]] = [
    ("the user's message", "text", "contentList", "user → agent", lambda body: body["content"][0] == TEXT_HEARD),
    ("calls of tools by the model", "server_tool", "toolCalls", "assistant → agent", lambda body: "completions" in body),
    ("a tool's answer to the model", "server_tool", "toolReturn", "tool → agent", lambda body: body["content"]["result"] == {"result": 3}),
    ("the dispatcher's order to a sub-agent", "dispatch", "dispatch", "subagent → agent", lambda body: "the weather" in body["content"]["content"][0]["message"]),
    ("a sub-agent's answer", "dispatch", "dispatch", "subagent → agent", lambda body: "I looked into it" in body["content"]["content"][0]["message"]),
    ("a round of reflection that fails", "reflection", "reflection", "reflection → agent", lambda body: body["content"]["isPass"] is False),
    ("a round of reflection that passes", "reflection", "reflection", "reflection → agent", lambda body: body["content"]["isPass"] is True),
    ("the model's answer without stream", "text", "text", "assistant → agent", lambda body: body.get("content") == "You said: hello there, how are you" and "completions" in body),
    ("the agent tells the client its state", "text", "taskStatus", "agent → client", lambda body: body["content"]["status"] == "start"),
    ("a chunk of the answer", "text", "text", "assistant → agent", lambda body: body.get("part") == "You "),
    ("the end of the chunks", "text", "text", "assistant → agent", lambda body: body.get("part") == ""),
    ("the usage behind the chunks", "text", "text", "assistant → agent", lambda body: body.get("content") == "" and "completions" in body),
    ("a sub-agent's own words", "dispatch", "text", "subagent → agent", lambda body: {"agentId", "parentTaskId"} <= body.keys()),
    ("a function of the client", "client_call", "functionCall", "agent → client", lambda body: body["content"]["name"] == "ask"),
    ("a request for approval", "approval_yes", "functionCall", "agent → client", lambda body: body["content"]["arguments"] == {"what": "files"}),
    ("the model's thoughts", "thinking", "reasoningContent", "assistant → agent", lambda body: "think" in body["content"]),
    ("an image of the answer", "image", "imageUrl", "assistant → agent", lambda body: body["content"] == "https://example.com/a.png"),
    ("data as its JSON", "every_content_type_said", "text", "assistant → agent", lambda body: body.get("content") == '{"answer":42}'),
    ("sound by its name", "every_content_type_said", "text", "assistant → agent", lambda body: body.get("content") == "audio.wav"),
    ("a file by its link", "every_content_type_said", "text", "assistant → agent", lambda body: body.get("content") == "https://example.com/a.pdf"),
    ("a video by its link", "every_content_type_said", "text", "assistant → agent", lambda body: body.get("content") == "https://example.com/a.mp4"),
    ("a refusal as text", "every_content_type_said", "text", "assistant → agent", lambda body: body.get("part") == "I would rather not."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("feature", "kind", "way", "is_it"), [pytest.param(*row[1:], id=row[0]) for row in EXAMPLES]
)
def test_example(feature: str, kind: str, way: str, is_it: Callable[[Json], bool]) -> None:
    """Each message of the documentation's examples is said, by its speaker to whom it is meant for."""
    frames = [
        frame.json
        for stream in (True, False)
        for frame in from_entries(recorded(feature), "liteagent", stream=stream).said
    ]
    role, _, to = way.partition(" → ")
    assert [
        body
        for body in frames
        if (body["role"], body["to"], body["type"]) == (role, to, kind) and is_it(body)
    ]


STATES = [
    ("start: the agent has the user's contentList and begins", "text", "start", {}),
    ("stop: the agent has a stop or a clear, and ends the task", "stop", "stop", {}),
    ("done: the agent has done its work", "text", "done", {}),
    (
        "exception: something went wrong",
        "failure",
        "exception",
        {"code": "demo_failure", "error": "on purpose"},
    ),
    ("toolsStart: tools are about to run", "server_tool", "toolsStart", None),
    ("toolsDone: the tools have run", "server_tool", "toolsDone", None),
]


@pytest.mark.parametrize(
    ("feature", "state", "description"), [pytest.param(*row[1:], id=row[0]) for row in STATES]
)
def test_state(feature: str, state: str, description: Json | None) -> None:
    """Each state is told to the client where its row says, with its description."""
    bodies = [frame.json for frame in from_entries(recorded(feature), "liteagent").said]
    (one,) = [body for body in bodies if body["type"] == "taskStatus" and body["content"]["status"] == state]
    assert (one["role"], one["to"]) == ("agent", "client")
    calls = [body["content"] for body in bodies if body["type"] == "toolCalls"]
    expected = {"functionCallIdList": [call["id"] for each in calls for call in each]}
    assert one["content"]["description"] == (expected if description is None else description)


# ── routes ──


def _ends(name: str) -> str:
    return str(visit()[name].bodies("taskStatus")[-1]["content"]["status"])


def _images(name: str) -> list[str]:
    (echo,) = visit()[name].bodies("contentList")
    return [part["message"] for part in echo["content"] if part["type"] == "imageUrl"]


def _chunked(name: str) -> bool:
    return any(frame.event == "chunk" for frame in visit()[name].frames)


def _refused(name: str, status: int, code: Any) -> bool:
    answer = visit()[name]
    return (
        answer.status == status
        and code in (answer.json["code"], answer.json.get("reason"))
        and words(answer.json["message"])
    )


def _answer(name: str) -> Answer:
    answer = visit()[name]
    assert answer.status == 200, answer.body
    return answer


ROUTES: list[tuple[str, Callable[[], Any]]] = [
    ("version: {version} as a.b.c", lambda: re.fullmatch(r"\d+\.\d+\.\d+", _answer("version").json["version"])),
    ("initSession: {sessionId}, a string", lambda: words(_answer("initSession").json["sessionId"])),
    ("initSession: its session is subscribed to, stopped and cleared", lambda: _answer("chat") and _answer("stop, session") and _answer("clear")),
    ("chat: an event stream", lambda: _answer("chat").media_type.startswith("text/event-stream")),
    ("chat: content is a list of parts", lambda: _answer("chat").bodies("contentList")[0]["content"] == [TEXT]),
    ("chat: a part's type is text or imageUrl, nothing else", lambda: _refused("chat, unknown part", 422, "invalid_body")),
    ("chat: an image by its link", lambda: _images("chat, image by link") == ["https://example.com/path/to/image.png"]),
    ("chat: an image as base64", lambda: _images("chat, image as base64") == [PIXEL]),
    ("chat: stream is false unless given", lambda: not _chunked("chat")),
    ("chat: stream true gives chunks", lambda: _chunked("chat, stream")),
    ("chat: contentList and isChunk are taken as content and stream", lambda: _chunked("chat, contentList and isChunk")),
    ("chat: a taskId may be chosen", lambda: {frame.json["taskId"] for frame in _answer("chat, taskId").frames} == {TASK}),
    ("chat: a taskId has at most 36 characters", lambda: _refused("chat, long taskId", 422, "invalid_body")),
    ("chat: agentId in the query is passed over", lambda: _ends("chat, agentId") == "done"),
    ("chat: the stream ends with done", lambda: _ends("chat") == "done"),
    ("chat: by GET a task is followed", lambda: _answer("follow").body == _answer("chat, taskId").body),
    ("chat: the same POST with Last-Event-ID is a resume", lambda: [frame.id for frame in _answer("chat, Last-Event-ID").frames] == [frame.id for frame in _answer("chat, taskId").frames[2:]]),
    ("callback: 200, success", lambda: _answer("callback").json == {"result": "success"}),
    ("callback: the result reaches the agent", lambda: {"status": "operate successfully."} in [body["content"]["result"] for body in _answer("chat, callback").bodies("toolReturn")]),
    ("callback: a repeat is answered as before", lambda: _answer("callback, again").json == {"result": "success"}),
    ("callback: an unknown call is refused", lambda: _refused("callback, unknown", 404, "call_not_found")),
    ("history: a bare array", lambda: isinstance(_answer("history").json, list)),
    ("history: what was said, under content and message", lambda: all(body["content"] == body["message"] for body in _answer("history").json)),
    ("history: of all tasks, in order", lambda: [body["type"] for body in _answer("history").json[:4]] == ["contentList", "text", "contentList", "text"]),
    ("stop: one task, which is named", lambda: _answer("stop, task").json.keys() == {"sessionId", "taskId"} and _ends("chat, stopped") == "stop"),
    ("stop: without taskId all tasks of the session", lambda: _answer("stop, session").json.keys() == {"sessionId"} and (_ends("chat, stopped with its session"), _ends("chat, stopped while it waited")) == ("stop", "stop")),
    ("stop: an unknown task is refused", lambda: _refused("stop, unknown task", 404, "task_not_found")),
    ("clear: the session under id and sessionId", lambda: _answer("clear").json == dict.fromkeys(("id", "sessionId"), _answer("initSession").json["sessionId"])),
    ("clear: nothing is left", lambda: _answer("history, cleared").json == []),
    ("clear: not for SimpleAgent", lambda: _refused("one-shot clear", 400, "bad_request")),
    ("SimpleAgent: chat without a session", lambda: _ends("one-shot chat") == "done"),
    ("other agents: no chat without a session", lambda: _refused("chat without a session", 400, "bad_request")),
    ("Authorization: no token is 10001", lambda: _refused("no token", 401, 10001)),
    ("Authorization: a malformed token is 10001", lambda: _refused("bad token", 401, 10001)),
    ("Authorization: an unknown key is 10004", lambda: _refused("unknown key", 401, 10004)),
    ("an unknown or expired session is 30002: history", lambda: _refused("history, unknown session", 404, 30002)),
    ("an unknown or expired session is 30002: stop", lambda: _refused("stop, unknown session", 404, 30002)),
    ("an unknown or expired session is 30002: clear", lambda: _refused("clear, unknown session", 404, 30002)),
    ("a busy session is 409", lambda: _refused("busy", 409, 409)),
]  # fmt: skip


@pytest.mark.parametrize("holds", [pytest.param(holds, id=words_) for words_, holds in ROUTES])
def test_route(holds: Callable[[], Any]) -> None:
    """Each route takes and answers what its row says."""
    assert holds()
