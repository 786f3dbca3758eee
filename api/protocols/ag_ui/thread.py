"""What was said in a thread before a run: the messages that who connects is told first, and what the run refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.ag_ui.dispatches import Dispatches
from turnstream.api.protocols.ag_ui.run_stream import (
    CALLS,
    RESULTS,
    arguments_of,
    call_of,
    content_of,
    parent_of,
)
from turnstream.api.streaming.segment_encoder import SegmentEncoder
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import PARKED

if TYPE_CHECKING:
    from turnstream.api.streaming.segment_encoder import EncodedMessage
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import Log

Json = dict[str, Any]

# What is kept beside the user's first message of a turn: the ids that its client gave them.
IDS = "agui"

# The messages are one frame, and clients take no more than 10 MB in one. The newest are told.
MOST_BYTES = 4 * 1024 * 1024


class Past:
    """What was told before a run.

    Attributes:
        calls: those of the run's turn that were told.
        dispatches: of the run's turn, those that are not done.
        messages: of the thread.
    """

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.dispatches = Dispatches()
        self.messages: list[Json] = []


async def past_of_turn(log: Log, keys: SessionKeys, task: str, last: int) -> Past:
    """What a turn has told up to the place ``last``.

    Raises:
        BrokerAway: the broker did not answer.
    """
    past = Past()
    reader = _Reader(past, past.dispatches)
    async for entry in log.all_kept(keys):
        if entry.seq > last:
            break
        if entry.task == task:
            reader.feed(0, entry)
    return past


async def past_of_thread(log: Log, keys: SessionKeys, task: str, last: int, *, is_old: bool) -> Past:
    """What all turns have told, of the turn ``task`` only up to the place ``last``; but all that its user has said.

    Raises:
        BrokerAway: the broker did not answer.
    """
    past = Past()
    readers: dict[str, _Reader] = {}
    users: dict[str, list[str]] = {}
    named: set[str] = set()
    async for entry in log.all_kept(keys):
        if not numbered(entry.event) and entry.kind != PARKED:
            _take_user(past.messages, entry, users, named)
        elif entry.task != task or entry.seq <= last:
            reader = readers.get(entry.task)
            if reader is None:
                reader = readers[entry.task] = _Reader(
                    past, past.dispatches if entry.task == task else Dispatches(), is_old=is_old
                )
            reader.feed(0, entry)
    past.messages[:] = _newest(past.messages)
    return past


def _newest(messages: list[Json]) -> list[Json]:
    room = MOST_BYTES
    for at in range(len(messages) - 1, -1, -1):
        room -= len(orjson.dumps(messages[at]))
        if room < 0:
            return messages[at + 1 :]
    return messages


def _take_user(messages: list[Json], entry: Entry, users: dict[str, list[str]], named: set[str]) -> None:
    event = orjson.loads(entry.event)
    if event.get("role") != "user":
        return
    if entry.task not in users:
        users[entry.task] = ids_of(entry)
    ids = users[entry.task]
    name = ids.pop(0) if ids else ""
    if not name or name in named:
        # A client that asks again says the same message again.
        name = event["id"]
    named.add(name)
    messages.append(
        {
            "id": name,
            "role": "user",
            "content": _content([_part(part) for part in event.get("content") or []]),
        }
    )


def ids_of(entry: Entry) -> list[str]:
    """The ids that the client gave to the messages of its user that began a turn."""
    kept = orjson.loads(entry.extra).get(IDS) if entry.extra else None
    return [str(each) for each in kept] if isinstance(kept, list) else []


def _content(parts: list[Json]) -> str | list[Json]:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Json) -> Json:
    """A part of a user's message, as AG-UI says it."""
    kind = part.get("type")
    if kind == "image":
        return {"type": "image", "source": _source(part.get("image_url") or "", "image/*")}
    if kind == "video":
        return {"type": "video", "source": _source(part.get("video_url") or "", "video/*")}
    if kind == "file":
        link = part.get("file_data") or part.get("file_url") or ""
        if link:
            return {"type": "document", "source": _source(link, "application/octet-stream")}
        return {"type": "text", "text": f"({part.get('filename') or 'file'})"}
    if kind == "text":
        return {"type": "text", "text": part.get("text") or ""}
    return {"type": "text", "text": f"({kind})"}


def _source(link: str, media: str) -> Json:
    head, mark, data = link.partition(";base64,")
    if mark and head.startswith("data:"):
        return {"type": "data", "value": data, "mimeType": head.removeprefix("data:") or media}
    return {"type": "url", "value": link}


class _Reader(SegmentEncoder):
    """A turn's closed messages as messages of AG-UI: each as the client makes it of a run's events."""

    def __init__(self, past: Past, dispatches: Dispatches, *, is_old: bool = False) -> None:
        """``dispatches``: those of the turn."""
        super().__init__(0)
        self.quiet()
        self._past = past
        self._is_old = is_old
        self._dispatches = dispatches
        self._calls: dict[str, Json] = {}

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """Read an entry; a turn goes on behind its parks."""
        super().feed(epoch, entry)
        self.over = False
        return b""

    def is_written(self, entry: Entry) -> bool:
        """As `RunStream` has it."""
        return not self._is_old or super().is_written(entry) or entry.kind in RESULTS

    def end_message(self, message: EncodedMessage, status: str) -> None:  # noqa: ARG002 - there is one end
        """An answer, or a thought."""
        text = "".join(part.text for _, part in sorted(message.parts.items()))
        role = "assistant" if message.kind == "message" else "reasoning"
        self._say({"id": message.name, "role": role, "content": text}, message.path)

    def take_data(self, entry: Entry, name: str, data: Json) -> None:
        """A call, its result, or a request for consent."""
        call = call_of(data)
        if entry.kind in CALLS or entry.kind == "mcp_approval_request":
            self._call(entry, call, data)
        elif entry.kind in RESULTS and data.get("name") != "reflection":
            if entry.kind == "component_call_output":
                self._dispatches.end(call)
            if entry.path and self._is_old and call not in self._past.calls:
                return
            answer = {"id": name, "role": "tool", "toolCallId": call, "content": content_of(data)}
            self._say(answer, entry.path)

    def _call(self, entry: Entry, call: str, data: Json) -> None:
        if call in self._past.calls:
            return
        if entry.kind == "component_call":
            self._dispatches.begin(entry, data)
        lost, mark, number = call.rpartition("_")
        if entry.kind == "mcp_approval_request" and mark and number.isdigit() and lost in self._past.calls:
            return
        self._past.calls.add(call)
        parent = parent_of(entry, call)
        function = {"name": str(data.get("name") or ""), "arguments": arguments_of(data)}
        made = {"id": call, "type": "function", "function": function}
        message = self._calls.get(parent)
        if message is None:
            message = self._calls[parent] = {"id": parent, "role": "assistant", "toolCalls": []}
            self._say(message, entry.path)
        message["toolCalls"].append(made)

    def _say(self, message: Json, path: str) -> None:
        if path and not self._is_old:
            message["subagentRunId"] = self._dispatches.at(path, "").name
        self._past.messages.append(message)
