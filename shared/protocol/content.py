"""Content parts: what messages are made of (Agent API protocol §3)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Tag

from turnstream.shared.protocol.data import grow, plain
from turnstream.shared.protocol.enums import RunStatus
from turnstream.shared.protocol.event import Event


class Content(Event):
    """One part of a message, or a piece of one. A part of an unknown type is kept in this class."""

    type: str
    """A `ContentType` value; an unknown one is kept, with its fields."""

    object: str = "content"
    """Always ``content``."""

    status: str | None = RunStatus.Created
    """``in_progress`` while the part grows, then ``completed`` (or ``incomplete``)."""

    index: int | None = None
    """Place of the part in its message's content, from 0."""

    delta: bool | None = False
    """True: a piece to append to the part. False: the whole part."""

    msg_id: str | None = None
    """The message it belongs to."""

    def payload(self) -> dict[str, Any]:
        """What the part says: its fields without those of the envelope, nulls left out."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in _ENVELOPE}
        return {
            key: value for key, value in {**fields, **(self.model_extra or {})}.items() if value is not None
        }

    def absorb(self, piece: Content) -> None:
        """Append a delta to this part: text grows, data merges (see `turnstream.shared.protocol.data.merge`).

        Raises:
            ValueError: the piece is of another type.
        """
        if piece.type != self.type:
            raise ValueError(f"a {piece.type} delta cannot continue a {self.type} part")
        whole = self.payload()
        grow(self.type, whole, plain(piece.payload()))
        for name, value in whole.items():
            setattr(self, name, value)


_ENVELOPE = frozenset(Content.model_fields)


class TextContent(Content):
    """Text."""

    type: Literal["text"] = "text"
    """Always ``text``."""

    text: str | None = None
    """The text, or the piece of it that a delta appends."""


class ImageContent(Content):
    """An image."""

    type: Literal["image"] = "image"
    """Always ``image``."""

    image_url: str | None = None
    """Where the image is: an ``https:`` link or a ``data:`` URL with base64."""


def _as_mapping(value: object) -> object:
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


class DataContent(Content):
    """Structured data; tool calls and their results travel in it."""

    type: Literal["data"] = "data"
    """Always ``data``."""

    data: Annotated[dict[str, Any], BeforeValidator(_as_mapping)] | None = None
    """Any JSON object; for a tool message, one of the models in `turnstream.shared.protocol.tools`."""


class AudioContent(Content):
    """Sound."""

    type: Literal["audio"] = "audio"
    """Always ``audio``."""

    data: str | None = None
    """The sound as base64, or a link to it."""

    format: str | None = None
    """How it is encoded: ``mp3``, ``wav`` …"""


class FileContent(Content):
    """A file, by link, by id or whole."""

    type: Literal["file"] = "file"
    """Always ``file``."""

    file_url: str | None = None
    """Where the file is."""

    file_id: str | None = None
    """The id of a file that was uploaded before."""

    filename: str | None = None
    """The file's name, for people."""

    file_data: str | None = None
    """The file itself as base64."""


class RefusalContent(Content):
    """The model refuses to do what was asked."""

    type: Literal["refusal"] = "refusal"
    """Always ``refusal``."""

    refusal: str | None = None
    """What it says about it."""


class VideoContent(Content):
    """A video."""

    type: Literal["video"] = "video"
    """Always ``video``."""

    video_url: str | None = None
    """Where the video is: a link or a ``data:`` URL with base64."""


BY_TYPE: dict[str, type[Content]] = {
    "text": TextContent,
    "image": ImageContent,
    "data": DataContent,
    "audio": AudioContent,
    "file": FileContent,
    "refusal": RefusalContent,
    "video": VideoContent,
}


def part_of(value: object) -> object:
    """A bare string where a content part is expected is one text part."""
    return {"type": "text", "text": value} if isinstance(value, str) else value


def parts_of(value: object) -> object:
    """A bare string where a list of parts is expected is one text part."""
    return [part_of(value)] if isinstance(value, str) else value


def _tag(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return kind if kind in BY_TYPE else "other"


AnyContent = Annotated[
    Annotated[TextContent, Tag("text")]
    | Annotated[ImageContent, Tag("image")]
    | Annotated[DataContent, Tag("data")]
    | Annotated[AudioContent, Tag("audio")]
    | Annotated[FileContent, Tag("file")]
    | Annotated[RefusalContent, Tag("refusal")]
    | Annotated[VideoContent, Tag("video")]
    | Annotated[Content, Tag("other")],
    Discriminator(
        _tag,
        custom_error_type="content_type_missing",
        custom_error_message="A content part is an object with a 'type', or a string",
    ),
    BeforeValidator(part_of),
]
"""A content part of any type, known or not."""
