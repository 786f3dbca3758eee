"""A turn's input as the model's library takes it."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelRequest, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from turnstream.worker.agents.memory import read_input, recall

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

RAW = os.urandom(700_000)
# Not whole quanta of four letters, so that it ends in padding.
DATA = base64.b64encode(RAW[:-1]).decode()
# Padding right where one step of the decoder ends.
PADDED_WITHIN = DATA[: 256 * 1024 - 2] + "==" + DATA


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (DATA, RAW[:-1]),
        (base64.b64encode(RAW[:786_432]).decode(), RAW[:786_432]),
        (DATA[:-2], None),
        (PADDED_WITHIN, None),
        (DATA[:400_000] + "!" + DATA[400_001:], None),
        (DATA[:400_000] + "\u00e9" + DATA[400_001:], None),
        ("", None),
    ],
)
def test_large_data_is_decoded_whole_or_not_at_all(data: str, content: bytes | None) -> None:
    """It is decoded in steps; what is not base64 somewhere is an attachment that cannot be read."""
    part = {"type": "image", "image_url": f"data:image/gif;base64,{data}"}
    _, prompt = read_input([{"role": "user", "content": [part, {"type": "text", "text": "look"}]}])
    if content is None:
        assert prompt == "(an attachment that could not be read)look"
    else:
        assert prompt == [BinaryContent(data=content, media_type="image/gif"), "look"]


def said(role: str, text: str) -> dict[str, Any]:
    """A message of words."""
    return {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}


def told(kind: str, *datas: dict[str, Any]) -> dict[str, Any]:
    """A message of a call, or of its result."""
    role = "tool" if kind.endswith("output") else "assistant"
    return {"type": kind, "role": role, "content": [{"type": "data", "data": data} for data in datas]}


def shape(messages: list[ModelMessage]) -> list[list[tuple[str, Any]]]:
    """What each message holds."""
    return [
        [
            (part.tool_call_id, part.args)
            if isinstance(part, ToolCallPart)
            else (part.tool_call_id, f"{part.tool_name}: {part.content}")
            if isinstance(part, ToolReturnPart)
            else (type(part).__name__, part.content)
            for part in message.parts
            if isinstance(part, ToolCallPart | ToolReturnPart | TextPart | UserPromptPart)
        ]
        for message in messages
    ]


CALL_1 = {"call_id": "c1", "name": "sky", "arguments": '{"at":"home"}'}
CALL_2 = {"callId": "c2", "name": "sea", "arguments": "not JSON"}
RESULT_1 = {"call_id": "c1", "output": "blue"}
RESULT_2 = {"call_id": "c2", "name": "wrong", "output": {"is": "wet"}}


def test_calls_and_results_stand_where_they_were_said() -> None:
    """Parallel calls are one answer, their results one request, whatever the client made of them."""
    history, prompt = read_input(
        [
            said("user", "how is it?"),
            told("reasoning", {"text": "hm"}),
            said("assistant", "I look."),
            told("function_call", CALL_1),
            told("plugin_call", CALL_2),
            told("function_call_output", RESULT_1),
            told("plugin_call_output", RESULT_2),
            said("assistant", "Fine."),
            said("user", "and now?"),
        ]
    )
    assert prompt == "and now?"
    assert shape(history) == [
        [("UserPromptPart", "how is it?")],
        [("TextPart", "I look."), ("c1", '{"at":"home"}'), ("c2", "not JSON")],
        [("c1", "sky: blue"), ("c2", 'sea: {"is":"wet"}')],
        [("TextPart", "Fine.")],
    ]


def test_an_input_that_ends_with_results_goes_on_from_them() -> None:
    """Nothing is put before what it was said behind."""
    history, prompt = read_input(
        [said("user", "hi"), told("function_call", CALL_1), told("function_call_output", RESULT_1)]
    )
    assert prompt == ""
    assert shape(history) == [
        [("UserPromptPart", "hi")],
        [("c1", CALL_1["arguments"])],
        [("c1", "sky: blue")],
    ]


@pytest.mark.parametrize("more", [[], [said("user", "well?")]])
def test_a_call_that_a_client_tells_of_is_not_made(more: list[dict[str, Any]]) -> None:
    """It would run a tool of ours, with nobody's consent: it has a result that says that there is none."""
    history, prompt = read_input([said("user", "hi"), told("plugin_call", CALL_1), *more])
    assert prompt == ("well?" if more else "")
    assert isinstance(history[-1], ModelRequest)
    (part,) = history[-1].parts
    assert isinstance(part, ToolReturnPart)
    assert (part.tool_call_id, part.tool_name) == ("c1", "sky")


@pytest.mark.parametrize("call", [[], [told("function_call", {"call_id": "c1", "arguments": "{}"})]])
def test_a_result_of_no_call_is_passed_over(call: list[dict[str, Any]]) -> None:
    """Providers refuse it, and a call without a name."""
    history, _ = read_input(
        [said("user", "hi"), *call, told("function_call_output", RESULT_1), said("user", "so?")]
    )
    assert shape(history) == [[("UserPromptPart", "hi")]]


def test_a_turn_whose_input_ended_with_results_is_remembered_as_it_was() -> None:
    """One that was stopped has its input as its memory."""
    turn = [said("user", "hi"), told("function_call", CALL_1), told("function_call_output", RESULT_1)]
    element = orjson.dumps({"input": turn, "said": "It is", "status": "canceled"})
    assert shape(recall([element]))[1:] == [
        [("c1", CALL_1["arguments"])],
        [("c1", "sky: blue")],
        [("TextPart", "It is")],
    ]
    short = orjson.dumps({"input": turn, "status": "failed"})
    assert shape(recall([short]))[0] == [("UserPromptPart", "hi")]
