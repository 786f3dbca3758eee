"""What LiteAgent clients send: the bodies of ``/chat`` and ``/callback``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.shared.errors import InvalidBody
from turnstream.shared.names import NAME
from turnstream.shared.protocol import explain

_Body = TypeVar("_Body", bound=BaseModel)


def _bare_text(item: object) -> object:
    return {"type": "text", "message": item} if isinstance(item, str) else item


class ContentPart(BaseModel):
    """One item of a content list; for an image, ``message`` is its URL, which may be a ``data:`` one."""

    type: Literal["text", "imageUrl"]
    message: str


_Parts = Annotated[
    list[Annotated[ContentPart, BeforeValidator(_bare_text)]],
    Field(min_length=1, max_length=2000, fail_fast=True),
]


class ChatBody(BaseModel):
    """Both spellings of each field: the documentation's, and what older clients send."""

    content: _Parts | None = None
    contentList: _Parts | None = None  # noqa: N815 - the wire's name, so that errors name it too
    stream: bool | None = None
    isChunk: bool | None = None  # noqa: N815
    # Empty means none, as with the ids of the other protocol.
    taskId: Annotated[str, Field(pattern=f"^{NAME}?$", max_length=36)] | None = None  # noqa: N815


class CallbackRequest(BaseModel):
    """A client's answer to a function call or to a request for approval."""

    id: Annotated[str, Field(min_length=1, max_length=2000)]
    result: Any


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A user's turn.

    Attributes:
        parts: the content list as sent, for the echo; a bare string has become a text item.
        stream: whether the answer is wanted piece by piece.
        task_id: the client's name for the task, or None to have one made.
        digest: of what is asked: a repeat has the same, however its answer is delivered.
    """

    parts: list[dict[str, str]]
    stream: bool
    task_id: str | None
    digest: str

    def input(self) -> list[dict[str, Any]]:
        """The turn as canonical messages: one, of the user."""
        content = [
            {"type": "image", "image_url": part["message"]}
            if part["type"] == "imageUrl"
            else {"type": "text", "text": part["message"]}
            for part in self.parts
        ]
        return [{"role": "user", "type": "message", "content": content}]


def parse_chat(body: bytes) -> ChatRequest:
    """Read the body of ``/chat``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
    """
    chat = _read(body, ChatBody)
    parts = chat.content if chat.content is not None else chat.contentList
    if parts is None:
        raise InvalidBody("content: Field required")
    stream = chat.stream if chat.stream is not None else chat.isChunk
    asked = [part.model_dump() for part in parts]
    return ChatRequest(asked, bool(stream), chat.taskId or None, digest_of(asked, body))


def parse_callback(body: bytes) -> CallbackRequest:
    """Read the body of ``/callback``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
    """
    return _read(body, CallbackRequest)


def _read(body: bytes, model: type[_Body]) -> _Body:
    fields = json_object(body)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
