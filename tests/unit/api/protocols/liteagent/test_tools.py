"""LiteAgent frames of tool calls, results, dispatches and critics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.unit.api.protocols.turn import (
    COMPLETIONS,
    EPOCH,
    SESSION,
    TASK,
    envelope,
    message,
    read,
    status,
    tool,
)
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, LiteAgent

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

BOTH = pytest.mark.parametrize("dialect", [LITEAGENT_STREAM, LITEAGENT_WHOLE], ids=["stream", "whole"])
CALL = {"call_id": "call_1", "name": "add", "arguments": '{"a":1}'}
CALLED = {"id": "call_1", "name": "add", "arguments": {"a": 1}, "parameters": {"a": 1}}
IDS = {"functionCallIdList": ["call_1", "call_2"]}
FIRST = {"group": {"ids": ["call_1", "call_2"], "first": True}}
LAST = {"group": {"ids": ["call_1", "call_2"], "last": True}}
DISPATCH = {
    "dispatchId": "d-1",
    "agentId": "a-1",
    "name": "Reader",
    "content": [{"type": "text", "text": "Go"}],
}
DISPATCHED = DISPATCH | {"content": [{"type": "text", "message": "Go"}]}


def told(one: Entry, dialect: LiteAgent = LITEAGENT_WHOLE) -> list[tuple[str, dict[str, Any]]]:
    """The frames of an entry in a live log."""
    return read(dialect.frames(SESSION, EPOCH, one))


def said(role: str, kind: str, content: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    """A message frame to the agent."""
    return "message", envelope(role, "agent", kind, content, **more)


@BOTH
@pytest.mark.parametrize("kind", ["plugin_call", "mcp_call"])
def test_call_holds_its_arguments_under_both_names(dialect: LiteAgent, kind: str) -> None:
    """A server tool's call is one toolCalls message."""
    assert told(tool(kind, CALL), dialect) == [said("assistant", "toolCalls", [CALLED])]


@BOTH
def test_client_function_is_asked_for(dialect: LiteAgent) -> None:
    """A client's function is told as a call, then asked for by a frame of its own."""
    assert told(tool("function_call", CALL), dialect) == [
        said("assistant", "toolCalls", [CALLED]),
        ("functionCall", envelope("agent", "client", "functionCall", CALLED)),
    ]


@BOTH
def test_approval_is_asked_for_as_a_function(dialect: LiteAgent) -> None:
    """A request for approval carries the tool's name and arguments, and is no call yet."""
    data = {"id": "call_1", "name": "add", "arguments": '{"a":1}', "server_label": "math"}
    frames = told(tool("mcp_approval_request", data), dialect)
    assert frames == [("functionCall", envelope("agent", "client", "functionCall", CALLED))]


@pytest.mark.parametrize("kind", ["plugin_call", "mcp_call", "function_call"])
def test_first_call_is_announced(kind: str) -> None:
    """The status toolsStart, with the ids of the whole answer, comes before the first call."""
    frames = told(tool(kind, CALL, extra=FIRST | {"completions": COMPLETIONS}))
    assert frames[0] == ("message", status("toolsStart", IDS))
    assert frames[1] == said("assistant", "toolCalls", [CALLED], completions=COMPLETIONS)


def test_further_calls_are_not_announced() -> None:
    """A call that is not the first of its answer stands alone."""
    assert len(told(tool("plugin_call", CALL, extra={"group": {"ids": ["call_1"]}}))) == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"a": {"b": [1, "x"]}}', {"a": {"b": [1, "x"]}}),
        ('{\n  "a": 1\r\n}', {"a": 1}),
        ("[1]", {"value": [1]}),
        ("5", {"value": 5}),
        ('"x"', {"value": "x"}),
        ("null", {"value": None}),
        ("not json", {"value": "not json"}),
        ('{"a": NaN}', {"value": '{"a": NaN}'}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_are_always_an_object(given: Any, shown: Any) -> None:
    """Whatever a model wrote as arguments, clients get an object."""
    [(_, data)] = told(tool("plugin_call", CALL | {"arguments": given}))
    assert data["content"][0]["arguments"] == data["content"][0]["parameters"] == shown


@pytest.mark.parametrize("kind", ["plugin_call_output", "function_call_output", "mcp_call_output"])
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"sum": 3}', {"sum": 3}),
        ("3", {"result": 3}),
        ("[1, 2]", {"result": [1, 2]}),
        ("done", {"result": "done"}),
        ("", {"result": ""}),
        (None, {"result": None}),
        ({"sum": 3}, {"sum": 3}),
        ([1], {"result": [1]}),
    ],
)
def test_result_is_always_an_object(kind: str, given: Any, shown: Any) -> None:
    """Whatever a tool returned, clients get an object."""
    frames = told(tool(kind, {"call_id": "call_1", "output": given}, role="tool"))
    assert frames == [said("tool", "toolReturn", {"id": "call_1", "result": shown})]


@BOTH
@pytest.mark.parametrize("kind", ["plugin_call_output", "function_call_output", "mcp_call_output"])
def test_last_result_is_followed_by_tools_done(dialect: LiteAgent, kind: str) -> None:
    """The status toolsDone comes after the result that completes the answer's calls."""
    frames = told(tool(kind, {"call_id": "call_1", "output": "{}"}, extra=LAST), dialect)
    assert frames == [
        said("tool", "toolReturn", {"id": "call_1", "result": {}}),
        ("message", status("toolsDone", IDS)),
    ]


def test_failed_mcp_call_returns_its_error() -> None:
    """An MCP result that holds an error instead of output tells the error."""
    frames = told(tool("mcp_call_output", {"call_id": "c", "error": "refused"}))
    assert frames == [said("tool", "toolReturn", {"id": "c", "result": {"error": "refused"}})]


def test_numbers_keep_their_precision() -> None:
    """A result is passed on as written, not parsed and written again."""
    output = '{"id": 123456789012345678901234567890, "x": 1.10}'
    frames = LITEAGENT_WHOLE.frames(
        SESSION, EPOCH, tool("plugin_call_output", {"call_id": "c", "output": output})
    )
    assert output.encode() in frames


def test_deeply_nested_result_is_told() -> None:
    """A result nested deeper than the encoder goes does not end the stream."""
    output = '{"a":' * 600 + "1" + "}" * 600
    frames = LITEAGENT_WHOLE.frames(
        SESSION, EPOCH, tool("plugin_call_output", {"call_id": "c", "output": output})
    )
    assert output.encode() in frames


@BOTH
@pytest.mark.parametrize("state", ["created", "in_progress", "incomplete"])
@pytest.mark.parametrize("kind", ["plugin_call", "function_call", "plugin_call_output", "component_call"])
def test_calls_are_told_when_completed_only(dialect: LiteAgent, kind: str, state: str) -> None:
    """A call or result that never became whole is hidden, and announces nothing."""
    content = [{"type": "data", "data": CALL}]
    assert told(message(kind, content, status=state, extra=FIRST), dialect) == []


@pytest.mark.parametrize("kind", ["plugin_call", "plugin_call_output", "component_call"])
def test_message_without_data_is_hidden(kind: str) -> None:
    """A tool's message that holds no data has nothing to tell."""
    assert told(message(kind, [{"type": "text", "text": "?"}], extra=FIRST)) == []
    assert told(message(kind, extra=FIRST)) == []


# Dispatches


@BOTH
@pytest.mark.parametrize("kind", ["component_call", "component_call_output"])
def test_dispatch_is_an_object(dialect: LiteAgent, kind: str) -> None:
    """A sub-agent's task and its answer are dispatches, content lists in these clients' spelling."""
    assert told(tool(kind, DISPATCH), dialect) == [said("subagent", "dispatch", DISPATCHED)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([{"type": "text", "message": "Go"}], [{"type": "text", "message": "Go"}]),
        ([{"type": "imageUrl", "message": "u"}], [{"type": "imageUrl", "message": "u"}]),
        ([{"type": "image", "image_url": "u"}], [{"type": "imageUrl", "message": "u"}]),
        (["Go"], [{"type": "text", "message": "Go"}]),
        ("Go", [{"type": "text", "message": "Go"}]),
        ([{"type": "text"}], [{"type": "text", "message": ""}]),
        ([{"type": "data", "text": {"a": 1}}], [{"type": "text", "message": '{"a":1}'}]),
        (None, []),
    ],
)
def test_dispatch_content_takes_either_spelling(given: Any, shown: list[Any]) -> None:
    """However the items are spelled in the log, clients get a type and a message."""
    [(_, data)] = told(tool("component_call", DISPATCH | {"content": given}))
    assert data["content"]["content"] == shown


def test_dispatches_are_grouped_like_calls() -> None:
    """Both statuses stand around dispatches too."""
    assert told(tool("component_call", DISPATCH, extra=FIRST)) == [
        ("message", status("toolsStart", IDS)),
        said("subagent", "dispatch", DISPATCHED),
    ]
    assert told(tool("component_call_output", DISPATCH, extra=LAST)) == [
        said("subagent", "dispatch", DISPATCHED),
        ("message", status("toolsDone", IDS)),
    ]


def test_sub_agents_own_call() -> None:
    """A sub-agent calls and asks as itself, for the task it serves; its tool stays a tool."""
    more = {"agentId": "a-7", "parentTaskId": TASK}
    extra = FIRST | {"agent": {"id": "a-7", "name": "Reader"}}
    assert told(tool("function_call", CALL, path="reader", extra=extra)) == [
        ("message", status("toolsStart", IDS, role="subagent") | more),
        said("subagent", "toolCalls", [CALLED], **more),
        ("functionCall", envelope("subagent", "client", "functionCall", CALLED, **more)),
    ]
    [(_, data)] = told(tool("plugin_call_output", {"call_id": "c", "output": "1"}, path="reader"))
    assert (data["role"], data["agentId"]) == ("tool", "reader")


# Critics

REFLECTION = {
    "isPass": False,
    "agentId": "critic-1",
    "name": "Critic",
    "messageScore": {
        "content": [{"type": "text", "message": "Q"}],
        "contentList": [{"type": "text", "message": "Q"}],
        "messageType": "text",
        "message": "A",
        "reflectScoreList": [{"score": 6, "description": "short"}],
    },
    "passScore": 8,
    "count": 1,
    "maxCount": 10,
}


def reflected(output: Any) -> Any:
    """The content of the reflection frame made from a critic's output."""
    [(event, data)] = told(tool("component_call_output", {"name": "reflection", "output": output}))
    assert (event, data["role"], data["to"], data["type"]) == ("message", "reflection", "agent", "reflection")
    return data["content"]


def test_reflection_passes_through() -> None:
    """A critic's verdict has all the protocol's fields."""
    assert reflected(REFLECTION) == REFLECTION


def test_reflection_may_be_the_data_itself() -> None:
    """A verdict that is not wrapped in an output is read as well."""
    [(_, data)] = told(tool("component_call_output", REFLECTION | {"name": "reflection"}))
    assert data["content"] == REFLECTION | {"name": "reflection"}


@pytest.mark.parametrize("passed", [True, "true", "True"])
def test_reflection_types_are_strict(passed: Any) -> None:
    """Strings where the documentation's example has them become the types that clients parse."""
    score = {"content": "Q", "message": {"a": 1}, "reflectScoreList": [{"score": "9"}]}
    assert reflected(
        {"isPass": passed, "passScore": "8", "count": "2", "maxCount": "3", "messageScore": score}
    ) == {
        "isPass": True,
        "agentId": "",
        "name": "",
        "messageScore": {
            "content": [{"type": "text", "message": "Q"}],
            "contentList": [{"type": "text", "message": "Q"}],
            "messageType": "text",
            "message": '{"a":1}',
            "reflectScoreList": [{"score": 9, "description": ""}],
        },
        "passScore": 8,
        "count": 2,
        "maxCount": 3,
    }


@pytest.mark.parametrize(
    "output", [None, {}, "nonsense", {"passScore": "many", "isPass": ""}, {"passScore": "9" * 30}]
)
def test_reflection_has_defaults(output: Any) -> None:
    """A critic that says little still gives a whole verdict: not passed, the usual limits."""
    content = reflected(output)
    assert (content["isPass"], content["passScore"], content["maxCount"]) == (False, 8, 10)
    assert content["messageScore"]["reflectScoreList"] == []


def test_question_to_a_critic_is_hidden() -> None:
    """Only the verdict is told."""
    assert told(tool("component_call", {"name": "reflection", "content": "?"}, extra=FIRST)) == []


def test_several_calls_in_one_message() -> None:
    """Each data part of a message is a call of the one toolCalls frame."""
    content = [{"type": "data", "data": CALL}, {"type": "data", "data": CALL | {"call_id": "call_2"}}]
    [(_, data)] = told(message("plugin_call", content))
    assert [call["id"] for call in data["content"]] == ["call_1", "call_2"]
    assert orjson.dumps(data["content"][0]) == orjson.dumps(CALLED)
