"""What the AI SDK's transport posts, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.api.protocols.ai_sdk.chunks import APPROVE
from turnstream.api.turns.answers import Answer, answer_to
from turnstream.api.turns.messages import earlier_call, earlier_result, message_of
from turnstream.api.turns.overrides import overrides_of, take_out
from turnstream.shared.errors import InvalidBody
from turnstream.shared.protocol import AgentRequest, explain

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.turns.overrides import Overrides
    from turnstream.shared.protocol import Message

Json = dict[str, Any]

MOST_MESSAGES = 1000

# What pages, or the SDK's own settings of a call, name otherwise.
_SPELLINGS = {"maxOutputTokens": "max_tokens", "stopSequences": "stop"}
_SETTINGS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "max_tokens", "stop", "seed")
_CAMEL = {"topP": "top_p", "frequencyPenalty": "frequency_penalty", "presencePenalty": "presence_penalty"}

_GIVEN = ("output-available", "output-error", "approval-responded")


class UiMessage(BaseModel):
    """A message as a page has it."""

    model_config = ConfigDict(extra="allow")

    id: str = Field("", max_length=256)
    role: Literal["user", "assistant", "system"]
    parts: list[Json] = Field(max_length=2000)


class ChatPost(BaseModel):
    """A chat, to be gone on with: what `useChat` sends, or only its last message."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(min_length=1, max_length=256, description="The chat: its session.")
    messages: list[UiMessage] | None = Field(
        None,
        description=f"Of a chat that is known, only the last one counts; another one begins with at most {MOST_MESSAGES}.",
    )
    message: UiMessage | None = Field(None, description="In place of `messages`: the last one.")
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = Field(  # noqa: N815 - as it is sent
        None, max_length=256, description="The message that is edited, or to be answered anew."
    )
    model: str | None = Field(None, description="The agent, of those of the key.")
    user: str | None = Field(None, max_length=256, description="The session's user.")


@dataclass(frozen=True, slots=True)
class Posted:
    """One request, read.

    Attributes:
        caller: who asks, with the agent that the request names.
        body: its fields.
        last: its last message.
        said: what the last message says, if it is the user's.
        earlier: what the messages before the last one say, or why they cannot be read.
        answers: what the last message answers, if it is the assistant's, in the order of its parts.
        overrides: what is asked of the model, as far as that is applied.
        digest: of what is asked.
    """

    caller: Caller
    body: ChatPost
    last: UiMessage
    said: list[Message]
    earlier: Earlier | InvalidBody
    answers: list[Answer]
    overrides: Overrides
    digest: str

    @property
    def anew(self) -> bool:
        """Whether a turn is to be taken in place of one that was."""
        return self.body.trigger == "regenerate-message" or self.body.messageId == self.last.id

    def whole(self) -> tuple[list[Message], list[str]]:
        """The whole conversation, for where the server knows none, and the ids of the user's messages in it.

        Raises:
            InvalidBody: a message before the last one cannot be read.
        """
        if isinstance(self.earlier, InvalidBody):
            raise self.earlier
        return [*self.earlier.messages, *self.said], [*self.earlier.ids, self.last.id]

    def to(self, caller: Caller) -> Posted:
        """The same request, to the caller's agent.

        Raises:
            InvalidBody: a setting is wrong.
        """
        caller, overrides = _applied(self.body, caller)
        return replace(self, caller=caller, overrides=overrides)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was said before the last message, as a page has it.

    Attributes:
        messages: as those of an input.
        ids: of the user's messages.
    """

    messages: list[Message]
    ids: list[str]


_MESSAGES = TypeAdapter(list[UiMessage])


def parse_chat(raw: bytes, caller: Caller) -> Posted:
    """Read the body of a chat.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
        UnknownCall: an answer is to no call.
    """
    fields = json_object(raw)
    given: Any = fields.get("messages")
    before: list[Any] = given[:-1] if isinstance(given, list) else []
    place = f"messages[{len(before)}]"
    try:
        body = ChatPost.model_validate({**fields, "messages": given[-1:]} if before else fields)
    except ValidationError as error:
        raise InvalidBody(explain(error).replace("messages[0]", place)) from None
    messages = body.messages or ([body.message] if body.message else [])
    if not messages:
        raise InvalidBody("messages: send at least one")
    if not (body.user or "").isprintable():
        raise InvalidBody("user: printable characters only")
    place = place if body.messages else "message"
    last = messages[-1]
    caller, overrides = _applied(body, caller)
    said, answers = [], []
    if last.role == "assistant":
        answers = _answers(last, place)
    else:
        said = _messages(last, place)
        if last.role != "user" or not said:
            raise InvalidBody(
                f"{place}: the user's, with text or a file, or the assistant's, with what is answered"
            )
    return Posted(
        caller=caller,
        body=body,
        last=last,
        said=said,
        earlier=_earlier(before),
        answers=answers,
        overrides=overrides,
        digest=digest_of({"message": last.model_dump(), "model": body.model}, raw),
    )


def _earlier(given: list[Any]) -> Earlier | InvalidBody:
    if len(given) >= MOST_MESSAGES:
        return InvalidBody(
            f"messages: the chat is not known, and begins with at most {MOST_MESSAGES}: send the newest of them"
        )
    made: list[Message] = []
    ids: list[str] = []
    try:
        for at, message in enumerate(_MESSAGES.validate_python(given)):
            read = _messages(message, f"messages[{at}]")
            made += read
            ids += [message.id for _ in read if message.role == "user"]
    except ValidationError as error:
        return InvalidBody(f"messages{explain(error)}")
    except InvalidBody as error:
        return error
    return Earlier(made, ids)


def _applied(body: ChatPost, caller: Caller) -> tuple[Caller, Overrides]:
    """The caller with the agent that is named, and what that applies of the rest; a name that is no agent's is the agent's to allow."""
    named = caller.speaking_to(body.model) if body.model else None
    caller, model = (named, None) if named else (caller, body.model)
    more = body.model_extra or {}
    spelled = {_SPELLINGS.get(name, _CAMEL.get(name, name)): value for name, value in more.items()}
    fields: Json = {name: spelled[name] for name in _SETTINGS if spelled.get(name) is not None}
    tools = more.get("tools")
    if isinstance(tools, dict):
        # As assistant-ui sends the page's own.
        tools = [
            {"type": "function", "function": {"name": name, **tool}}
            for name, tool in tools.items()
            if isinstance(tool, dict)
        ]
    fields |= {"input": [], "reconnect": True, "model": model, "tools": tools or []}
    ignored = take_out(fields, caller.spec)
    try:
        request = AgentRequest.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    return caller, overrides_of(request, caller.spec, ignored)


def _answers(message: UiMessage, place: str) -> list[Answer]:
    """What a message's parts answer; which of it is awaited, the session knows."""
    answers = []
    for at, part in enumerate(message.parts):
        call, state = part.get("toolCallId"), part.get("state")
        if not call or state not in _GIVEN or part.get("providerExecuted"):
            continue
        where = f"{place}.parts[{at}]"
        if state == "approval-responded":
            approval = part.get("approval")
            if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
                raise InvalidBody(f"{where}.approval.approved: send true or false")
            reason = approval.get("reason")
            result: Any = {
                "approve": approval["approved"],
                "reason": reason if isinstance(reason, str) else None,
            }
            answers.append(answer_to(approval.get("id"), result, f"{where}.approval.id"))
            continue
        output = (
            part.get("output") if state == "output-available" else {"error": str(part.get("errorText") or "")}
        )
        if isinstance(call, str) and call.startswith(APPROVE):
            call, output = call.removeprefix(APPROVE), _consent(output)
        answers.append(answer_to(call, output, f"{where}.toolCallId"))
    return answers


def _consent(output: Any) -> Json:
    """What a page answers that has no approvals; anything else than a yes is a no."""
    if isinstance(output, dict):
        reason = output.get("reason")
        return {
            "approve": output.get("approve") is True,
            "reason": reason if isinstance(reason, str) else None,
        }
    return {
        "approve": output is True or str(output).strip().lower() in ("yes", "true", "approve", "approved")
    }


def _messages(message: UiMessage, place: str) -> list[Message]:
    """A message as those of an input: of an assistant's, each call and its result are messages of their own."""
    made: list[Message] = []
    parts: list[Json] = []

    def say() -> None:
        if parts:
            made.append(message_of(message.role, [*parts], place))
            parts.clear()

    for at, part in enumerate(message.parts):
        kind = str(part.get("type"))
        where = f"{place}.parts[{at}]"
        if kind == "text":
            if text := part.get("text"):
                parts.append({"type": "text", "text": text})
        elif kind == "file":
            parts.append(_file(part, where))
        elif kind == "dynamic-tool" or kind.startswith("tool-"):
            if part.get("state") in ("output-available", "output-error"):
                say()
                name = part.get("toolName") or kind.removeprefix("tool-")
                given = _json(part.get("input"), f"{where}.input")
                made.append(earlier_call(part.get("toolCallId"), name, given, where))
                output = part.get("output") if part["state"] == "output-available" else part.get("errorText")
                text = output if isinstance(output, str) else _json(output, f"{where}.output")
                made.append(earlier_result(part.get("toolCallId"), text, where))
        elif message.role == "user" and not kind.startswith("data-"):
            raise InvalidBody(f"{where}.type: a user's message has text, files and data-* parts")
    say()
    return made


def _json(value: Any, place: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise InvalidBody(f"{place}: nested too deep") from None


def _file(part: Json, place: str) -> Json:
    url, kind = part.get("url"), str(part.get("mediaType") or "")
    if not isinstance(url, str) or not url:
        raise InvalidBody(f"{place}.url: Field required")
    if kind.startswith("image/"):
        return {"type": "image", "image_url": url}
    head, comma, data = url.partition(",")
    if kind.startswith("audio/") and comma and head.endswith(";base64"):
        return {"type": "audio", "data": data, "format": kind.removeprefix("audio/")}
    field = "file_data" if url.startswith("data:") else "file_url"
    named = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return {"type": "file", field: url, **named}
