"""What a model gets to see of earlier turns, and of this turn's input.

A session's memory has one JSON element per ended turn. A turn that its worker finished holds the
model's own messages; one that was ended from outside holds its input, its last checkpoint, and what
the client had read by then. Both become messages that a provider accepts.
"""

from __future__ import annotations

import binascii
import mimetypes
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
    repair_messages,
)

from turnstream.shared.protocol.answers import CALLS, RESULTS, call_id
from turnstream.shared.protocol.enums import MessageType
from turnstream.worker.agents.tools.results import FILE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic_ai.messages import ModelRequestPart, UserContent

    from turnstream.shared.agents.config import MemoryLimits

log = structlog.get_logger(__name__)

# Tokens of text are taken as four characters each: every provider counts differently, and none of
# them tells what one turn alone cost. What is no text counts as a flat sum.
CHARACTERS_PER_TOKEN = 4
TOKENS_PER_ATTACHMENT = 1000

# Characters of a failed turn's input that later turns remember.
MOST_OF_A_FAILURE = 4000

# Parts of a turn's input that are no words.
_PROTOCOL_FILES = frozenset({"image", "audio", "video", "file"})

# Letters of base64, a multiple of four.
_DECODED_AT_ONCE = 256 * 1024

# Messages that tell a model nothing: what an agent thought, and what a client was asked or told beside the conversation.
_PASSED_OVER = frozenset(
    {
        MessageType.REASONING,
        MessageType.HEARTBEAT,
        MessageType.MCP_LIST_TOOLS,
        MessageType.MCP_APPROVAL_REQUEST,
        MessageType.MCP_APPROVAL_RESPONSE,
        MessageType.COMPONENT_CALL,
        MessageType.COMPONENT_CALL_OUTPUT,
    }
)

_UNREADABLE = "(an attachment that could not be read)"


def remember(messages: Sequence[ModelMessage]) -> bytes:
    """The memory element of a turn that ended well."""
    return orjson.dumps({"messages": orjson.Fragment(dump(messages))})


def dump(messages: Sequence[ModelMessage]) -> bytes:
    """Messages as JSON."""
    return ModelMessagesTypeAdapter.dump_json(list(messages))


def load(messages: bytes) -> list[ModelMessage]:
    """Messages from JSON."""
    return ModelMessagesTypeAdapter.validate_json(messages)


def within(memory: Sequence[bytes], limits: MemoryLimits) -> Sequence[bytes]:
    """The newest turns that the limits allow; an older one is dropped whole."""
    kept = memory[-limits.turns :] if limits.turns else []
    if limits.tokens is None:
        return kept
    left = limits.tokens
    for place in range(len(kept) - 1, -1, -1):
        left -= _tokens(orjson.loads(kept[place]))
        if left < 0:
            return kept[place + 1 :]
    return kept


def _tokens(turn: dict[str, Any]) -> int:
    """What a turn costs the model, about."""
    characters, attachments = len(turn.get("said") or ""), 0
    if _is_shortened(turn):
        before, prompt = read_input(turn.get("input", []))
        return (characters + len(_in_short(last_prompt(prompt, before)))) // CHARACTERS_PER_TOKEN
    parts = [part for message in turn.get("messages") or () for part in message.get("parts", ())]
    if not parts:
        parts = turn.get("input", [])
    for part in parts:
        content = part.get("content")
        returned = part.get("part_kind") == "tool-return"
        for each in content if isinstance(content, list) else [content]:
            if isinstance(each, dict) and _is_attachment(each, returned=returned):
                attachments += 1
            else:
                said = isinstance(each, dict) and "text" in each and not returned
                characters += _characters(each["text"] if said else each)
        characters += _characters(part.get("args"))
    return characters // CHARACTERS_PER_TOKEN + attachments * TOKENS_PER_ATTACHMENT


def _is_attachment(part: dict[str, Any], *, returned: bool) -> bool:
    """Whether a part, the library's or the protocol's, is a file of some kind.

    In what a tool ``returned`` only the library's own files are: the rest is whatever somebody wrote.
    """
    kind = part.get("kind") or (not returned and part.get("type"))
    return isinstance(kind, str) and (kind in FILE_KINDS or (not returned and kind in _PROTOCOL_FILES))


def _characters(value: Any) -> int:
    if value is None:
        return 0
    return len(value) if isinstance(value, str) else len(orjson.dumps(value))


def recall(memory: Sequence[bytes]) -> list[ModelMessage]:
    """All earlier turns as one history; tool calls that were cut off get a synthetic result."""
    history: list[ModelMessage] = []
    for element in memory:
        turn = orjson.loads(element)
        if turn.get("messages"):
            try:
                history += load(orjson.dumps(turn["messages"]))
            except ValueError:
                # Nested deeper than can be read back, or of a file that the broker lost. Dropped whole, as what is too old is.
                log.warning("memory.unreadable")
        else:
            before, prompt = read_input(turn.get("input", []))
            if _is_shortened(turn):
                before, prompt = [], _in_short(last_prompt(prompt, before))
            history += before
            if prompt or not before:
                history.append(ModelRequest(parts=[UserPromptPart(content=prompt)]))
        if turn.get("said"):
            history.append(ModelResponse(parts=[TextPart(content=turn["said"])]))
        elif turn.get("status") and history and isinstance(history[-1], ModelRequest):
            # Two requests in a row are refused by some providers.
            history.append(ModelResponse(parts=[TextPart(content="(The turn was ended before an answer.)")]))
    return repair_messages(history) if history else history


def _is_shortened(turn: dict[str, Any]) -> bool:
    """Whether only the words of a turn's input are remembered.

    It may have failed, or hung until it was stopped, for what was attached, or for its length: then so
    would every later turn.
    """
    if turn.get("messages"):
        return False
    stopped = turn.get("status") == "canceled" and not (turn.get("said") or turn.get("whole"))
    return turn.get("status") == "failed" or stopped


def _in_short(prompt: str | Sequence[UserContent]) -> str:
    """A prompt's words, not too many of them; what was attached is named, not shown."""
    parts = [prompt] if isinstance(prompt, str) else prompt
    return " ".join(part if isinstance(part, str) else _UNREADABLE for part in parts)[:MOST_OF_A_FAILURE]


def read_input(messages: Sequence[dict[str, Any]]) -> tuple[list[ModelMessage], str | list[UserContent]]:
    """The turn's input as history and prompt.

    The prompt is the user's message that it ends with. Where it ends with something else (results of calls, say), the history
    is all of it, ends with a request, and the prompt is empty.
    """
    history: list[ModelMessage] = []
    names: dict[str, str] = {}
    for message in messages:
        kind, role = message.get("type"), message.get("role")
        if kind in CALLS:
            # One without a name is no call to a provider.
            if calls := [_call(data) for data in _datas(message) if data.get("name")]:
                names.update({call.tool_call_id: call.tool_name for call in calls})
                history.append(ModelResponse(parts=calls))
        elif kind in RESULTS:
            if told := [data for data in _datas(message) if call_id(data) in names]:
                history.append(ModelRequest(parts=[_returned(data, names) for data in told]))
        elif kind in _PASSED_OVER:
            continue
        elif role == "assistant":
            history.append(ModelResponse(parts=[TextPart(content=_text(_content(message)))]))
        elif role == "system":
            history.append(ModelRequest(parts=[SystemPromptPart(content=_text(_content(message)))]))
        elif role == "user":
            history.append(ModelRequest(parts=[UserPromptPart(content=_content(message))]))
    prompt: str | list[UserContent] = ""
    match history:
        case [*_, ModelRequest(parts=[UserPromptPart(content=content)])]:
            history.pop()
            prompt = content if isinstance(content, str) else list(content)
        case [*_, ModelResponse()]:
            # Calls are not run for being told of.
            history.append(ModelRequest(parts=[]))
    # As a provider takes it: each call with one result.
    return repair_messages(history) if names else history, prompt


def _datas(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        data
        for part in message.get("content") or []
        if isinstance(data := part.get("data"), dict) and isinstance(call_id(data), str)
    ]


def _call(data: dict[str, Any]) -> ToolCallPart:
    arguments = data.get("arguments")
    text = arguments if isinstance(arguments, str | dict) else None
    return ToolCallPart(tool_name=str(data["name"]), args=text, tool_call_id=call_id(data))


def _returned(data: dict[str, Any], names: dict[str, str]) -> ToolReturnPart:
    output = data.get("error") if data.get("output") is None else data["output"]
    text = output if isinstance(output, str) else orjson.dumps(output).decode()
    call = call_id(data)
    return ToolReturnPart(tool_name=names[call], content=text, tool_call_id=call)


def last_prompt(
    prompt: str | Sequence[UserContent], history: Sequence[ModelMessage]
) -> str | Sequence[UserContent]:
    """What the user said last: the prompt, unless the history ends with something else."""
    return prompt or next(reversed([*prompts(history)]), "")


def _content(message: dict[str, Any]) -> str | list[UserContent]:
    parts: list[UserContent] = []
    for part in message.get("content") or []:
        match part.get("type"):
            case "text":
                parts.append(part.get("text") or "")
            case "image":
                parts.append(_image(part.get("image_url") or ""))
            case "audio":
                parts.append(_audio(part.get("data") or "", part.get("format") or ""))
            case "file":
                parts.append(_file(part))
            case "video":
                parts.append(_video(part.get("video_url") or ""))
            case "data":
                parts.append(orjson.dumps(part.get("data")).decode())
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    return parts


def _text(content: str | list[UserContent]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part for part in content if isinstance(part, str))


# Links are passed on, never fetched here; a ``data:`` URL, or bare base64, is what it holds.


def _image(url: str) -> UserContent:
    return ImageUrl(url=url) if _is_link(url) else _held(url, "image/png")


def _audio(data: str, encoding: str) -> UserContent:
    media_type = {"mp3": "audio/mpeg", "": "audio/wav"}.get(encoding, f"audio/{encoding}")
    return AudioUrl(url=data, media_type=media_type) if _is_link(data) else _held(data, media_type)


def _video(url: str) -> UserContent:
    return (
        VideoUrl(url=url, media_type=_guessed(url, "video/mp4")) if _is_link(url) else _held(url, "video/mp4")
    )


def _file(part: dict[str, Any]) -> UserContent:
    name = part.get("filename") or ""
    url, data = part.get("file_url") or "", part.get("file_data") or ""
    if _is_link(url):
        return DocumentUrl(url=url, media_type=_guessed(name or url, "application/pdf"))
    if data or url:
        return _held(data or url, _guessed(name, "application/octet-stream"), name)
    if part.get("file_id"):
        return UploadedFile(file_id=part["file_id"], provider_name="openai")
    return _UNREADABLE


def _held(data: str, media_type: str, name: str = "") -> UserContent:
    """What a ``data:`` URL or base64 holds; the URL's own type wins."""
    if data.startswith("data:"):
        head, _, data = data[5:].partition(",")
        media_type = head.partition(";")[0] or media_type
    try:
        content = _decoded(data)
    except (binascii.Error, ValueError):
        return _UNREADABLE
    if not content:
        return _UNREADABLE
    if media_type.startswith("text/") or media_type in _TEXTS:
        try:
            content.decode()
        except UnicodeDecodeError:
            return _UNREADABLE
    return BinaryContent(
        data=content, media_type=media_type, vendor_metadata={"filename": name} if name else None
    )


def _decoded(data: str) -> bytes:
    """What base64 holds, in steps: the thread that decodes an image must not hold the interpreter for all of it.

    Raises:
        binascii.Error, ValueError: it is not base64.
    """
    if data.find("=", 0, -2) >= 0:
        raise binascii.Error("padding before the end")
    steps = range(0, len(data), _DECODED_AT_ONCE)
    return b"".join([binascii.a2b_base64(data[at : at + _DECODED_AT_ONCE], strict_mode=True) for at in steps])


# Media types that models are given as text.
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})


def _is_link(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _guessed(name: str, otherwise: str) -> str:
    return mimetypes.guess_type(name)[0] or otherwise


def reworded(
    history: Sequence[ModelMessage], reword: Callable[[str | Sequence[UserContent]], str | list[UserContent]]
) -> list[ModelMessage]:
    """A history in which something is done to all that a user said, and to the files that tools returned."""
    return [
        replace(message, parts=[_reworded(part, reword) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in history
    ]


def prompts(history: Sequence[ModelMessage]) -> Iterator[str | Sequence[UserContent]]:
    """All that a user said in a history."""
    for message in history:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                yield part.content


def _reworded(part: ModelRequestPart, reword: Callable[[Any], Any]) -> ModelRequestPart:
    match part:
        case UserPromptPart() | ToolReturnPart(content=list()):
            return replace(part, content=reword(part.content))
        case ToolReturnPart(content=FileUrl()):
            return replace(part, content=reword([part.content])[0])
    return part


def plain_text(prompt: str | Sequence[UserContent]) -> str:
    """The words of a prompt."""
    return prompt if isinstance(prompt, str) else " ".join(part for part in prompt if isinstance(part, str))


def exchange(prompt: str | Sequence[UserContent], answer: str) -> list[ModelMessage]:
    """A question, unless it is empty, and its answer, without how the answer came about."""
    content = prompt if isinstance(prompt, str) else list(prompt)
    asked = [ModelRequest(parts=[UserPromptPart(content=content)])] if content else []
    return [*asked, ModelResponse(parts=[TextPart(content=answer)])]
