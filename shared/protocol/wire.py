"""Events as bytes: the canonical JSON of the log, and the Java edition of it.

Canonical JSON is compact, snake_case, without nulls. Nulls inside user data (``data``, ``metadata``,
``usage``) are user data and stay. It carries no ``sequence_number``: the log numbers an event when it
appends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from shared.protocol.data import encode
from shared.protocol.enums import MessageType

if TYPE_CHECKING:
    from shared.protocol.event import Event


def canonical(event: Event) -> bytes:
    """The event as the log holds it, without its number.

    Raises:
        PydanticSerializationError: its data holds an object that has no JSON form.
    """
    try:
        return event.model_dump_json(exclude_none=True, exclude={"sequence_number"}).encode()
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


def java(event_json: bytes) -> bytes:
    """A canonical event, numbered or not, as clients of the Java edition read it.

    Its own keys in camelCase, message types in upper case, times in Unix milliseconds. What users and
    tools put into ``data``, ``metadata`` and ``usage`` stays as it is.
    """
    return to_json(_java(from_json(event_json)), inf_nan_mode="null")


def _java(event: dict[str, Any]) -> dict[str, Any]:
    kind = event.get("object")
    said = {_CAMEL.get(key, key): value * 1000 if key in _SECONDS else value for key, value in event.items()}
    if kind == "message":
        name = event.get("type")
        if isinstance(name, str):
            said["type"] = _UPPER.get(name, name.upper())
        if isinstance(event.get("content"), list):
            said["content"] = [_java(part) for part in event["content"]]
    elif kind == "response" and isinstance(event.get("output"), list):
        said["output"] = [_java(message) for message in event["output"]]
    return said
