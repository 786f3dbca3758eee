"""Calls and their results in an input."""

from __future__ import annotations

from typing import Any

import pytest

from turnstream.shared.errors import InvalidBody, UnknownCall
from turnstream.shared.protocol import Message
from turnstream.shared.protocol.answers import CallResult, answers_in, told_calls, told_results


def output(**data: Any) -> Message:
    """A message that answers a call."""
    return message("function_call_output", **data)


def message(kind: str, **data: Any) -> Message:
    """A message with one data part."""
    return Message.model_validate({"type": kind, "content": [{"type": "data", "data": data}]})


def test_answers_are_what_the_input_ends_with() -> None:
    """Only the answers at the end count: what stands before them is the conversation so far."""
    said = Message.model_validate({"role": "user", "content": [{"type": "text", "text": "hi"}]})
    whole = [
        output(call_id="call_0", output="old"),
        said,
        output(call_id="call_1", output='{"a":1}'),
        message("mcp_approval_response", approval_request_id="call_2", approve=False),
    ]
    assert answers_in(whole) == [
        CallResult("call_1", '{"a":1}'),
        CallResult("call_2", {"approve": False, "reason": None}),
    ]
    assert answers_in([said]) == []
    assert told_results(whole) == {"call_0", "call_1", "call_2"}


@pytest.mark.parametrize(
    ("data", "named"),
    [({"output": "x"}, "data.call_id"), ({"call_id": "c"}, "data.output"), ({}, "data.output")],
)
def test_an_answer_that_lacks_something_is_refused_by_name(data: dict[str, Any], named: str) -> None:
    """An answer without its call or its result is refused, and the text names the field."""
    with pytest.raises(InvalidBody) as refused:
        answers_in([output(**data)])
    assert f"input[0].content[0].{named}" in refused.value.public_text


def test_an_answer_to_a_call_that_cannot_be_ours() -> None:
    """A call id that we would never make is answered as an unknown one, and never reaches the broker."""
    with pytest.raises(UnknownCall):
        answers_in([output(call_id="a b\n", output="x")])
    assert told_results([output(call_id="a b\n", output="x"), output(call_id=7, output="x")]) == set()


def test_calls_are_told_in_either_spelling() -> None:
    """Of any kind that has an id; what an output is of is no call that was told."""
    told = [
        message("function_call", callId="c1"),
        message("mcp_call", id="c2"),
        message("plugin_call", call_id=3),
        output(call_id="c4", output="x"),
    ]
    assert told_calls(told) == {"c1", "c2"}
