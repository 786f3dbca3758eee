"""Task states, the user's words, thinking and answers, as a LiteAgent client is told them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from turnstream.api.protocols.liteagent.envelope import (
    Json,
    Said,
    completions_of,
    content_of,
    speaker,
    task_status,
)

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

_ENDS = {"completed": "done", "canceled": "stop"}
_TEXT = {"text": "text", "refusal": "refusal"}
_UNFINISHED = ("in_progress", "incomplete")


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
    """A closed answer: its other parts, then its text in one piece."""
    return _answer(entry, event, extra, text_of(event))


def answer_closed(entry: Entry, event: Json, extra: Json) -> list[Said]:
    """What ends an answer that was streamed: its other parts, then no text, since the chunks held it."""
    return _answer(entry, event, extra, "")


def _answer(entry: Entry, event: Json, extra: Json, text: str) -> list[Said]:
    """The completions stand on the last message: there is one for the text if, and only if, there is text."""
    role = speaker(entry, "assistant")
    items = [_shown(part) for part in content_of(event) if _is_other(part)]
    told = [Said(role, "agent", item["type"], item["message"]) for item in items if item["message"]]
    if text_of(event):
        told.append(Said(role, "agent", "text", text))
    if told:
        told[-1] = told[-1]._replace(completions=completions_of(extra))
    return told


def _is_other(part: Json) -> bool:
    """Whether a part is told in a message of its own: an image as such, the rest as text that names it.

    Half a link, or half of some data, is none.
    """
    return not is_text(part) and part.get("status") not in _UNFINISHED


def is_text(part: Json) -> bool:
    """Whether a part belongs to the answer's text. A refusal does: clients know no other way to show it."""
    return part.get("type") in _TEXT


def words(part: Json) -> str:
    """What a part of the text says."""
    said: str = part.get(_TEXT[part["type"]]) or ""
    return said


def text_of(event: Json) -> str:
    """The text of a message: its text parts and refusals, joined."""
    return "".join(words(part) for part in content_of(event) if is_text(part))


def _shown(part: Json) -> dict[str, str]:
    """A canonical content part as an item of a content list."""
    kind = part.get("type") or ""
    if kind == "image":
        return {"type": "imageUrl", "message": part.get("image_url") or ""}
    if kind in _TEXT:
        return {"type": "text", "message": words(part)}
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
