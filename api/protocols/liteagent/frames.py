"""The LiteAgent wire: frames, envelopes, and the history of a session.

The clients in the field parse SSE by hand, so the framing is exact: ``id:``, ``event:``, ``data:`` in this
order without a space after the colon, LF only, one data line, no comments. The messages are rendered in
`messages` and `tools`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

from turnstream.api.http.answers import ordered
from turnstream.api.protocols.liteagent import messages, tools
from turnstream.api.protocols.liteagent.envelope import Json, Said, content_of, extra_of, speaker
from turnstream.api.protocols.liteagent.schemas import Chunk, Envelope, Remembered
from turnstream.api.streaming.dialect import EVENT_STREAM, NUMBERED, one_line
from turnstream.shared.session.entry import END, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnstream.shared.session.entry import Entry

# The protocol writes times with a numeric zone and its clients expect this one.
_ZONE = timezone(timedelta(hours=8))
_CLOSED = ("completed", "incomplete")

# Said while a task runs, but no part of a conversation that is read later.
_NOT_HISTORY = ("taskStatus", "functionCall")


class LiteAgent:
    """Writes entries to LiteAgent clients.

    1. With ``stream``, an answer's text goes out as ``chunk`` frames, each part closed by an empty one,
       and a ``message`` without text ends it. Without, one ``message`` holds the whole text.
    2. Everything else is the same in both, and told whole when its message closes: so that the history,
       which has closed messages only, can repeat it with the same times.
    """

    name = "liteagent"
    content_type = EVENT_STREAM
    ping = b"event:ping\ndata:{}\n\n"
    cuts = False

    def __init__(self, stream: bool) -> None:
        self.stream = stream

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:
        """The frames of one entry of a live log."""
        event: Json = orjson.loads(entry.event)
        if event.get("object") == "content":
            return self._piece(session, epoch, entry, event) if self.stream else b""
        if self.stream and entry.kind == "message" and entry.event.startswith(NUMBERED):
            return _streamed_close(session, epoch, entry, event)
        return _framed(epoch, entry, _messages(session, entry, _told(entry, event)))

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """A closed message with its whole text and all of its parts, in both forms, or a task's end."""
        return _framed(epoch, entry, _messages(session, entry, _told(entry, orjson.loads(entry.event))))

    def _piece(self, session: str, epoch: int, entry: Entry, part: Json) -> bytes:
        """One content event of an answer's text. Other parts, and other messages, are told when they close."""
        # Without text there is nothing to close, and an empty piece would look like the end of the part.
        if entry.kind != "message" or not messages.is_text(part) or not messages.words(part):
            return b""
        if part.get("delta"):
            if part.get("type") != "text":
                return b""
            return b"id:%d-%d\nevent:chunk\ndata:%b\n\n" % (
                epoch,
                entry.seq,
                _chunk(session, entry, part["text"]),
            )
        if part.get("status") != "completed":
            return b""
        return _framed(epoch, entry, _closing_chunks(session, entry, part))


LITEAGENT_STREAM = LiteAgent(stream=True)
LITEAGENT_WHOLE = LiteAgent(stream=False)


def history(session: str, entries: Iterable[Entry]) -> bytes:
    """The JSON body of a session's history: a bare array of envelopes.

    Args:
        session: the session's id.
        entries: its completed messages, oldest first; terminal events among them are passed over.
    """
    # Some clients read `message`, others `content`.
    return orjson.dumps(
        [
            _envelope(Remembered, session, entry, said, message=said.content)
            for entry in entries
            for said in _told(entry, orjson.loads(entry.event))
            if said.type not in _NOT_HISTORY
        ]
    )


def _told(entry: Entry, event: Json) -> list[Said]:
    """What an entry tells, text whole; pieces of a message tell nothing."""
    if event.get("object") == "content":
        return []
    if entry.kind == RESPONSE:
        return messages.started(entry, event)
    if entry.kind == END:
        return messages.ended(entry, event)
    if not entry.event.startswith(NUMBERED):
        return messages.echoed(event, extra_of(entry))
    if event.get("status") not in _CLOSED:
        return []
    if entry.kind == "message":
        return messages.answered(entry, event, extra_of(entry))
    if entry.kind == "reasoning":
        return messages.thought(entry, event, extra_of(entry))
    return tools.told(entry, event, extra_of(entry))


def _streamed_close(session: str, epoch: int, entry: Entry, event: Json) -> bytes:
    """The end of an answer that was streamed, with the closing chunk of a part that was cut off."""
    if event.get("status") not in _CLOSED:
        return b""
    frames = _messages(session, entry, messages.answer_closed(entry, event, extra_of(entry)))
    if event["status"] == "incomplete" and (part := _cut_off(event)):
        frames[:0] = _closing_chunks(session, entry, part)
    return _framed(epoch, entry, frames)


def _cut_off(message: Json) -> Json | None:
    """The text part of an incomplete message that was still open, if it had begun to speak."""
    parts = (part for part in content_of(message) if messages.is_text(part) and messages.words(part))
    return next((part for part in parts if part.get("status") != "completed"), None)


def _closing_chunks(session: str, entry: Entry, part: Json) -> list[tuple[bytes, bytes]]:
    """What closes a part of a text. A refusal comes whole: its deltas, if there are any, were not told."""
    pieces = [messages.words(part), ""] if part.get("type") == "refusal" else [""]
    return [(b"chunk", _chunk(session, entry, piece)) for piece in pieces]


def _framed(epoch: int, entry: Entry, frames: list[tuple[bytes, bytes]]) -> bytes:
    """Frames, each of an event name and its data; the last one carries the cursor."""
    if not frames:
        return b""
    texts = [b"event:%b\ndata:%b\n\n" % frame for frame in frames]
    texts[-1] = b"id:%d-%d\n%b" % (epoch, entry.seq, texts[-1])
    return b"".join(texts)


def _messages(session: str, entry: Entry, told: list[Said]) -> list[tuple[bytes, bytes]]:
    return [(said.event, one_line(orjson.dumps(_envelope(Envelope, session, entry, said)))) for said in told]


def _envelope(model: type[Envelope], session: str, entry: Entry, said: Said, **more: object) -> Json:
    """The message as its model writes it."""
    envelope = _origin(session, entry.task, entry.path, entry.extra) | more
    envelope |= {"role": said.role, "to": said.to, "type": said.type, "content": said.content}
    if said.completions is not None:
        envelope["completions"] = said.completions
    envelope["createTime"] = _time(entry.created)
    return ordered(model, envelope)


def _origin(session: str, task: str, path: str, extra: bytes) -> Json:
    """Where a message comes from; a sub-agent's also says which one it is and whose task it serves."""
    if not path:
        return {"sessionId": session, "taskId": task}
    agent = (orjson.loads(extra).get("agent") if extra else None) or {}
    name = agent.get("id") or path.rpartition("/")[2]
    return {"sessionId": session, "taskId": task, "agentId": name, "parentTaskId": task}


def _chunk(session: str, entry: Entry, text: str) -> bytes:
    """A piece of an answer's text. The hot path: one per token, so the constant part is kept."""
    head = _chunk_head(session, entry.task, entry.path, speaker(entry, "assistant"), entry.extra)
    created = _time(entry.created).encode()
    return b'%b%b,"createTime":"%b"}' % (head, one_line(orjson.dumps(text)), created)


# Room for the answers that one front end has under way at a time; an entry is a few hundred bytes.
@lru_cache(maxsize=4096)
def _chunk_head(session: str, task: str, path: str, role: str, extra: bytes) -> bytes:
    head = _origin(session, task, path, extra) | {"role": role, "to": "agent", "type": "text"}
    return one_line(orjson.dumps(ordered(Chunk, head)))[:-1] + b',"part":'


def _time(created: int) -> str:
    """Unix milliseconds as ``yyyy-MM-dd'T'HH:mm:ss.SSS+0800``."""
    second, millisecond = divmod(created, 1000)
    return f"{_second(second)}.{millisecond:03d}+0800"


# Events of the same second come together, so a few are enough; a long replay makes each second once.
@lru_cache(maxsize=256)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, _ZONE).strftime("%Y-%m-%dT%H:%M:%S")
