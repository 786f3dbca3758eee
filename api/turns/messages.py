"""Messages of an input, made of what the clients of other protocols send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from turnstream.shared.errors import InvalidBody
from turnstream.shared.protocol import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]


def message_of(role: str, parts: list[Json], place: str = "input") -> Message:
    """A message of these parts.

    Raises:
        InvalidBody: a part is wrong; the text names the message.
    """
    try:
        return Message.model_validate({"type": "message", "role": role, "content": parts})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidBody(f"{place}.content: {first['msg']}") from None


def role_of(message: Json, roles: Mapping[str, str], place: str) -> str:
    """What a client's role is called here.

    Raises:
        InvalidBody: it is none of these; the text names the field.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise InvalidBody(f"{place}.role: must be one of {', '.join(roles)}")
    return roles[role]


def words_in(content: Any, place: str) -> str:
    """The text of a content that is one, or a list of parts of text.

    Raises:
        InvalidBody: it is anything else; the text names the place.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidBody(f"{place}: give text, or a list of text parts")
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidBody(f"{place}: only text is known here")
    return "".join(text for text in texts if isinstance(text, str))


def earlier_call(call: Any, name: Any, arguments: Any, place: str) -> Message:
    """A call that only the client remembers.

    Raises:
        InvalidBody: it is none; the text names the field.
    """
    data = {"call_id": call, "name": name, "arguments": arguments}
    if not all(isinstance(each, str) for each in data.values()):
        raise InvalidBody(f"{place}: needs an id, a name and arguments")
    return _tool_message("function_call", "assistant", data)


def earlier_result(call: Any, output: str, place: str) -> Message:
    """A call's result that only the client remembers.

    Raises:
        InvalidBody: it names no call.
    """
    if not isinstance(call, str):
        raise InvalidBody(f"{place}.call_id: Field required")
    return _tool_message("function_call_output", "tool", {"call_id": call, "output": output})


def _tool_message(kind: str, role: str, data: Json) -> Message:
    return Message.model_validate({"type": kind, "role": role, "content": [{"type": "data", "data": data}]})
