"""Parts of messages: A2A's as ours, and ours as A2A's."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from turnstream.api.protocols.a2a.errors import UnknownMediaType
from turnstream.shared.errors import InvalidBody

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?;base64,(.*)", re.DOTALL)
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_CONTENTS = ("text", "raw", "url", "data")


def read_part(part: Any, place: str) -> Json:
    """A part of A2A's as one of ours.

    Raises:
        InvalidBody: it is none; the text names the field.
        UnknownMediaType: it is video.
    """
    if not isinstance(part, dict):
        raise InvalidBody(f"{place}: Input should be an object")
    given = [name for name in _CONTENTS if name in part and (part[name] is not None or name == "data")]
    if len(given) != 1:
        raise InvalidBody(f"{place}: give one of {', '.join(_CONTENTS)}")
    media_type = part.get("mediaType", part.get("media_type")) or ""
    if not isinstance(media_type, str):
        raise InvalidBody(f"{place}.mediaType: Input should be a valid string")
    (kind,) = given
    value = part[kind]
    if kind == "data":
        return {"type": "data", "data": value if isinstance(value, dict) else {"value": value}}
    if not isinstance(value, str):
        raise InvalidBody(f"{place}.{kind}: Input should be a valid string")
    if kind == "text":
        return {"type": "text", "text": value}
    if kind == "raw":
        value = _base64(value, f"{place}.raw")
    return _file(part, value, media_type, is_link=kind == "url")


def _file(part: Json, value: str, media_type: str, *, is_link: bool) -> Json:
    main = media_type.partition("/")[0].lower()
    if main == "video":
        raise UnknownMediaType
    if main == "image":
        return {"type": "image", "image_url": value if is_link else f"data:{media_type};base64,{value}"}
    if main == "audio":
        return {"type": "audio", "data": value, "format": media_type.partition("/")[2]}
    if not is_link and _MEDIA_TYPE.fullmatch(kind := media_type.partition(";")[0].strip()):
        # So that the agent is told it, and whoever gets the task.
        value = f"data:{kind};base64,{value}"
    name = part.get("filename")
    named = {"filename": name} if isinstance(name, str) and name else {}
    return {"type": "file", ("file_url" if is_link else "file_data"): value, **named}


def _base64(text: str, place: str) -> str:
    text = text.replace("-", "+").replace("_", "/")
    text += "=" * (-len(text) % 4)
    if not _is_base64(text):
        raise InvalidBody(f"{place}: must be base64")
    return text


def _is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def part_of(part: Mapping[str, Any]) -> Json | None:
    """A part of ours as one of A2A's; None: it says nothing."""
    match part.get("type"):
        case "text":
            return {"text": part.get("text") or ""}
        case "refusal":
            return {"text": part.get("refusal") or ""}
        case "data" if part.get("data") is not None:
            return {"data": part["data"], "mediaType": "application/json"}
        case "image":
            return _content(part.get("image_url"), "image/*")
        case "video":
            return _content(part.get("video_url"), "video/*")
        case "audio":
            return _content(part.get("data"), f"audio/{part.get('format') or '*'}")
        case "file":
            made = _content(part.get("file_url") or part.get("file_data"), "application/octet-stream")
            if made and part.get("filename"):
                made["filename"] = part["filename"]
            return made
    return None


def _content(value: Any, media_type: str) -> Json | None:
    """A link, or the data themselves."""
    if not isinstance(value, str) or not value:
        return None
    if value.startswith(("https://", "http://")):
        return {"url": value} if media_type.endswith("*") else {"url": value, "mediaType": media_type}
    inline = _DATA_URL.fullmatch(value)
    if inline:
        return {"raw": inline[2], "mediaType": inline[1] or media_type}
    return {"raw": value, "mediaType": media_type} if _is_base64(value) else None
