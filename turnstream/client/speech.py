"""Who says what in a turn's events, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from turnstream.shared.protocol import DataContent, Message, MessageType, Role, RunStatus, TextContent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnstream.client.events import TurnEvent

_CLOSED = (RunStatus.Completed, RunStatus.Incomplete)


class Voice(StrEnum):
    """Who speaks."""

    ANSWER = "answer"
    THOUGHT = "thought"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class Piece:
    """Something more of a message's text."""

    voice: Voice
    message: str
    text: str


class Speakers:
    """Knows whose a message is: while a sub-agent works, all that is said is said by sub-agents."""

    def __init__(self) -> None:
        self._dispatched: set[str] = set()

    def voice(self, message: Message) -> Voice | None:
        """Who speaks in it; None when it is no speech. Messages are to be shown to it in order, all of them."""
        match message.type:
            case MessageType.COMPONENT_CALL:
                self._dispatched |= _dispatches(message)
            case MessageType.COMPONENT_CALL_OUTPUT:
                self._dispatched -= _dispatches(message)
            case MessageType.REASONING:
                return Voice.THOUGHT
            case MessageType.MESSAGE if message.role == Role.ASSISTANT:
                return Voice.SUBAGENT if self._dispatched else Voice.ANSWER
        return None


class Speech:
    """A turn's speech as it grows. A message that comes whole is said as far as it was not yet."""

    def __init__(self) -> None:
        self._speakers = Speakers()
        self._voices: dict[str, Voice] = {}
        self._said: dict[str, int] = {}

    def pieces(self, event: TurnEvent) -> Iterator[Piece]:
        """What an event adds, if anything."""
        if isinstance(event, TextContent) and event.delta and event.msg_id in self._voices:
            yield from self._say(event.msg_id, event.text or "")
        elif isinstance(event, Message):
            voice = self._speakers.voice(event)
            if voice is not None:
                self._voices.setdefault(event.id, voice)
                if event.status in _CLOSED:
                    yield from self._say(event.id, text_of(event)[self._said.get(event.id, 0) :])

    def _say(self, message: str, text: str) -> Iterator[Piece]:
        if text:
            self._said[message] = self._said.get(message, 0) + len(text)
            yield Piece(self._voices[message], message, text)


def answers(output: Iterable[Message]) -> Iterator[Message]:
    """The messages of a whole output that the agent itself says to the user.

    What a lost worker left incomplete was written anew after it.
    """
    speakers = Speakers()
    for message in output:
        voice = speakers.voice(message)
        if voice is Voice.ANSWER and message.status != RunStatus.Incomplete and text_of(message):
            yield message


def text_of(message: Message) -> str:
    """All text of a message."""
    return "".join(part.text or "" for part in message.content or [] if isinstance(part, TextContent))


def _dispatches(message: Message) -> set[str]:
    datas = [part.data or {} for part in message.content or [] if isinstance(part, DataContent)]
    return {str(data["dispatchId"]) for data in datas if data.get("dispatchId")}
