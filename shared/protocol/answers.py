"""What a client says of tool calls in its input: answers to calls of ours, and calls that it only tells of.

The canonical form, which every wire protocol's own is made into: a `Message` of type ``function_call_output`` (role
``tool``) or ``mcp_approval_response`` (role ``user``) answers; with a ``…_call`` beside it, it tells what was said elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnstream.shared.errors import InvalidBody, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol.content import DataContent
from turnstream.shared.protocol.enums import MessageType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnstream.shared.protocol.message import Message

ANSWERS = (MessageType.FUNCTION_CALL_OUTPUT, MessageType.MCP_APPROVAL_RESPONSE)

# Calls that a client may tell of, and their results.
CALLS = (MessageType.FUNCTION_CALL, MessageType.PLUGIN_CALL, MessageType.MCP_TOOL_CALL)
RESULTS = (
    MessageType.FUNCTION_CALL_OUTPUT,
    MessageType.PLUGIN_CALL_OUTPUT,
    MessageType.MCP_TOOL_CALL_OUTPUT,
)


@dataclass(frozen=True, slots=True)
class CallResult:
    """A client's answer to one of its calls, as ``/callback`` would bring it."""

    call: str
    result: Any


def call_id(data: dict[str, Any]) -> Any:
    """The call that a call's or a result's data is of, in either spelling."""
    return data.get("call_id") or data.get("callId") or data.get("id")


def told_calls(messages: Iterable[Message]) -> set[str]:
    """The calls that the input itself holds."""
    return {
        name
        for message in messages
        if message.type in CALLS
        for part in message.content or []
        if isinstance(part, DataContent) and isinstance(name := call_id(part.data or {}), str)
    }


def told_results(messages: Iterable[Message]) -> set[str]:
    """The calls of which the input holds a client's result; those only that may be calls of ours."""
    return {
        name
        for message in messages
        if message.type in ANSWERS
        for part in message.content or []
        if isinstance(part, DataContent)
        and isinstance(name := _answered(message.type, part.data or {}), str)
        and IDENTIFIER.fullmatch(name)
    }


def answers_in(messages: list[Message]) -> list[CallResult]:
    """The answers to calls that the input ends with; none when it ends with something else.

    Raises:
        InvalidBody: an answer lacks its call or its result; the text names the field.
        UnknownCall: the call's id cannot be one.
    """
    answers: list[CallResult] = []
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].type not in ANSWERS:
            break
        answers[:0] = _answers(messages[index], f"input[{index}]")
    return answers


def _answers(message: Message, place: str) -> list[CallResult]:
    parts = message.content or []
    if not parts:
        raise InvalidBody(f"{place}.content: give one data part for each answer")
    return [_answer(message.type, part, f"{place}.content[{index}]") for index, part in enumerate(parts)]


def _answer(kind: str, part: object, place: str) -> CallResult:
    data = part.data if isinstance(part, DataContent) else None
    if data is None:
        raise InvalidBody(f"{place}: must be a data part")
    call = _answered(kind, data)
    if kind == MessageType.FUNCTION_CALL_OUTPUT:
        if "output" not in data:
            raise InvalidBody(f"{place}.data.output: Field required")
        return CallResult(_call(call, f"{place}.data.call_id"), data["output"])
    if not isinstance(data.get("approve"), bool):
        raise InvalidBody(f"{place}.data.approve: send true or false")
    result = {"approve": data["approve"], "reason": data.get("reason")}
    return CallResult(_call(call, f"{place}.data.approval_request_id"), result)


def _answered(kind: str, data: dict[str, Any]) -> Any:
    if kind == MessageType.FUNCTION_CALL_OUTPUT:
        return data.get("call_id") or data.get("callId")
    return data.get("approval_request_id") or data.get("approvalRequestId") or data.get("id")


def _call(call: object, place: str) -> str:
    if not isinstance(call, str) or not call:
        raise InvalidBody(f"{place}: Field required")
    if not IDENTIFIER.fullmatch(call):
        raise UnknownCall
    return call
