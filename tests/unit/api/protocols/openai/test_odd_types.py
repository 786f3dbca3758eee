"""Requests with values of any type in any field: taken or refused, and repeated as OpenAI's types have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from openai.types.responses import Response

from turnstream.api.access.auth import Caller
from turnstream.api.protocols.openai.chat_requests import ChatBody, parse_chat
from turnstream.api.protocols.openai.resource import resource
from turnstream.api.protocols.openai.response_requests import CreateResponse, parse_response
from turnstream.shared.agents import config
from turnstream.shared.errors import TurnstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD: list[Any] = [
    None, True, 0, -1.5, 2**63, "", "x", "\0", [], ["x"], [None], [{}], {}, {"type": []}, {"type": 5}, {"id": 5}, {"format": "x"},
    {"effort": 5}, {"a": {"b": [1]}}, [{"type": "function"}], [{"type": "function", "function": {"name": "f"}}],
    [{"type": "mcp", "server_label": "demo", "server_url": 5}], [{"type": "text", "text": 5}],
    [{"type": "input_image", "image_url": 5}], [{"type": "input_file", "file_id": ["x"]}],
]  # fmt: skip

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "x", "output": "y"},
    {"type": "mcp_approval_response", "approval_request_id": "call_a~b~c", "approve": True},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": "x", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "x", "content": "y"},
]


def caller() -> Caller:
    """One with a key for the demo."""
    (demo,) = [spec for spec in config.load(None) if spec.name == "demo"]
    return Caller("dev", demo)


def changed(whole: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each of these, with each value in each of its fields."""
    names = {name for each in whole for name in each} | {"type", "id"}
    for each in whole:
        for name in sorted(names):
            for value in ODD:
                yield {**each, name: value}


def test_responses() -> None:
    """What is taken is repeated in the types of the client."""
    bodies = [{"input": "x", name: value} for name in CreateResponse.model_fields for value in ODD]
    for item in changed(ITEMS):
        more = {"role": "user", "content": "x"}
        bodies += [{"input": [item]}, {"input": [more, item], "conversation": "conv_a"}]
    taken = 0
    for body in bodies:
        try:
            asked = parse_response(orjson.dumps(body), caller())
        except TurnstreamError:
            continue
        taken += 1
        told = resource(asked.echo, name="resp_a~b~0", created_at=1, status="queued", output=[])
        # Words of a later release are repeated as they are.
        if body.get("reasoning") is None and body.get("text") is None:
            Response.model_validate(orjson.loads(orjson.dumps(told)), strict=True)
    assert 0 < taken < len(bodies)


def test_chat_completions() -> None:
    """Nothing is raised that is no refusal."""
    said = {"role": "user", "content": "x"}
    bodies = [{"messages": [said], name: value} for name in ChatBody.model_fields for value in ODD]
    bodies += [{"messages": [message]} for message in changed(MESSAGES)]
    bodies += [{"messages": [said, message, said]} for message in changed(MESSAGES)]
    taken = 0
    for body in bodies:
        try:
            parse_chat(orjson.dumps(body), caller())
        except TurnstreamError:
            continue
        taken += 1
    assert 0 < taken < len(bodies)
