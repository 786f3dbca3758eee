"""Events as bytes: the canonical JSON of the log, and the Java edition of it.

Canonical JSON is compact, snake_case, without nulls. Nulls inside user data (``data``, ``metadata``,
``usage``) are user data and stay. It carries no ``sequence_number``: the log numbers an event when it
appends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from turnstream.shared.protocol.data import encode
from turnstream.shared.protocol.enums import MessageType

if TYPE_CHECKING:
    from turnstream.shared.protocol.event import Event


_UNNUMBERED = {"sequence_number"}


def canonical(event: Event) -> bytes:
    """The event as the log holds it, without its number.

    Raises:
        PydanticSerializationError: its data holds an object that has no JSON form.
    """
    try:
        return to_json(event, exclude_none=True, exclude=_UNNUMBERED, inf_nan_mode="null")
    except PydanticSerializationError:
        return encode(event.model_dump(exclude_none=True, exclude={"sequence_number"}))


_CAMEL = {
    "sequence_number": "sequenceNumber",
    "msg_id": "msgId",
    "created_at": "createdAt",
    "completed_at": "completedAt",
    "session_id": "sessionId",
    "user_id": "userId",
    "response_id": "responseId",
    "image_url": "imageUrl",
    "video_url": "videoUrl",
    "file_url": "fileUrl",
    "file_id": "fileId",
    "file_data": "fileData",
}
_SECONDS = frozenset({"created_at", "completed_at"})
_UPPER = {member.value: member.name for member in MessageType}


# What the published Java edition has no word for, in its own words (``strict=001``).
_TYPES_001 = {**_UPPER, "reasoning": "MESSAGE", "mcp_call_output": "MCP_TOOL_CALL"}
_STATUSES_001 = {"queued": "created", "incomplete": "canceled"}
_TEXT_001 = {"file": ("file_url", "filename", "file_id"), "video": ("video_url",), "refusal": ("refusal",)}


def java(event_json: bytes, *, strict: bool = False) -> bytes:
    """A canonical event, numbered or not, as clients of the Java edition read it.

    Its own keys in camelCase, message types in upper case, times in Unix milliseconds. What users and
    tools put into ``data``, ``metadata`` and ``usage`` stays as it is. ``strict``: only words of the edition
    that was published; what it has no word for is told in its nearest one.
    """
    return to_json(_java(from_json(event_json), strict), inf_nan_mode="null")


def _java(event: dict[str, Any], strict: bool) -> dict[str, Any]:
    kind = event.get("object")
    if strict:
        event = _in_001(event)
    said = {_CAMEL.get(key, key): value * 1000 if key in _SECONDS else value for key, value in event.items()}
    if kind == "message":
        name = event.get("type")
        if isinstance(name, str):
            said["type"] = (_TYPES_001 if strict else _UPPER).get(name, name.upper())
        if isinstance(event.get("content"), list):
            said["content"] = [_java(part, strict) for part in event["content"]]
    elif kind == "response" and isinstance(event.get("output"), list):
        said["output"] = [_java(message, strict) for message in event["output"]]
    return said


def _in_001(event: dict[str, Any]) -> dict[str, Any]:
    """An event with the statuses, and a part with the content, that the published edition knows."""
    event = {**event, "status": _STATUSES_001.get(str(event.get("status")), event.get("status"))}
    names = _TEXT_001.get(str(event.get("type"))) if event.get("object") == "content" else None
    if names is not None:
        words = next((event[name] for name in names if event.get(name)), event["type"])
        event = {key: value for key, value in event.items() if key not in (*names, "file_data")}
        event |= {"type": "text", "text": words}
    return event
