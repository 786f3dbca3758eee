"""Parts of the log's messages in OpenAI's words: text, and what an answer cost."""

from __future__ import annotations

from typing import Any

import orjson

_LINKS = {"image": "image_url", "video": "video_url", "file": "file_url", "audio": "data"}


def words_of(part: dict[str, Any]) -> str:
    """What an answer's text has of a part: its words, data as JSON, else a link."""
    kind = part.get("type")
    if kind == "text":
        return part.get("text") or ""
    if kind == "refusal":
        return part.get("refusal") or ""
    if kind == "data":
        return orjson.dumps(part["data"]).decode() if part.get("data") is not None else ""
    link = part.get(_LINKS.get(str(kind), ""))
    if not isinstance(link, str) or not link.startswith(("https://", "http://")):
        return ""
    return f"{'!' if kind == 'image' else ''}[{part.get('filename') or kind}]({link})"


def cost_of(usage: dict[str, int] | None, spent: dict[str, int]) -> dict[str, int]:
    """What a part of a turn has cost: what the turn has, less what it had when the part began."""
    return {name: tokens - spent.get(name, 0) for name, tokens in (usage or {}).items()}
