"""Builders that make a response's events in the order clients rely on (Agent API protocol, builder section).

    responses = ResponseBuilder(session_id="s1")
    responses.created(); responses.in_progress()
    message = responses.create_message_builder()
    message.created(); message.in_progress()
    text = message.create_content_builder("text")
    text.add_text_delta("Hello"); text.complete()
    message.complete(); responses.completed()

Each step returns the event it makes. A step that is left out is *implied* when the next one needs it: the
first content of a message implies the message's created and in_progress, and those of the response.
Implied events are made only when somebody listens (``on_event``); without a listener an implied step
changes the state and takes no number.
"""

# ruff: noqa: SLF001 - the three classes are one machine; only its handles are public

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from turnstream.shared.protocol.content import BY_TYPE, Content, part_of
from turnstream.shared.protocol.content_builder import NEW, BuilderError, ContentBuilder
from turnstream.shared.protocol.data import plain, valid
from turnstream.shared.protocol.enums import ENDED, ContentType, MessageType, Role, RunStatus
from turnstream.shared.protocol.error import Error
from turnstream.shared.protocol.event import Event
from turnstream.shared.protocol.message import Message, new_message_id
from turnstream.shared.protocol.response import AgentResponse, new_response_id, unix_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic import BaseModel

E = TypeVar("E", bound=Event)


class ResponseBuilder:
    """Makes the events of one response.

    1. Keeps the response's state: (queued) → created → in_progress → one terminal event.
    2. Hands out message builders and remembers their messages in the order they were created.
    3. Puts the whole output into the terminal event.
    4. Numbers the events, unless the log does that.
    """

    def __init__(
        self,
        session_id: str | None = None,
        response_id: str | None = None,
        created_at: int | None = None,
        *,
        status: str | None = None,
        output: Iterable[Message | Mapping[str, Any]] = (),
        numbered: bool = True,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        """Start a response, or go on with one.

        Args:
            session_id: named in every response event.
            response_id: a fresh one when left out.
            created_at: Unix seconds; now when left out.
            status: where the response stands already, when an earlier attempt made its first events.
            output: finished messages of earlier attempts; they head the output.
            numbered: stamp ``sequence_number`` from 0. False where the log numbers events.
            on_event: is given every event in order, the implied ones too (not `text_delta_json`'s).
        """
        self.session_id = session_id
        self.response_id = response_id or new_response_id()
        self.created_at = unix_seconds() if created_at is None else created_at
        self._status: str = NEW if status is None else str(status)
        self._error: Error | None = None
        self._usage: dict[str, Any] | None = None
        self._completed_at: int | None = None
        self._finished = [_own(message) for message in output]
        self._builders: list[MessageBuilder] = []
        self._numbered = numbered
        self._next_number = 0
        self._on_event = on_event

    @property
    def status(self) -> str:
        """Where the response stands: a `RunStatus` value, or ``new``."""
        return self._status

    @property
    def numbered(self) -> bool:
        """Whether this builder stamps sequence numbers."""
        return self._numbered

    @property
    def output(self) -> list[Message]:
        """Every message so far, in order of creation; open ones as far as they have come."""
        finished = [message.model_copy(deep=True) for message in self._finished]
        return finished + [builder.message for builder in self._builders]

    @property
    def response(self) -> AgentResponse:
        """The response as it stands, with its output so far."""
        return self._event(output=self.output)

    def queued(self) -> AgentResponse:
        """The turn waits for a worker."""
        return self._emit(self._step("queued", RunStatus.Queued, (NEW,)))

    def created(self) -> AgentResponse:
        """The turn was taken up."""
        return self._emit(self._step("created", RunStatus.Created, (NEW, RunStatus.Queued)))

    def in_progress(self) -> AgentResponse:
        """The agent is running."""
        return self._emit(self._step("in_progress", RunStatus.InProgress, (RunStatus.Created,)))

    def completed(self, usage: Mapping[str, Any] | BaseModel | None = None) -> AgentResponse:
        """The turn is done; every message must be complete or incomplete by now."""
        for builder in self._builders:
            if builder.open:
                raise BuilderError(
                    f"completed() was called while message {builder.message_id} is {builder.status}: "
                    "call its complete() or incomplete() first"
                )
        return self._end("completed", RunStatus.Completed, (RunStatus.InProgress,), usage=usage)

    def failed(
        self, code: str, message: str, usage: Mapping[str, Any] | BaseModel | None = None
    ) -> AgentResponse:
        """The agent raised; open messages become incomplete."""
        error = Error(code=code, message=valid(message))
        return self._end("failed", RunStatus.Failed, _LIVE, error=error, usage=usage)

    def canceled(self, usage: Mapping[str, Any] | BaseModel | None = None) -> AgentResponse:
        """The user stopped the turn; open messages become incomplete."""
        return self._end("canceled", RunStatus.Canceled, _LIVE, usage=usage)

    def rejected(self, code: str | None = None, message: str | None = None) -> AgentResponse:
        """The turn is not taken up at all."""
        error = None if code is None else Error(code=code, message=valid(message or ""))
        allowed = (NEW, RunStatus.Queued, RunStatus.Created)
        return self._end("rejected", RunStatus.Rejected, allowed, error=error)

    def create_message_builder(
        self,
        role: str | None = Role.ASSISTANT,
        message_type: str = MessageType.MESSAGE,
        message_id: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> MessageBuilder:
        """A builder for one message; nothing is said until its first step.

        ``about`` is what else its events tell: ``code`` and ``message`` of an error, ``metadata`` …
        """
        return MessageBuilder(self, role=role, message_type=message_type, message_id=message_id, about=about)

    def generate_streaming_response(
        self, text_tokens: Iterable[str], role: str = Role.ASSISTANT
    ) -> Iterator[Event]:
        """All events of a response that says one text, token by token."""
        if self._status in (NEW, RunStatus.Queued):
            yield self.created()
        if self._status == RunStatus.Created:
            yield self.in_progress()
        message = self.create_message_builder(role=role)
        yield message.created()
        yield message.in_progress()
        text = message.create_content_builder(ContentType.TEXT)
        for token in text_tokens:
            yield text.add_text_delta(token)
        yield text.complete()
        yield message.complete()
        yield self.completed()

    def _event(self, **fields: Any) -> AgentResponse:
        return AgentResponse(
            id=self.response_id,
            status=RunStatus.Created if self._status == NEW else self._status,
            created_at=self.created_at,
            completed_at=self._completed_at,
            session_id=self.session_id,
            error=self._error,
            usage=self._usage,
            **fields,
        )

    def _step(self, call: str, status: RunStatus, allowed: tuple[str, ...]) -> AgentResponse:
        self._check(call, allowed)
        self._status = status
        return self._event()

    def _end(
        self,
        call: str,
        status: RunStatus,
        allowed: tuple[str, ...],
        *,
        error: Error | None = None,
        usage: Mapping[str, Any] | BaseModel | None = None,
    ) -> AgentResponse:
        self._check(call, allowed)
        usage = None if usage is None else plain(usage)
        for builder in self._builders:
            if builder.open:
                self._imply(builder._finish(RunStatus.Incomplete))
        self._status = status
        self._error = error
        self._usage = usage
        self._completed_at = unix_seconds()
        return self._emit(self._event(output=self.output))

    def _check(self, call: str, allowed: tuple[str, ...]) -> None:
        if self._status not in allowed:
            raise BuilderError(
                f"{call}() was called on a response that is {self._status}; it follows {' or '.join(allowed)}"
            )

    def _ready(self, call: str) -> None:
        """A message is about to speak: the response must be, or is implied to be, in progress."""
        if self._status in ENDED and self._on_event is not None:
            # The end has been sent. Without a listener that is the caller's to know.
            raise BuilderError(f"{call}() was called on a message of a response that is {self._status}")
        if self._status in (NEW, RunStatus.Queued):
            self._imply(self._step("created", RunStatus.Created, (self._status,)))
        if self._status == RunStatus.Created:
            self._imply(self._step("in_progress", RunStatus.InProgress, (RunStatus.Created,)))

    def _register(self, builder: MessageBuilder) -> None:
        self._builders.append(builder)

    def _imply(self, event: Event) -> None:
        if self._on_event is not None:
            self._emit(event)

    def _emit(self, event: E) -> E:
        if self._numbered:
            event.sequence_number = self._next_number
            self._next_number += 1
        if self._on_event is not None:
            self._on_event(event)
        return event


_LIVE = (NEW, RunStatus.Queued, RunStatus.Created, RunStatus.InProgress)


# What a message builder says by itself.
_ITS_OWN = frozenset({"sequence_number", "object", "status", "id", "type", "role", "content"})


class MessageBuilder:
    """Makes the events of one message: created, in_progress, its parts one after the other, the end."""

    def __init__(
        self,
        response_builder: ResponseBuilder,
        role: str | None = Role.ASSISTANT,
        message_type: str = MessageType.MESSAGE,
        message_id: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._responses = response_builder
        self.message_id = message_id or new_message_id()
        self.role = role
        self.message_type = Message(type=message_type).type
        self._status: str = NEW
        self._parts: list[Content] = []
        self._growing: ContentBuilder | None = None
        self._about = plain({key: value for key, value in (about or {}).items() if key not in _ITS_OWN})

    @property
    def status(self) -> str:
        """Where the message stands: a `RunStatus` value, or ``new``."""
        return self._status

    @property
    def open(self) -> bool:
        """True between its first event and its end."""
        return self._status in (RunStatus.Created, RunStatus.InProgress)

    @property
    def message(self) -> Message:
        """The message as it stands, with the part that still grows."""
        parts = [part.model_copy(deep=True) for part in self._parts]
        if self._growing is not None:
            parts.append(self._growing.content)
        return self._event(content=parts if parts or self._status in ENDED else None)

    def created(self) -> Message:
        """The message exists; it takes its place in the output."""
        self._responses._ready("created")
        return self._responses._emit(self._create())

    def in_progress(self) -> Message:
        """Its content follows."""
        self._responses._ready("in_progress")
        return self._responses._emit(self._start())

    def create_content_builder(
        self, content_type: str = ContentType.TEXT, index: int | None = None
    ) -> ContentBuilder:
        """A builder for one part; nothing is said until its first step.

        ``index`` is where the part is meant to stand, checked when it opens; None: the next place.
        """
        return ContentBuilder(self, content_type=content_type, index=index)

    def add_content(self, content: Content | Mapping[str, Any] | str) -> Content:
        """Add a part that is whole already; it gets the next index."""
        given = content.model_dump(exclude_none=True) if isinstance(content, Content) else part_of(content)
        raw = {**plain(given), "index": len(self._parts), "msg_id": self.message_id, "delta": False}
        raw.pop("sequence_number", None)
        model = BY_TYPE.get(raw.get("type", ""), Content)
        part = model.model_validate({**raw, "status": RunStatus.Completed})
        if self._growing is not None:
            raise BuilderError(f"add_content() was called while part {len(self._parts)} is still open")
        self._ready("add_content")
        self._parts.append(part)
        return self._responses._emit(part.model_copy(deep=True))

    def complete(self) -> Message:
        """The message is whole; its parts must be complete by now."""
        if self._growing is not None:
            raise BuilderError(
                f"complete() was called on a message whose part {len(self._parts)} is still open: "
                "complete the part first"
            )
        self._ready("complete")
        return self._responses._emit(self._finish(RunStatus.Completed))

    def incomplete(self) -> Message:
        """The message ends before it is whole; what it said so far stays."""
        self._ready("incomplete")
        return self._responses._emit(self._finish(RunStatus.Incomplete))

    def _event(self, content: list[Content] | None = None) -> Message:
        return Message(
            **plain(self._about),
            id=self.message_id,
            type=self.message_type,
            role=self.role,
            status=RunStatus.Created if self._status == NEW else self._status,
            content=content,
        )

    def _create(self) -> Message:
        if self._status != NEW:
            raise BuilderError(f"created() was called on a message that is {self._status}; it comes first")
        self._responses._register(self)
        self._status = RunStatus.Created
        return self._event()

    def _start(self) -> Message:
        if self._status == NEW:
            self._responses._imply(self._create())
        if self._status != RunStatus.Created:
            raise BuilderError(
                f"in_progress() was called on a message that is {self._status}; it follows created"
            )
        self._status = RunStatus.InProgress
        return self._event()

    def _ready(self, call: str) -> None:
        """Content is about to come, or the end: the message must be, or is implied to be, in progress."""
        if self._status in ENDED:
            raise BuilderError(f"{call}() was called on a message that is {self._status}")
        self._responses._ready(call)
        if self._status != RunStatus.InProgress:
            self._responses._imply(self._start())

    def _open(self, call: str, part: ContentBuilder, index: int | None) -> int:
        """Make ``part`` the one that grows; parts are sequential because clients append to the last one."""
        place = len(self._parts)
        if self._growing is not None:
            raise BuilderError(
                f"{call}() would open a part while part {place} is still open: complete that first"
            )
        if index is not None and index != place:
            raise BuilderError(
                f"{call}() would open part {index}, but the next part of the message is {place}"
            )
        self._ready(call)
        self._growing = part
        return place

    def _close(self, content: Content) -> None:
        self._parts.append(content)
        self._growing = None

    def _finish(self, status: RunStatus) -> Message:
        if self._growing is not None:
            self._growing._abandon()
        self._status = status
        return self.message


def _own(message: Message | Mapping[str, Any]) -> Message:
    raw = message.model_dump(exclude_none=True) if isinstance(message, Message) else dict(message)
    raw.pop("sequence_number", None)
    return Message.model_validate(plain(raw))
