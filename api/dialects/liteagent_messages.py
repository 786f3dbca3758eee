"""Task states, the user's words, thinking and answers, as a LiteAgent client is told them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from api.dialects.liteagent_said import Json, Said, completions_of, content_of, speaker, task_status

if TYPE_CHECKING:
    from shared.entry import Entry

_ENDS = {"completed": "done", "canceled": "stop"}
_TEXT = {"text": "text", "refusal": "refusal"}


def started(entry: Entry, event: Json) -> list[Said]:
    """The task is accepted: a queued response is its ``start``; what follows says nothing new."""
    return [task_status(entry, "start", {})] if event.get("status") == "queued" else []


def ended(entry: Entry, event: Json) -> list[Said]:
    """The task is over; whatever is neither completed nor canceled went wrong."""
    status = event.get("status") or "failed"
    if status in _ENDS:
        return [task_status(entry, _ENDS[status], {})]
    error = event.get("error") or {}
    description = {"code": error.get("code") or status, "error": error.get("message") or ""}
    return [task_status(entry, "exception", description)]


def echoed(event: Json, extra: Json) -> list[Said]:
    """The user's message: as a LiteAgent client sent it, else made from its canonical parts."""
    if event.get("role") != "user":
        return []
    parts = extra.get("parts") or [_shown(part) for part in content_of(event)]
    return [Said("user", "agent", "contentList", parts)]


def thought(entry: Entry, event: Json, extra: Json) -> list[Said]:
    """A reasoning message, once it is closed."""
    text = text_of(event)
    if not text:
        return []
    return [Said(speaker(entry, "assistant"), "agent", "reasoningContent", text, completions_of(extra))]


def answered(entry: Entry, event: Json, extra: Json) -> list[Said]:
    """The text of a closed answer in one piece; an answer without text has said all by its parts."""
    text = text_of(event)
    if not text:
        return []
    return [Said(speaker(entry, "assistant"), "agent", "text", text, completions_of(extra))]


def answer_closed(entry: Entry, event: Json, extra: Json) -> list[Said]:
    """What ends an answer that was streamed: no text, since the chunks held it, but its completions.

    An answer of images alone had no chunks, and so needs no end.
    """
    completions = completions_of(extra)
    if completions is None and not text_of(event):
        return []
    return [Said(speaker(entry, "assistant"), "agent", "text", "", completions)]


def shown(entry: Entry, part: Json) -> list[Said]:
    """A part of an answer that is no text: an image as such, the rest as text that names it."""
    item = _shown(part)
    if is_text(part) or not item["message"]:
        return []
    return [Said(speaker(entry, "assistant"), "agent", item["type"], item["message"])]


def is_text(part: Json) -> bool:
    """Whether a part belongs to the answer's text. A refusal does: clients know no other way to show it."""
    return part.get("type") in _TEXT


def text_of(event: Json) -> str:
    """The text of a message: its text parts and refusals, joined."""
    return "".join(_shown(part)["message"] for part in content_of(event) if is_text(part))


def _shown(part: Json) -> dict[str, str]:
    """A canonical content part as an item of a content list."""
    kind = part.get("type") or ""
    if kind == "image":
        return {"type": "imageUrl", "message": part.get("image_url") or ""}
    if kind in _TEXT:
        return {"type": "text", "message": part.get(_TEXT[kind]) or ""}
    return {"type": "text", "message": _named(kind, part)}


def _named(kind: str, part: Json) -> str:
    """A link to a part that these clients cannot show, else its name; never its bytes."""
    data = part.get("data")
    if kind == "audio":
        # The field holds base64 as well as links; base64 has no colon.
        link = _link(data) if isinstance(data, str) and ":" in data[:16] else ""
        return link or f"audio.{part.get('format') or 'wav'}"
    if kind == "file":
        return _link(part.get("file_url")) or part.get("filename") or part.get("file_id") or "file"
    if kind == "video":
        return _link(part.get("video_url")) or "video"
    return orjson.dumps(data).decode() if data is not None else ""


def _link(url: str | None) -> str:
    """The URL, unless it holds the bytes themselves."""
    return url if url and not url.startswith("data:") else ""
