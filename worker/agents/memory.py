"""What a model gets to see of earlier turns, and of this turn's input.

A session's memory has one JSON element per ended turn. A turn that its worker finished holds the
model's own messages; one that was ended from outside holds its input, its last checkpoint, and what
the client had read by then. Both become messages that a provider accepts.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
    repair_messages,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import UserContent


def remember(messages: Sequence[ModelMessage]) -> bytes:
    """The memory element of a turn that ended well."""
    return orjson.dumps({"messages": orjson.Fragment(dump(messages))})


def dump(messages: Sequence[ModelMessage]) -> bytes:
    """Messages as JSON."""
    return ModelMessagesTypeAdapter.dump_json(list(messages))


def load(messages: bytes) -> list[ModelMessage]:
    """Messages from JSON."""
    return ModelMessagesTypeAdapter.validate_json(messages)


def recall(memory: Sequence[bytes]) -> list[ModelMessage]:
    """All earlier turns as one history; tool calls that were cut off get a synthetic result."""
    history: list[ModelMessage] = []
    for element in memory:
        turn = orjson.loads(element)
        if turn.get("messages"):
            history += load(orjson.dumps(turn["messages"]))
        else:
            before, prompt = read_input(turn.get("input", []))
            history += [*before, ModelRequest(parts=[UserPromptPart(content=prompt)])]
        if turn.get("said"):
            history.append(ModelResponse(parts=[TextPart(content=turn["said"])]))
        elif turn.get("status") and isinstance(history[-1], ModelRequest):
            # Two requests in a row are refused by some providers.
            history.append(ModelResponse(parts=[TextPart(content="(The turn was ended before an answer.)")]))
    return repair_messages(history) if history else history


def read_input(messages: Sequence[dict[str, Any]]) -> tuple[list[ModelMessage], str | list[UserContent]]:
    """The turn's input as history and prompt: the last user message is the prompt, what is before it history."""
    history: list[ModelMessage] = []
    last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    prompt: str | list[UserContent] = ""
    for at, message in enumerate(messages):
        content = _content(message)
        if at == last:
            prompt = content
        elif message.get("role") == "assistant":
            history.append(ModelResponse(parts=[TextPart(content=_text(content))]))
        elif message.get("role") == "system":
            history.append(ModelRequest(parts=[SystemPromptPart(content=_text(content))]))
        elif message.get("role") == "user":
            history.append(ModelRequest(parts=[UserPromptPart(content=content)]))
    return history, prompt


def _content(message: dict[str, Any]) -> str | list[UserContent]:
    parts: list[UserContent] = []
    for part in message.get("content") or []:
        match part.get("type"):
            case "text":
                parts.append(part.get("text") or "")
            case "image":
                parts.append(_image(part.get("image_url") or ""))
            case "data":
                parts.append(orjson.dumps(part.get("data")).decode())
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    return parts


def _text(content: str | list[UserContent]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part for part in content if isinstance(part, str))


def _image(url: str) -> UserContent:
    """A link is passed on, never fetched here; a ``data:`` URL is what it holds."""
    if url.startswith("data:"):
        head, _, data = url[5:].partition(",")
        try:
            return BinaryContent(
                data=base64.b64decode(data, validate=True), media_type=head.partition(";")[0] or "image/png"
            )
        except binascii.Error:
            return "(an image that could not be read)"
    return ImageUrl(url=url)


def plain_text(prompt: str | Sequence[UserContent]) -> str:
    """The words of a prompt."""
    return prompt if isinstance(prompt, str) else " ".join(part for part in prompt if isinstance(part, str))


def exchange(prompt: str | Sequence[UserContent], answer: str) -> list[ModelMessage]:
    """A question and its answer, without how the answer came about."""
    content = prompt if isinstance(prompt, str) else list(prompt)
    return [
        ModelRequest(parts=[UserPromptPart(content=content)]),
        ModelResponse(parts=[TextPart(content=answer)]),
    ]
