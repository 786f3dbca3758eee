"""Messages (Agent API protocol §4)."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import uuid4

from pydantic import BeforeValidator, Field, field_validator

from turnstream.shared.protocol.content import AnyContent, Content, ImageContent, TextContent, parts_of
from turnstream.shared.protocol.enums import MessageType, RunStatus
from turnstream.shared.protocol.event import Event


def new_message_id() -> str:
    """A fresh message id: ``msg_<uuid>``."""
    return f"msg_{uuid4()}"


class Message(Event):
    """What somebody said: a list of content parts, complete or still growing."""

    id: str = Field(default_factory=new_message_id)
    """Unique; content events refer to it as ``msg_id``."""

    object: str = "message"
    """Always ``message``."""

    type: str = MessageType.MESSAGE
    """A `MessageType` value; the Java edition's upper-case names are read too, unknown ones kept."""

    status: str | None = RunStatus.Created
    """``created``, ``in_progress``, ``completed`` or ``incomplete``."""

    role: str | None = None
    """A `Role` value: who speaks."""

    content: Annotated[list[AnyContent], Field(fail_fast=True), BeforeValidator(parts_of)] | None = None
    """The parts in order; a bare string is read as one text part."""

    code: str | None = None
    """Error code, on a message of type ``error``."""

    message: str | None = None
    """Error text, on a message of type ``error``."""

    usage: dict[str, Any] | None = None
    """Tokens used for this message, when the model says so."""

    metadata: dict[str, Any] | None = None
    """Whatever the sender attaches; passed on untouched."""

    @field_validator("type", mode="before")
    @classmethod
    def _java_type(cls, value: Any) -> Any:
        member = MessageType.__members__.get(value) if isinstance(value, str) else None
        return value if member is None else member.value

    def add_delta_content(self, new_content: Content) -> Content:
        """Append a piece and return it as an event: its msg_id, index and status are set.

        ``index`` None opens a new part; so does the index after the last part. The index of a part
        that is there continues it (``delta`` true) or replaces it (``delta`` false).

        Raises:
            ValueError: ``index`` leaves a gap, or the piece is of another type than its part.
        """
        parts = self.content = self.content if self.content is not None else []
        index = self._place(new_content.index)
        if index < len(parts) and new_content.delta:
            parts[index].absorb(new_content)
        else:
            self._put(parts, index, new_content, RunStatus.InProgress)
        new_content.index = index
        new_content.msg_id = self.id
        return new_content.in_progress()

    def content_completed(self, content_index: int) -> Content | None:
        """Mark a part complete and return the event that says so, whole; None when there is no such part."""
        if self.content is None or not 0 <= content_index < len(self.content):
            return None
        part = self.content[content_index].completed()
        part.delta = False
        return part.model_copy(deep=True)

    def add_content(self, new_content: Content) -> Content:
        """Add a part that is complete and return it as an event: its msg_id, index and status are set.

        Raises:
            ValueError: its ``index`` leaves a gap.
        """
        parts = self.content = self.content if self.content is not None else []
        index = self._place(new_content.index)
        self._put(parts, index, new_content, RunStatus.Completed)
        new_content.index = index
        new_content.msg_id = self.id
        new_content.delta = False
        return new_content.completed()

    def get_text_content(self) -> str | None:
        """The first text part's text; None when there is none."""
        return next((part.text for part in self.content or [] if isinstance(part, TextContent)), None)

    def get_image_content(self) -> list[str]:
        """Links of all image parts, in order."""
        parts = (part for part in self.content or [] if isinstance(part, ImageContent))
        return [part.image_url for part in parts if part.image_url is not None]

    def _place(self, index: int | None) -> int:
        count = len(self.content or [])
        if index is None:
            return count
        if not 0 <= index <= count:
            raise ValueError(
                f"content index {index}: the message has {count} parts, the next index is {count}"
            )
        return index

    def _put(self, parts: list[Content], index: int, new_content: Content, status: RunStatus) -> None:
        part = new_content.model_copy(
            deep=True,
            update={
                "index": index,
                "msg_id": self.id,
                "delta": False,
                "status": status,
                "sequence_number": None,
            },
        )
        parts[index : index + 1] = [part]
