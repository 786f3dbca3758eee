"""The input of a request: text or items, as the messages of a turn, or as answers to calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turnstream.api.turns.answers import Answer, answer_to
from turnstream.api.turns.ids import MARK
from turnstream.api.turns.messages import earlier_call, earlier_result, message_of, role_of
from turnstream.shared.errors import InvalidBody

if TYPE_CHECKING:
    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.protocol import Message

Json = dict[str, Any]

MOST_ITEMS = 2000
MOST_PARTS = 4000

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_ANSWERS = ("function_call_output", "mcp_approval_response")

# Items of responses that the session has, or that are not given to a model.
_PASSED = frozenset(
    {
        "reasoning",
        "item_reference",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "function_call",
        *_ANSWERS,
    }
)


@dataclass(frozen=True, slots=True)
class Input:
    """Messages, and the answers that the input ends with, if any."""

    messages: list[Message]
    answers: list[Answer]

    def instructed(self, text: str) -> Input:
        """With a system message before all else."""
        return replace(
            self, messages=[message_of("system", [{"type": "text", "text": text}]), *self.messages]
        )


def read_items(given: str | list[Any] | None, spec: AgentSpec, *, known: bool) -> Input:
    """Read an input; with ``known``, the session has the items of its responses.

    Raises:
        InvalidBody: an item is wrong; the text names the field.
        UnknownCall: an answer is to no call of ours.
    """
    if isinstance(given, str):
        return Input([message_of("user", [{"type": "text", "text": given}])], [])
    items = given or []
    if len(items) > MOST_ITEMS:
        raise InvalidBody(f"input: at most {MOST_ITEMS} items")
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            raise InvalidBody(f"input[{place}]: Input should be an object")
    # Results of calls that the input holds itself, by ids that are not ours, are of another server's conversation.
    calls = () if known else (item.get("call_id") for item in items if item.get("type") == "function_call")
    told = {call for call in calls if isinstance(call, str)}
    end = len(items)
    while end and items[end - 1].get("type") in _ANSWERS and not _is_told(items[end - 1], told):
        end -= 1
    if known:
        _check_alone(items)
    answers = [_answer(items[place], f"input[{place}]") for place in range(end, len(items))]
    return Input(_messages(items[:end], spec, known=known), answers)


def _check_alone(items: list[Json]) -> None:
    """See to it that what goes to a session that knows the rest is either answers or messages: the ones would hide the others."""
    if not any(item.get("type") in _ANSWERS for item in items):
        return
    for place, item in enumerate(items):
        if (item.get("type") or "message") == "message":
            raise InvalidBody(
                f"input[{place}]: a message cannot come with answers to calls; send it when the response to them has ended"
            )


def _is_told(item: Json, told: set[Any]) -> bool:
    call = item.get("call_id")
    return isinstance(call, str) and call in told and MARK not in call


def _messages(items: list[Json], spec: AgentSpec, *, known: bool) -> list[Message]:
    messages, parts = [], 0
    for place, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "message":
            message = _read_message(item, f"input[{place}]", spec)
            parts += len(message.content or [])
            if parts > MOST_PARTS:
                raise InvalidBody(f"input: at most {MOST_PARTS} content parts")
            messages.append(message)
        elif not isinstance(kind, str) or kind not in _PASSED:
            raise InvalidBody(f"input[{place}].type: an item of this type is not known here")
        elif not known and kind in ("function_call", "function_call_output"):
            messages.append(_earlier(item, f"input[{place}]"))
    return messages


def _read_message(item: Json, place: str, spec: AgentSpec) -> Message:
    role = role_of(item, _ROLES, place)
    content = item.get("content")
    if isinstance(content, str):
        return message_of(role, [{"type": "text", "text": content}])
    if not isinstance(content, list):
        raise InvalidBody(f"{place}.content: give text, or a list of parts")
    return message_of(
        role, [read_part(part, f"{place}.content[{at}]", spec) for at, part in enumerate(content)], place
    )


def read_part(part: Any, place: str, spec: AgentSpec) -> Json:
    """A content part of OpenAI's, of responses or of chat completions, as one of ours.

    Raises:
        InvalidBody: it is none that is known; the text names the field.
    """
    if not isinstance(part, dict):
        raise InvalidBody(f"{place}: Input should be an object")
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            made: Json = {"type": "text", "text": _required(part, "text", place)}
        case "refusal":
            made = {"type": "refusal", "refusal": _required(part, "refusal", place)}
        case "input_image" | "image_url":
            url = part.get("image_url")
            url = url.get("url") if isinstance(url, dict) else url
            made = {"type": "image", "image_url": url} if url else _file(part, place, spec)
        case "input_file" | "file":
            file = part.get("file")
            made = _file(file if isinstance(file, dict) else part, place, spec)
        case "input_audio":
            audio = part.get("input_audio")
            audio = audio if isinstance(audio, dict) else part
            made = {"type": "audio", "data": _required(audio, "data", place), "format": audio.get("format")}
        case _:
            raise InvalidBody(f"{place}.type: a part of this type is not known here")
    return made


def _required(part: Json, name: str, place: str) -> str:
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidBody(f"{place}.{name}: send text")
    return text


def _file(part: Json, place: str, spec: AgentSpec) -> Json:
    if part.get("file_id") and not spec.file_ids:
        raise InvalidBody(f"{place}.file_id: this agent takes no files by id; send the file, or a link to it")
    names = ("file_id", "file_url", "filename", "file_data")
    given = {name: part[name] for name in names if part.get(name)}
    if given.keys() <= {"filename"}:
        raise InvalidBody(f"{place}: needs a link, or the data")
    return {"type": "file", **given}


def _earlier(item: Json, place: str) -> Message:
    """A call of an earlier turn, or its result, that only the client remembers."""
    if item["type"] == "function_call":
        return earlier_call(item.get("call_id"), item.get("name"), item.get("arguments"), place)
    return earlier_result(item.get("call_id"), _output(item, place), place)


def _answer(item: Json, place: str) -> Answer:
    if item["type"] == "mcp_approval_response":
        name = f"{place}.approval_request_id"
        if not isinstance(item.get("approve"), bool):
            raise InvalidBody(f"{place}.approve: send true or false")
        reason = item.get("reason")
        if not (reason is None or isinstance(reason, str)):
            raise InvalidBody(f"{place}.reason: send text, or nothing")
        result: Any = {"approve": item["approve"], "reason": reason}
        return answer_to(item.get("approval_request_id"), result, name, consents=True)
    return answer_to(item.get("call_id"), _output(item, place), f"{place}.call_id", consents=False)


def _output(item: Json, place: str) -> str:
    output = item.get("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise InvalidBody(f"{place}.output: give text, or a list of parts")
    texts = [part.get("text") for part in output if isinstance(part, dict)]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidBody(f"{place}.output: only text is known here")
    return "".join(text for text in texts if isinstance(text, str))
