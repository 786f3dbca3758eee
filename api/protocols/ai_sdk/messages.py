"""A chat as the AI SDK's messages: what a page would hold that had followed all of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.ai_sdk.chunks import LINKS, ChunkStream, media_type
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import PARKED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

# Beside a turn's first message: the ids by which the page knows its messages.
IDS = "ai_sdk"


class AnswerMessage:
    """The message that its chunks make."""

    def __init__(self, name: str) -> None:
        self.message: Json = {"id": name, "role": "assistant", "parts": []}
        self._texts: dict[str, Json] = {}
        self._tools: dict[str, Json] = {}

    def take(self, chunk: Json) -> None:
        """The next chunk."""
        kind, _, what = chunk["type"].partition("-")
        if kind in ("text", "reasoning"):
            self._text(kind, what, chunk)
        elif kind == "tool":
            self._tool(what, chunk)
        elif kind == "data":
            self._data(chunk)
        elif kind == "file":
            self._parts.append(chunk)
        elif chunk["type"] == "start-step":
            self._parts.append({"type": "step-start"})
        elif chunk["type"] == "finish" and "messageMetadata" in chunk:
            self.message["metadata"] = chunk["messageMetadata"]

    @property
    def _parts(self) -> list[Json]:
        parts: list[Json] = self.message["parts"]
        return parts

    def _text(self, kind: str, what: str, chunk: Json) -> None:
        if what == "start":
            part = self._texts[chunk["id"]] = {"type": kind, "text": "", "state": "streaming"}
            self._parts.append(part)
        elif what == "delta":
            self._texts[chunk["id"]]["text"] += chunk["delta"]
        else:
            self._texts[chunk["id"]]["state"] = "done"

    def _tool(self, what: str, chunk: Json) -> None:
        if what == "input-available":
            name = chunk["toolName"]
            made: Json = (
                {"type": "dynamic-tool", "toolName": name} if "dynamic" in chunk else {"type": f"tool-{name}"}
            )
            made |= {"toolCallId": chunk["toolCallId"], "state": what, "input": chunk["input"]}
            if "providerExecuted" in chunk:
                made["providerExecuted"] = True
            self._tools[chunk["toolCallId"]] = made
            self._parts.append(made)
            return
        part = self._tools.get(chunk.get("toolCallId") or chunk.get("approvalId") or "")
        if part is None or what == "input-start":
            return
        match what:
            case "approval-request":
                part |= {"state": "approval-requested", "approval": {"id": chunk["approvalId"]}}
            case "approval-response":
                given = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
                part |= {
                    "state": "approval-responded",
                    "approval": {**part.get("approval", {}), **given},
                }
            case "output-available":
                part |= {"state": what, "output": chunk["output"]}
            case "output-error":
                part |= {"state": what, "errorText": chunk["errorText"]}
            case "output-denied":
                part["state"] = what
        # A part with an outcome has no approval that is not decided.
        if what.startswith("output-") and "approved" not in part.get("approval", {"approved": True}):
            del part["approval"]

    def _data(self, chunk: Json) -> None:
        known = (part for part in self._parts if part["type"] == chunk["type"] and part["id"] == chunk["id"])
        part = next(known, None)
        if part is None:
            self._parts.append(chunk)
        else:
            part["data"] = chunk["data"]


class _Turn:
    """What was said in a turn, and what is answered."""

    def __init__(self, task: str, *, fifth: bool) -> None:
        self.messages: list[Json] = []
        self._answer = AnswerMessage(task)
        # To the end, over all its parks.
        self._stream = ChunkStream(task, fifth=fifth, passes=sys.maxsize, into=self._answer)
        self._ids: list[str] = []

    def take(self, entry: Entry) -> None:
        """The turn's next entry."""
        if numbered(entry.event) or entry.kind == PARKED:
            if numbered(entry.event) and not self._answer.message["parts"]:
                self.messages.append(self._answer.message)
            self._stream.feed(0, entry)
            return
        event = orjson.loads(entry.event)
        # The first one has those of all.
        self._ids = self._ids or page_ids(entry)
        name = self._ids.pop(0) if self._ids else ""
        if entry.kind == "message":
            self.messages.append(_said(name or event["id"], event))


async def all_messages(entries: AsyncIterator[Entry], *, fifth: bool) -> list[Json]:
    """The messages of a session's history; an answer stands behind what it answers."""
    turns: dict[str, _Turn] = {}
    async for entry in entries:
        if entry.task not in turns:
            turns[entry.task] = _Turn(entry.task, fifth=fifth)
        turns[entry.task].take(entry)
    return [message for turn in turns.values() for message in turn.messages]


def page_ids(entry: Entry) -> list[str]:
    """The ids by which a page knows the messages that begin a turn; none of what came through another protocol."""
    if not entry.extra:
        return []
    ids = orjson.loads(entry.extra).get(IDS)
    return ids if isinstance(ids, list) else []


def _said(name: str, event: Json) -> Json:
    """What a user says, or what had been said before the session began."""
    parts = [made for part in event.get("content") or [] if (made := _part(part))]
    return {"id": name, "role": event["role"], "parts": parts}


def _part(part: Json) -> Json | None:
    kind = str(part.get("type"))
    if kind == "text":
        return {"type": "text", "text": part.get("text") or ""}
    link = part.get(LINKS.get(kind, "")) or part.get("file_data")
    if not isinstance(link, str):
        return None
    named = {"filename": part["filename"]} if part.get("filename") else {}
    return {"type": "file", "mediaType": media_type(link, kind), "url": link, **named}
