"""What A2A's clients send, read and checked: protocol buffers as JSON, so that fields have two spellings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from turnstream.api.http.body import digest_of
from turnstream.api.protocols.a2a.parts import read_part
from turnstream.api.protocols.a2a.task_encoder import STATES
from turnstream.api.turns.ids import TaskId
from turnstream.api.turns.messages import message_of
from turnstream.shared.errors import InvalidBody, NoTask
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import explain
from turnstream.shared.session.webhooks import Webhook

if TYPE_CHECKING:
    from turnstream.shared.protocol import Message

M = TypeVar("M", bound="Fields")

MOST_PARTS = 1000
MOST_PAGE = 100
USUAL_PAGE = 50

# What people write who are asked for consent.
_YES = frozenset({"yes", "y", "ok", "approve", "approved", "true"})
_NO = frozenset({"no", "n", "deny", "denied", "reject", "rejected", "false"})

Name = Annotated[str, Field(max_length=512)]
# What goes into a header, which has no spaces at its ends.
Printable = Annotated[str, Field(max_length=4096, pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$")]
Token = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]*$")]


def _or_empty(value: Any) -> Any:
    """Null is a field that was left out."""
    return "" if value is None else value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Text = Annotated[Name, BeforeValidator(_or_empty)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Fields(BaseModel):
    """Fields as these clients name them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Authentication(Fields):
    """What stands in the ``Authorization`` header of push notifications."""

    scheme: Annotated[Token, Field(min_length=1)]
    credentials: Annotated[Printable, BeforeValidator(_or_empty)] = ""


class PushConfig(Fields):
    """Who is told of a task."""

    id: Text = ""
    task_id: Text = ""
    url: Annotated[str, Field(min_length=1, max_length=2048)]
    token: Annotated[Printable, BeforeValidator(_or_empty)] = ""
    authentication: Authentication | None = None


class Configuration(Fields):
    """How a message is to be answered."""

    accepted_output_modes: list[Name] | None = None
    task_push_notification_config: PushConfig | None = None
    history_length: Count | None = None
    return_immediately: bool | None = None


class UserMessage(Fields):
    """A message of the client."""

    message_id: Annotated[str, Field(min_length=1, max_length=512)]
    context_id: Text = ""
    task_id: Text = ""
    role: Literal["ROLE_USER", 1]
    parts: Annotated[list[Any], Field(min_length=1, max_length=MOST_PARTS)] = Field(
        description="Each one of `text`, `raw`, `url`, `data`; an answer to a call is `data` with its `callId`."
    )
    metadata: dict[str, Any] | None = None
    extensions: list[Name] | None = None
    reference_task_ids: list[Name] | None = None


class SendMessage(Fields):
    """A message, and how it is to be answered."""

    message: UserMessage
    configuration: Configuration | None = None
    metadata: dict[str, Any] | None = None


class OneTask(Fields):
    """A task by its id."""

    id: Annotated[str, Field(min_length=1, max_length=512)]
    history_length: Count | None = None


class OneConfig(Fields):
    """A push notification config of a task."""

    task_id: Annotated[str, Field(min_length=1, max_length=512)]
    id: Annotated[str, Field(min_length=1, max_length=512)]


class Configs(Fields):
    """Those of a task."""

    task_id: Annotated[str, Field(min_length=1, max_length=512)]


def _time(value: Any) -> Any:
    """Unix milliseconds of a timestamp; of a part of one, the next: nothing older is wanted."""
    if value is None:
        return value
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("must be a time like 2026-11-24T00:00:00Z") from None
    return -((_EPOCH - (at if at.tzinfo else at.replace(tzinfo=UTC))) // timedelta(milliseconds=1))


class ListTasks(Fields):
    """Which tasks are wanted."""

    context_id: Text = ""
    status: Literal[STATES] | None = None  # type: ignore[valid-type]
    page_size: Annotated[int, Field(ge=1, le=MOST_PAGE)] | None = None
    page_token: Text = ""
    history_length: Count | None = None
    status_timestamp_after: Annotated[int, BeforeValidator(_time)] | None = None
    include_artifacts: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a call: its id, and what ``/callback`` would bring."""

    call: str
    result: Any


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent, read.

    Attributes:
        message: what is said.
        session: the context that it names; None: none.
        task: the task that it names; None: it begins one.
        answers: to calls, by their ids.
        text: what it says in words, if it names a task.
        rest: the place of the first part that is neither words nor an answer; empty: there is none.
        digest: of what is asked.
    """

    body: SendMessage
    message: Message
    session: str | None
    task: TaskId | None
    answers: list[Answer]
    text: str
    rest: str
    digest: str

    @property
    def configuration(self) -> Configuration:
        """How it is to be answered."""
        return self.body.configuration or Configuration()


def read(fields: Any, model: type[M]) -> M:
    """Read the fields of a request.

    Raises:
        InvalidBody: one is wrong; the text names it.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None


def read_message(fields: Any, raw: bytes) -> Sent:
    """Read a message.

    Raises:
        InvalidBody: a field is wrong; the text names it.
        UnknownMediaType: a part is of a kind that is not taken.
        NoTask: there can be no such task.
    """
    body = read(fields, SendMessage)
    message = body.message
    task = TaskId.parse(message.task_id) if message.task_id else None
    session = message.context_id or None
    if session and not IDENTIFIER.fullmatch(session):
        raise InvalidBody("message.contextId: not an id that can be taken here; leave it out to be given one")
    if task and session and task.session != session:
        raise InvalidBody("message.contextId: is not the context of message.taskId")
    places = [f"message.parts[{index}]" for index in range(len(message.parts))]
    answers = [
        _answer(part["data"], place)
        for part, place in zip(message.parts, places, strict=True)
        if task and _answers(part)
    ]
    others = {
        place: read_part(part, place)
        for part, place in zip(message.parts, places, strict=True)
        if not (task and _answers(part))
    }
    asked = fields["message"] if isinstance(fields, dict) else fields
    return Sent(
        body=body,
        message=message_of("user", [*others.values()], "message"),
        session=task.session if task else session,
        task=task,
        answers=answers,
        text="\n".join(part["text"] for part in others.values() if part["type"] == "text"),
        rest=next((place for place, part in others.items() if part["type"] != "text"), ""),
        digest=digest_of(asked, raw),
    )


def _answers(part: Any) -> bool:
    data = part.get("data") if isinstance(part, dict) else None
    return isinstance(data, dict) and ("callId" in data or "call_id" in data)


def _answer(data: dict[str, Any], place: str) -> Answer:
    call = data.get("callId", data.get("call_id"))
    if not isinstance(call, str) or not call:
        raise InvalidBody(f"{place}.data.callId: Input should be a valid string")
    if not IDENTIFIER.fullmatch(call):
        raise NoTask
    if "result" in data:
        return Answer(call, data["result"])
    if "approve" in data:
        return Answer(call, {"approve": data["approve"], "reason": data.get("reason")})
    raise InvalidBody(f"{place}.data: give result, or approve: true or false")


def consent(text: str) -> bool | None:
    """What somebody answers who was asked for consent; None: neither yes nor no."""
    word = text.strip().strip(".!").lower()
    return True if word in _YES else False if word in _NO else None


def webhook(config: PushConfig, name: str) -> Webhook:
    """A config as it is kept, under that name."""
    given = config.authentication
    scheme, credentials = (given.scheme, given.credentials) if given else ("", "")
    return Webhook(name, config.url, config.token, scheme, credentials)


def push_config(kept: Webhook, task: TaskId) -> dict[str, Any]:
    """A config as clients see it."""
    made: dict[str, Any] = {"id": kept.id, "taskId": str(task), "url": kept.url, "token": kept.token}
    if kept.scheme:
        made["authentication"] = {"scheme": kept.scheme, "credentials": kept.credentials}
    return made
