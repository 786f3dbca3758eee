"""Builds one part of a message, piece by piece or at once; the hot path of a streamed text is here."""

# ruff: noqa: SLF001 - the three builders are one machine; only its handles are public

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel

from turnstream.shared.protocol.content import BY_TYPE, Content, TextContent
from turnstream.shared.protocol.data import merge, plain, scrub, valid
from turnstream.shared.protocol.enums import ContentType, RunStatus
from turnstream.shared.protocol.wire import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnstream.shared.protocol.builder import MessageBuilder

# What a builder is before its first step; afterwards it is a RunStatus value.
NEW = "new"


class BuilderError(RuntimeError):
    """A builder was called in the wrong order; the text names the call and the state it met."""


class ContentBuilder:
    """Makes the events of one part: pieces or snapshots of it, then the whole."""

    def __init__(
        self, message_builder: MessageBuilder, content_type: str = ContentType.TEXT, index: int | None = None
    ) -> None:
        if content_type not in BY_TYPE:
            raise BuilderError(f"create_content_builder() knows no {content_type!r}: {', '.join(BY_TYPE)}")
        self._message = message_builder
        self._type = str(content_type)
        self._index = index
        self._status: str = NEW
        self._pieces: list[str] = []
        self._payload: dict[str, Any] = {}
        self._template: bytes | None = None

    @property
    def status(self) -> str:
        """Where the part stands: a `RunStatus` value, or ``new``."""
        return self._status

    @property
    def content(self) -> Content:
        """The part as it stands, whole."""
        return self._whole(RunStatus.Created if self._status == NEW else self._status)

    def add_text_delta(self, text: str) -> Content:
        """Append text."""
        self._grow("add_text_delta", ContentType.TEXT)
        text = valid(text)
        self._pieces.append(text)
        return self._emit(self._text_delta(text))

    def add_delta(self, text: str) -> Content:
        """Append text: another name for `add_text_delta`."""
        return self.add_text_delta(text)

    def text_delta_json(self, text: str) -> tuple[bytes, bytes]:
        """Append text, as `add_text_delta`, and return the event's canonical JSON in two pieces: the hot path.

        Returns:
            all that stands before the text, one and the same object for each delta of the part, and the text, quoted. A
            brace closes the event.

        Raises:
            BuilderError: as `add_text_delta`; or this builder numbers its events, so that bytes without
                a number would leave a hole.
        """
        template = self._template
        if template is None:
            template = self._make_template()
        try:
            quoted = orjson.dumps(text)
        except TypeError:
            text = scrub(text)
            quoted = orjson.dumps(text)
        self._pieces.append(text)
        return template, quoted

    def set_text(self, text: str) -> Content:
        """Replace the part by this text."""
        self._open("set_text")
        return self._replace(ContentType.TEXT, {}, [valid(text)])

    def set_image_url(self, image_url: str) -> Content:
        """Replace the part by an image: a link or a ``data:`` URL."""
        return self._set("set_image_url", ContentType.IMAGE, {"image_url": image_url})

    def set_data(self, data: Mapping[str, Any] | BaseModel) -> Content:
        """Replace the part by data: any JSON object, or a model of `turnstream.shared.protocol.tools`."""
        return self._set("set_data", ContentType.DATA, {"data": data})

    def add_data_delta(self, delta: Mapping[str, Any] | BaseModel) -> Content:
        """Merge into the data: strings concatenate, lists extend, objects recurse, numbers add."""
        piece = plain(delta)
        self._grow("add_data_delta", ContentType.DATA)
        merge(self._payload.setdefault("data", {}), plain(piece))
        return self._emit(self._make(RunStatus.InProgress, delta=True, data=piece))

    def set_refusal(self, refusal: str) -> Content:
        """Replace the part by a refusal."""
        return self._set("set_refusal", ContentType.REFUSAL, {"refusal": refusal})

    def set_audio(self, data: str, format: str | None = None) -> Content:  # noqa: A002 - the wire's name
        """Replace the part by sound: base64 or a link, and how it is encoded."""
        return self._set("set_audio", ContentType.AUDIO, {"data": data, "format": format})

    def set_file(
        self,
        file_url: str | None = None,
        file_id: str | None = None,
        filename: str | None = None,
        file_data: str | None = None,
    ) -> Content:
        """Replace the part by a file: by link, by id, or whole as base64."""
        file = {"file_url": file_url, "file_id": file_id, "filename": filename, "file_data": file_data}
        return self._set("set_file", ContentType.FILE, file)

    def set_video(self, video_url: str) -> Content:
        """Replace the part by a video: a link or a ``data:`` URL."""
        return self._set("set_video", ContentType.VIDEO, {"video_url": video_url})

    def complete(self) -> Content:
        """The part is whole. A text part may be empty; any other must have been set."""
        if self._status == NEW and self._type != ContentType.TEXT:
            raise BuilderError(
                f"complete() was called on a part of type {self._type} to which nothing was set"
            )
        self._open("complete")
        whole = self._end(RunStatus.Completed)
        return self._emit(whole.model_copy(deep=True))

    def _open(self, call: str) -> None:
        if self._status == RunStatus.InProgress:
            return
        if self._status != NEW:
            raise BuilderError(f"{call}() was called on a part that is {self._status}")
        self._index = self._message._open(call, self, self._index)
        self._status = RunStatus.InProgress

    def _grow(self, call: str, content_type: ContentType) -> None:
        if self._type != content_type:
            raise BuilderError(f"{call}() was called on a part of type {self._type}")
        self._open(call)

    def _set(self, call: str, content_type: ContentType, payload: dict[str, Any]) -> Content:
        clean = plain({key: _dump(value) for key, value in payload.items() if value is not None})
        BY_TYPE[content_type].model_validate(clean)
        self._open(call)
        return self._replace(content_type, clean, [])

    def _replace(self, content_type: ContentType, payload: dict[str, Any], pieces: list[str]) -> Content:
        self._type, self._payload, self._pieces, self._template = content_type.value, payload, pieces, None
        return self._emit(self._whole(RunStatus.InProgress))

    def _make(self, status: str, *, delta: bool, **payload: Any) -> Content:
        return BY_TYPE[self._type].model_validate(
            {
                **payload,
                "status": status,
                "index": self._index,
                "delta": delta,
                "msg_id": self._message.message_id,
            }
        )

    def _text_delta(self, text: str) -> TextContent:
        return TextContent(
            status=RunStatus.InProgress,
            index=self._index,
            delta=True,
            msg_id=self._message.message_id,
            text=text,
        )

    def _whole(self, status: str) -> Content:
        if self._type == ContentType.TEXT:
            self._pieces[:] = ["".join(self._pieces)]
            return self._make(status, delta=False, text=self._pieces[0])
        return self._make(status, delta=False, **plain(self._payload))

    def _end(self, status: RunStatus) -> Content:
        self._status = status
        self._template = None
        whole = self._whole(status)
        self._message._close(whole)
        return whole

    def _abandon(self) -> None:
        self._end(RunStatus.Incomplete)

    def _make_template(self) -> bytes:
        if self._message._responses.numbered:
            raise BuilderError("text_delta_json() was called on a builder that numbers its events")
        self._grow("text_delta_json", ContentType.TEXT)
        self._template = canonical(self._text_delta("")).removesuffix(b'""}')
        return self._template

    def _emit(self, event: Content) -> Content:
        return self._message._responses._emit(event)


def _dump(value: object) -> object:
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
