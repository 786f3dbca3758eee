"""Events back into messages: what a client, or whoever stops a turn, reads out of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from turnstream.shared.protocol.content import part_of, parts_of
from turnstream.shared.protocol.data import GROWING, grow, plain
from turnstream.shared.protocol.enums import ENDED, RunStatus
from turnstream.shared.protocol.event import Event
from turnstream.shared.protocol.message import Message
from turnstream.shared.protocol.response import AgentResponse
from turnstream.shared.protocol.wire import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fold:
    """Rebuilds the messages of one response from its events.

    1. Takes the events in order, as canonical JSON, as objects of it, or as models.
    2. Keeps every message as far as it has come; a whole part or message replaces what was gathered.
    3. Needs no beginning: events of a message whose start was missed open it.
    4. Costs linear time, however many pieces a text comes in.
    """

    def __init__(self) -> None:
        self._messages: dict[str, _Growing] = {}
        self._last: str | None = None
        self._response: dict[str, Any] | None = None

    def feed(self, event: bytes | str | Mapping[str, Any] | Event) -> None:
        """Take the next event; objects of an unknown kind are passed over.

        Raises:
            ValueError: the event is not a JSON object.
        """
        raw = _raw(event)
        match raw.pop("object", None):
            case "content":
                self._content(raw)
            case "message" if isinstance(raw.get("id"), str):
                self._message(raw["id"], raw)
            case "response":
                self._take_response(raw)

    @property
    def messages(self) -> dict[str, Message]:
        """Id → message, in order of creation; open ones as far as they have come."""
        return {msg_id: message.model() for msg_id, message in self._messages.items()}

    @property
    def open_messages(self) -> list[Message]:
        """Messages that were begun and not ended, in order of creation."""
        return [message.model() for message in self._messages.values() if not message.ended]

    @property
    def response(self) -> AgentResponse | None:
        """The last response event; None before the first."""
        return None if self._response is None else AgentResponse.model_validate(self._response)

    def text_so_far(self, msg_id: str) -> str:
        """All text of a message up to now, its text parts joined; empty when it is unknown."""
        message = self._messages.get(msg_id)
        return "" if message is None else message.text()

    def _content(self, raw: dict[str, Any]) -> None:
        # The specification's first example leaves msg_id out: such content belongs to the last message.
        msg_id = raw.get("msg_id") or self._last
        if isinstance(msg_id, str):
            self._of(msg_id).content(raw)

    def _message(self, msg_id: str, raw: dict[str, Any]) -> None:
        self._of(msg_id).header(raw)

    def _take_response(self, raw: dict[str, Any]) -> None:
        self._response = raw
        output = [message for message in raw.get("output") or [] if "id" in message]
        if output:
            listed = [message["id"] for message in output]
            for message in output:
                self._of(message["id"]).header(dict(message))
            # What the response does not list (the user's own message) came before it.
            others = [msg_id for msg_id in self._messages if msg_id not in set(listed)]
            self._messages = {msg_id: self._messages[msg_id] for msg_id in [*others, *listed]}

    def _of(self, msg_id: str) -> _Growing:
        self._last = msg_id
        message = self._messages.get(msg_id)
        if message is None:
            message = self._messages[msg_id] = _Growing(msg_id)
        return message


def incomplete_events(message: Message) -> list[bytes]:
    """Canonical events that close an open message: one, with all it said so far, status incomplete.

    Parts that were still growing are marked incomplete too. A message that has ended needs none.
    """
    if message.status in ENDED:
        return []
    closed = message.model_copy(deep=True, update={"status": RunStatus.Incomplete})
    closed.content = closed.content or []
    for part in closed.content:
        part.delta = False
        if part.status not in ENDED:
            part.status = RunStatus.Incomplete
    return [canonical(closed)]


class _Growing:
    """One message: its newest header and its parts."""

    def __init__(self, msg_id: str) -> None:
        self._header: dict[str, Any] = {"id": msg_id, "status": RunStatus.InProgress.value}
        self._parts: dict[int, _Part] = {}
        self._has_content = False

    @property
    def ended(self) -> bool:
        return self._header["status"] in ENDED

    def header(self, raw: dict[str, Any]) -> None:
        parts: Any = parts_of(raw.pop("content", None))
        raw.pop("sequence_number", None)
        self._header.update(raw)
        if parts is not None:
            self._has_content = True
            self._parts = {index: _Part(part_of(part)) for index, part in enumerate(parts)}

    def content(self, raw: dict[str, Any]) -> None:
        last = max(self._parts, default=-1)
        index = raw.get("index")
        if index is None:
            index = last if last in self._parts and not self._parts[last].ended else last + 1
            raw["index"] = index
        part = self._parts.get(index)
        if part is not None and raw.get("delta"):
            part.extend(raw)
        else:
            self._parts[index] = _Part(raw)

    def text(self) -> str:
        parts = (self._parts[index].whole() for index in sorted(self._parts))
        return "".join(part.get("text") or "" for part in parts if part.get("type") == "text")

    def model(self) -> Message:
        parts = [self._parts[index].whole() for index in sorted(self._parts)]
        content = {"content": parts} if parts or self._has_content else {}
        return Message.model_validate({**self._header, **content})


class _Part:
    """One part. Pieces of a string wait in a list, so that a long text is joined once."""

    def __init__(self, raw: Any) -> None:
        self._raw: dict[str, Any] = {key: value for key, value in raw.items() if key not in _NOT_KEPT}
        self._raw["delta"] = False
        self._type = str(raw.get("type", ""))
        self._field = GROWING.get(self._type)
        self._pieces: list[str] = []

    @property
    def ended(self) -> bool:
        return self._raw.get("status") in ENDED

    def extend(self, delta: dict[str, Any]) -> None:
        payload = {key: value for key, value in delta.items() if key not in _ENVELOPE}
        if self._field is not None:
            piece = payload.pop(self._field, None)
            if isinstance(piece, str):
                self._pieces.append(piece)
        grow(self._type, self._raw, payload)

    def whole(self) -> dict[str, Any]:
        if self._field is not None and self._pieces:
            self._raw[self._field] = (self._raw.get(self._field) or "") + "".join(self._pieces)
            self._pieces.clear()
        return plain(self._raw)  # type: ignore[no-any-return]


_NOT_KEPT = frozenset({"object", "sequence_number"})
_ENVELOPE = frozenset({"object", "sequence_number", "type", "status", "index", "delta", "msg_id", "error"})


def _raw(event: bytes | str | Mapping[str, Any] | Event) -> dict[str, Any]:
    if isinstance(event, bytes | str):
        raw = from_json(event)
    elif isinstance(event, Event):
        raw = plain(event)
    else:
        raw = plain(dict(event))
    if not isinstance(raw, dict):
        raise ValueError("an event is a JSON object")  # noqa: TRY004 - the bytes are wrong, not the type
    return raw
