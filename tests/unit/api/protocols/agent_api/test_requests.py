"""What Agent API clients send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from turnstream.api.protocols.agent_api.requests import CallResult, answers_in, parse_process
from turnstream.shared.agents import config
from turnstream.shared.errors import InvalidBody, UnknownCall

DEMO = config.load(None)[config.DEMO]


def parse(**fields: Any) -> Any:
    """Read a request that is right but for these fields."""
    return parse_process(orjson.dumps({"input": [{"role": "user", "content": "hi"}], **fields}), DEMO).request


def output(**data: Any) -> dict[str, Any]:
    """A message that answers a call."""
    return {"type": "function_call_output", "role": "tool", "content": [{"type": "data", "data": data}]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 6}, "n:"),
        ({"user_id": "x" * 300}, "user_id:"),
        ({"session_id": "a/b"}, "session_id:"),
        ({"input": []}, "input:"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    """A field that cannot be honoured is refused, and the text begins with its name."""
    with pytest.raises(InvalidBody) as refused:
        parse(**fields)
    assert refused.value.public_text.startswith(named)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff"])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """A body that is not a JSON object is a 422, whatever it is."""
    with pytest.raises(InvalidBody):
        parse_process(body, DEMO)


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    """Nulls, empty lists, n = 1 and unknown fields pass."""
    assert parse(n=1, tools=[], model=None, temperature=None, anything={"a": 1}).n == 1


def test_answers_are_what_the_input_ends_with() -> None:
    """Only the answers at the end count: what stands before them is the conversation so far."""
    request = parse(
        input=[
            output(call_id="call_0", output="old"),
            {"role": "user", "content": "hi"},
            output(call_id="call_1", output='{"a":1}'),
            {
                "type": "mcp_approval_response",
                "role": "user",
                "content": [{"type": "data", "data": {"approval_request_id": "call_2", "approve": False}}],
            },
        ]
    )
    assert answers_in(request.input) == [
        CallResult("call_1", '{"a":1}'),
        CallResult("call_2", {"approve": False, "reason": None}),
    ]
    assert answers_in(parse().input) == []


@pytest.mark.parametrize(
    ("data", "named"),
    [({"output": "x"}, "data.call_id"), ({"call_id": "c"}, "data.output"), ({}, "data.output")],
)
def test_an_answer_that_lacks_something_is_refused_by_name(data: dict[str, Any], named: str) -> None:
    """An answer without its call or its result is refused, and the text names the field."""
    with pytest.raises(InvalidBody) as refused:
        answers_in(parse(input=[output(**data)]).input)
    assert f"input[0].content[0].{named}" in refused.value.public_text


def test_an_answer_to_a_call_that_cannot_be_ours() -> None:
    """A call id that we would never make is answered as an unknown one, and never reaches the broker."""
    with pytest.raises(UnknownCall):
        answers_in(parse(input=[output(call_id="a b\n", output="x")]).input)
