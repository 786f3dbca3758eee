"""One segment of a turn as one stream: what the encoders of all protocols do alike.

A protocol's own encoder says what is written of a message, of a call, and of the end; see `SegmentEncoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.streaming.dialect import NUMBERED, one_line
from turnstream.shared.protocol import MessageType
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import END, PARKED, RESPONSE

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

# Of a message or a part of it that gets no more pieces.
CLOSED = ("completed", "incomplete")

# Calls that the client answers.
ASKING = ("function_call", "mcp_approval_request")

# Stands for the text of a piece in the frame that `SegmentEncoder.piece` makes; no name or id has it.
TEXT = "\0"

_TEXT = orjson.dumps(TEXT)

_LINKS = {"image": "image_url", "video": "video_url", "file": "file_url", "audio": "data"}


@dataclass(slots=True)
class Part:
    """A part of a message's text.

    Attributes:
        message: the message.
        place: among the parts of the message that were begun, from 0.
        kind: ``text`` or ``refusal``.
        pieces: what was written of it, each as JSON.
        whole: all of it, once it is complete.
        around: what the frame of a piece has before and behind its text, once there was one.
    """

    message: EncodedMessage
    place: int
    kind: str
    pieces: list[bytes] = field(default_factory=list)
    whole: str | None = None
    around: tuple[bytes, bytes] | None = None

    @property
    def written(self) -> str:
        """What was written of it."""
        return "".join(orjson.loads(b"[%b]" % b",".join(self.pieces)))

    @property
    def text(self) -> str:
        """All of it, as far as it has come."""
        return self.written if self.whole is None else self.whole


@dataclass(slots=True)
class EncodedMessage:
    """A message whose text is written as it comes.

    Attributes:
        name: its id in the log.
        kind: ``message`` or ``reasoning``.
        path: the sub-agent that wrote it; empty: the session's agent.
        parts: index in the log → part, of those that were begun.
        place: for its encoder, which may count what it writes.
        over: it is closed.
    """

    name: str
    kind: str
    path: str
    parts: dict[int, Part] = field(default_factory=dict)
    place: int = -1
    over: bool = False


class SegmentEncoder:
    """Encodes one segment of a turn; it is fed from the segment's first entry.

    1. Its usage is what the turn has cost since the park that it begins behind.
    2. The text of a message is written as it comes, and the rest when its part closes: pieces may have been cut from the log.
       A message that is open at the end is closed there, as ``incomplete``. Most entries are one more piece of the part that had
       the last one: these are not parsed, but cut, and joined with what the frames of that part have in common.
    3. It is over where the client is asked, and where the turn ends; nothing is written behind that. What tells more of a turn
       goes on behind as many parks as it ``passes``.

    A protocol's encoder overrides the methods under "what is written", and appends its frames to ``frames``.

    Attributes:
        over: it has ended.
        created: when its first entry was written, in milliseconds.
        frames: those of the present entry.
        is_quiet: no frames are wanted.
    """

    def __init__(self, segment: int, *, passes: int = 0) -> None:
        self.over = False
        self.created = 0
        self.frames: list[bytes] = []
        self.is_quiet = False
        self._segment = segment
        self._passes = passes
        self._fed = self._working = False
        self._spent: dict[str, Any] = {}
        self._messages: dict[str, EncodedMessage] = {}
        # The part that had the last piece; what its events have between their number and their text, with the first quote.
        self._growing: Part | None = None
        self._begins = b""

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """The frames of an entry."""
        if self.over:
            return b""
        part = self._growing
        if part is not None and (piece := self._further(entry.event)):
            part.pieces.append(piece)
            self.take_piece(part, piece)
        else:
            self.take(entry)
        return self.joined(epoch, entry.seq) if self.frames else b""

    def take(self, entry: Entry) -> None:
        """An entry that is more than a further piece."""
        self.created = self.created or entry.created
        if entry.kind == PARKED:
            self._park(entry)
        elif numbered(entry.event):
            self._numbered(entry)
        self._fed = True

    def joined(self, epoch: int, seq: int) -> bytes:  # noqa: ARG002 - no frame has a cursor
        """The frames that an entry has brought; none are left."""
        frames = b"".join(self.frames)
        self.frames.clear()
        return frames

    def quiet(self) -> None:
        """Make no frames: only what is kept of the entries is wanted."""
        self.is_quiet = True

    # ── what is written ──

    def is_written(self, entry: Entry) -> bool:
        """Whether anything is written of an entry; of sub-agents only what the client is asked."""
        return not entry.path or entry.kind in ASKING

    def take_status(self, status: str) -> None:
        """The turn is ``queued``, ``created`` or ``in_progress``; the last comes before all else, once."""

    def begin_message(self, message: EncodedMessage) -> None:
        """The first text of a message is about to come."""

    def begin_part(self, part: Part) -> None:
        """The first text of a part is about to come."""

    def piece(self, part: Part) -> bytes:
        """The frame of a piece of a part, with `TEXT` for its text: what all pieces of the part have in common."""
        raise NotImplementedError

    def take_piece(self, part: Part, piece: bytes) -> None:
        """A piece of a part's text, as JSON: a frame as `piece` has them."""
        if self.is_quiet:
            return
        if part.around is None:
            begins, _, ends = self.piece(part).partition(_TEXT)
            part.around = begins, ends
        self.frames.append(piece.join(part.around))

    def end_part(self, part: Part) -> None:
        """A part is complete."""

    def end_message(self, message: EncodedMessage, status: str) -> None:
        """A message is ``completed`` or ``incomplete``."""

    def take_other_part(self, message: EncodedMessage, index: int, part: Json) -> bool:  # noqa: ARG002
        """A complete part that is no text, told perhaps more than once; True: it is not to be written as text."""
        return False

    def take_error(self, entry: Entry, event: Json) -> None:
        """A message that says what went wrong; the turn goes on."""

    def take_data(self, entry: Entry, name: str, data: Json) -> None:
        """The data of a closed message of any other kind: a call, a result, a list of tools. ``name`` is an id for it."""

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:
        """The client is asked, and the segment over."""

    def pass_park(self) -> None:
        """The client was asked, and has answered, or will: what is written goes on behind that."""

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:
        """The turn has ended: the ``status`` of its ``end`` is ``completed``, ``failed`` or ``canceled``."""

    # ── what is read ──

    def _park(self, entry: Entry) -> None:
        park = orjson.loads(entry.event)
        usage = park.get("usage") or {}
        if self._segment and not self._fed:
            # It begins behind this one.
            self._spent = usage
            return
        self._work()
        self._close_messages()
        if self._passes:
            self._passes -= 1
            self.pass_park()
            return
        self.take_park(entry, park, cost_of(usage, self._spent))
        self.over = True

    def _numbered(self, entry: Entry) -> None:
        kind, event = entry.kind, orjson.loads(entry.event)
        if kind == RESPONSE:
            if event["status"] == "in_progress":
                self._work()
            else:
                self.take_status(event["status"])
            return
        self._work()
        if kind == END:
            self._close_messages()
            self.take_end(entry, event, cost_of(event.get("usage"), self._spent))
            self.over = True
        elif not self.is_written(entry):
            pass
        elif event["object"] == "content":
            self._take_content(entry, event)
        elif event.get("status") not in CLOSED:
            pass
        elif kind == MessageType.ERROR:
            self.take_error(entry, event)
        elif kind in ("message", "reasoning"):
            message = self._message(event["id"], entry)
            for index, part in enumerate(event.get("content") or []):
                self._finish(message, index, part)
            self._close(message, event["status"])
        else:
            for place, data in enumerate(
                part["data"] for part in event.get("content") or [] if isinstance(part.get("data"), dict)
            ):
                self.take_data(entry, f"{event['id']}_{place}" if place else event["id"], data)

    def _work(self) -> None:
        if not self._working:
            self._working = True
            self.take_status("in_progress")

    def _take_content(self, entry: Entry, event: Json) -> None:
        if entry.kind not in ("message", "reasoning"):
            return
        message, index = self._message(event["msg_id"], entry), event.get("index") or 0
        if not event.get("delta"):
            if event.get("status") in CLOSED:
                self._finish(message, index, event)
        elif event.get("type") == "text" and event.get("text"):
            self._grow(message, index, "text", event["text"])
            if self._growing is not message.parts[index]:
                self._expect(message.parts[index], entry.event)

    def _expect(self, part: Part, event: bytes) -> None:
        """Take further events like this one for pieces of the part, if it ends with its text."""
        piece = part.pieces[-1]
        self._growing = part if part.whole is None and event.endswith(b'"text":%b}' % piece) else None
        self._begins = event[event.index(b",", len(NUMBERED)) : -len(piece)]

    def _further(self, event: bytes) -> bytes:
        """The text of an event like the one before, as JSON; empty: it is another one, or would have to be parsed."""
        at = event.find(b",", len(NUMBERED))
        if not event.startswith(self._begins, at):
            return b""
        text = event[at + len(self._begins) - 1 : -1]
        # A quote within would be an escaped one, or end the text before the event does.
        return one_line(text) if text.count(b'"') == 2 and len(text) > 2 else b""

    def _message(self, name: str, entry: Entry) -> EncodedMessage:
        message = self._messages.get(name)
        if message is None:
            message = self._messages[name] = EncodedMessage(name, entry.kind, entry.path)
        return message

    def _grow(self, message: EncodedMessage, index: int, kind: str, text: str) -> None:
        part = message.parts.get(index)
        if part is None:
            if not message.parts:
                self.begin_message(message)
            part = message.parts[index] = Part(message, len(message.parts), kind)
            self.begin_part(part)
        if part.whole is None:
            piece = one_line(orjson.dumps(text))
            part.pieces.append(piece)
            self.take_piece(part, piece)

    def _finish(self, message: EncodedMessage, index: int, part: Json) -> None:
        """Write what was not written of a part, and end it."""
        begun = message.parts.get(index)
        if begun is not None and begun.whole is not None:
            return
        if part.get("type") not in ("text", "refusal") and self.take_other_part(message, index, part):
            return
        whole, written = words_of(part), begun.text if begun else ""
        if rest := whole[len(written) :] if whole.startswith(written) else "":
            self._grow(message, index, "refusal" if part.get("type") == "refusal" else "text", rest)
        if index in message.parts:
            self._end_part(message.parts[index], whole or written)

    def _end_part(self, part: Part, whole: str) -> None:
        part.whole = whole
        if part is self._growing:
            self._growing = None
        self.end_part(part)

    def _close(self, message: EncodedMessage, status: str) -> None:
        for part in message.parts.values():
            if part.whole is None:
                self._end_part(part, part.text)
        if message.parts and not message.over:
            message.over = True
            self.end_message(message, status)

    def _close_messages(self) -> None:
        for message in self._messages.values():
            self._close(message, "incomplete")


def words_of(part: Json) -> str:
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


def cut_short(end: Json) -> str:
    """Why the model did not finish the answer of a turn that has ended: ``length``, ``content_filter``; empty where it did."""
    return str((end.get("metadata") or {}).get("cut_short") or "")


def cost_of(usage: dict[str, Any] | None, spent: dict[str, Any]) -> dict[str, Any]:
    """What a part of a turn has cost: what the turn has, less what it had when the part began."""
    return {name: round(tokens - spent.get(name, 0), 9) for name, tokens in (usage or {}).items()}
