"""Requests: fields, constraints, spellings, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from turnstream.shared.protocol import AgentRequest, Tool, explain

INPUT = [{"role": "user", "content": "hi"}]


def read(**fields: Any) -> AgentRequest:
    """A small valid request with these fields."""
    return AgentRequest.model_validate({"input": INPUT, **fields})


def test_defaults() -> None:
    """A request streams, wants one answer and names no session unless it says otherwise."""
    request = read()
    assert request.stream is True
    assert request.n == 1
    assert request.reconnect is False
    assert request.session_id is None


def test_every_field_is_read() -> None:
    """All documented fields are read, and unknown ones kept."""
    fields: dict[str, Any] = {
        "model": "m",
        "top_p": 0.5,
        "temperature": 1.0,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "max_tokens": 5,
        "stop": ["a", "b"],
        "n": 5,
        "seed": 7,
        "session_id": "s:1@x.y-z",
        "user_id": "u",
        "id": "i",
        "response_id": "r",
        "metadata": {"a": None},
        "later": {"b": None},
    }
    assert fields.items() <= json.loads(read(**fields).model_dump_json()).items()


def test_camel_case_everywhere() -> None:
    """A request of the Java edition reads the same."""
    request = AgentRequest.model_validate(
        {
            "input": [{"type": "USER", "content": [{"type": "image", "imageUrl": "u", "msgId": "m"}]}],
            "topP": 0.5,
            "frequencyPenalty": 0.1,
            "presencePenalty": 0.2,
            "maxTokens": 5,
            "userId": "u",
            "sessionId": "s",
            "responseId": "r",
        }
    )
    assert (request.top_p, request.max_tokens, request.user_id) == (0.5, 5, "u")
    assert (request.session_id, request.response_id) == ("s", "r")
    assert request.input[0].type == "user"
    assert request.input[0].get_image_content() == ["u"]


def test_tools_are_models_or_kept() -> None:
    """A well-formed tool becomes a model; anything else that is an object is kept."""
    good = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    odd = {"type": "function", "function": {"name": "f"}}
    request = read(tools=[good, odd])
    assert request.tools is not None
    assert isinstance(request.tools[0], Tool)
    assert request.tools[1] == odd


def test_reconnect_needs_no_input() -> None:
    """Following a running turn says nothing new; an empty id is none, and null is not given."""
    assert read(stream=None, reconnect=None).stream is True
    request = AgentRequest.model_validate({"reconnect": True, "session_id": "s", "user_id": "u", "id": ""})
    assert request.input == []
    assert request.id is None


@pytest.mark.parametrize(
    ("body", "loc", "line"),
    [
        ({}, ("input",), "input: Give at least one message"),
        ({"input": []}, ("input",), "input: Give at least one message"),
        ({"input": None}, ("input",), "input: Give at least one message"),
        ({"input": "hi"}, ("input",), "input: "),
        ({"input": [7]}, ("input", 0), "input[0]: Input should be an object"),
        ({"input": [{"content": 7}]}, ("input", 0, "content"), "input[0].content: "),
        (
            {"input": [{"content": [{"text": "x"}]}]},
            ("input", 0, "content", 0),
            "input[0].content[0]: A content",
        ),
        (
            {"input": [{"content": ["x", {"type": "text", "text": 3}]}]},
            ("input", 0, "content", 1, "text", "text"),
            "input[0].content[1].text: ",
        ),
        ({"input": INPUT, "n": 0}, ("n",), "n: "),
        ({"input": INPUT, "n": 6}, ("n",), "n: "),
        ({"input": INPUT, "maxTokens": 0}, ("maxTokens",), "maxTokens: "),
        ({"input": INPUT, "stop": 3}, ("stop", "str"), "stop: "),
        ({"input": INPUT, "tools": [3]}, ("tools", 0, "Tool"), "tools[0]: "),
        ({"input": INPUT, "temperature": float("nan")}, ("temperature",), "temperature: "),
        ({"input": INPUT, "session_id": "a b"}, ("session_id",), "session_id: "),
        ({"input": INPUT, "session_id": "x" * 129}, ("session_id",), "session_id: "),
        ({"input": INPUT, "session_id": "x\n"}, ("session_id",), "session_id: "),
        ({"input": INPUT, "id": "a/b"}, ("id",), "id: "),
    ],
)
def test_errors_name_the_field(body: dict[str, Any], loc: tuple[int | str, ...], line: str) -> None:
    """Each constraint is enforced, at a place that leads to the field."""
    with pytest.raises(ValidationError) as caught:
        AgentRequest.model_validate(body)
    assert caught.value.errors()[0]["loc"] == loc
    assert explain(caught.value).startswith(line)


def test_each_wrong_field_is_named_once() -> None:
    """Two faults are told at once; the alternatives of a union count as one, and nobody's words are repeated."""
    with pytest.raises(ValidationError) as caught:
        AgentRequest.model_validate({"input": [{"role": {"secret": 1}}], "n": 6, "stop": {"secret": 1}})
    told = explain(caught.value)
    assert [problem.partition(":")[0] for problem in told.split("; ")] == ["input[0].role", "stop", "n"]
    assert "secret" not in told


def test_a_body_that_is_no_object_is_explained() -> None:
    """Without a field there is only the problem."""
    with pytest.raises(ValidationError) as caught:
        AgentRequest.model_validate([])
    assert explain(caught.value).startswith("Input should be")


def test_schema_documents_the_fields() -> None:
    """The JSON schema carries the fields' descriptions, for openapi.json."""
    schema = AgentRequest.model_json_schema()
    assert "1 to 5" in schema["properties"]["n"]["description"]
