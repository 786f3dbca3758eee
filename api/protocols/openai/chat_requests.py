"""What clients send to ``/v1/chat/completions``, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.api.protocols.openai.input_items import Input, read_part
from turnstream.api.protocols.openai.overridden import applied
from turnstream.api.protocols.openai.response_requests import Seed, Short, Stop, ToolChoice
from turnstream.api.turns.answers import Answer, answer_to
from turnstream.api.turns.ids import MARK
from turnstream.api.turns.messages import earlier_call, earlier_result, message_of, role_of, words_in
from turnstream.api.turns.overrides import MOST_TOOLS
from turnstream.shared.errors import InvalidBody
from turnstream.shared.protocol import explain

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.turns.overrides import Overrides
    from turnstream.shared.agents.config import AgentSpec

MOST_MESSAGES = 4000

_DELIVERY = frozenset({"stream", "stream_options"})
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant", "tool": "tool"}

# What clients sent before there were tools: to pass it over would lose the client's functions.
_OLDER = {"functions": "tools", "function_call": "tool_choice"}

# A request with a function of this name has a client that can be asked for consent.
APPROVE = "approve_"

Json = dict[str, Any]


class ChatBody(BaseModel):
    """A conversation, to be gone on with."""

    model_config = ConfigDict(extra="allow")

    # The name of the answer's form.
    form_field: ClassVar[str] = "response_format"

    model: Short | None = Field(
        None,
        description="The agent, of those of the key; or a model, where the agent lets a request name one.",
    )
    messages: list[Json] = Field(min_length=1, max_length=MOST_MESSAGES)
    stream: bool | None = None
    stream_options: Json | None = Field(
        None, description="`include_usage`: one more chunk, with what it cost."
    )
    tools: Annotated[list[Json], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Functions of the client. One named `approve_<tool>` lets it be asked for consent."
    )
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    stop: Stop = None
    seed: Seed = None
    n: int | None = Field(None, description="1: a request has one answer.")
    modalities: list[Any] | None = Field(None, description="An answer is text.")
    response_format: Json | None = None
    reasoning_effort: Short | None = None
    user: Short | None = Field(None, description="The session's user.")

    @property
    def max_output_tokens(self) -> int | None:
        """As responses call it."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def own_names(self) -> dict[str, str]:
        """How the request calls what agents know by other names."""
        most = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"max_tokens": most, "reasoning": "reasoning_effort"}

    @property
    def reasoning(self) -> Json:
        """As responses call it."""
        return {"effort": self.reasoning_effort}

    @property
    def text(self) -> Json:
        """As responses call it."""
        return {"format": self.response_format}


@dataclass(frozen=True, slots=True)
class Chat:
    """One request, read.

    Attributes:
        caller: who asks, with the agent that the request names.
        body: its fields.
        given: the whole conversation; answers, if it ends with those of calls of ours.
        newest: what stands behind the assistant's last message.
        earlier_users: how many of the user's messages stand before that.
        answered: the text of the assistant's last message; None where it is not only text.
        overrides: what it asks of the model, as far as that is applied.
        approvals: tools for which the client can be asked for consent.
        digest: of what is asked.
    """

    caller: Caller
    body: ChatBody
    given: Input
    newest: Input
    earlier_users: int
    answered: str | None
    overrides: Overrides
    approvals: tuple[str, ...]
    digest: str


def parse_chat(raw: bytes, caller: Caller) -> Chat:
    """Read the body of ``/v1/chat/completions``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
        NoModel: the key has no such agent, and its agent lets no request name a model.
        UnknownCall: a tool message is the answer to no call of ours, by an id of our form.
    """
    fields = json_object(raw)
    try:
        body = ChatBody.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    for name, instead in _OLDER.items():
        if fields.get(name):
            raise InvalidBody(f"{name}: not known here; send {instead}")
    if "audio" in (body.modalities or ()):
        raise InvalidBody("modalities: an answer is text")
    if not (body.user or "").isprintable():
        raise InvalidBody("user: printable characters only")
    approvals = tuple(
        name.removeprefix(APPROVE) for tool in body.tools or [] if (name := _name(tool)).startswith(APPROVE)
    )
    tools = [tool for tool in body.tools or [] if not _name(tool).startswith(APPROVE)]
    caller, overrides = applied(body.model_copy(update={"tools": tools}), caller)
    answers = _answers(body.messages)
    end = len(body.messages) - len(answers)
    last = max((at for at in range(end) if body.messages[at].get("role") == "assistant"), default=-1)
    before = _messages(body.messages[: last + 1], 0, caller.spec)
    newest = _messages(body.messages[last + 1 : end], last + 1, caller.spec)
    users = sum(message.role == "user" for message in before)
    asked = {name: value for name, value in fields.items() if name not in _DELIVERY}
    return Chat(
        caller=caller,
        body=body,
        given=Input([*before, *newest], answers),
        newest=Input(newest, answers),
        earlier_users=users,
        answered=_text_of(body.messages[last]) if last >= 0 else None,
        overrides=overrides,
        approvals=approvals,
        digest=digest_of(asked, raw),
    )


def _text_of(message: Json) -> str | None:
    content = message.get("content")
    return content if isinstance(content, str) and content else None


def _name(tool: Json) -> str:
    function = tool.get("function")
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def _answers(messages: list[Json]) -> list[Answer]:
    """Those of calls of ours, which the conversation ends with."""
    answers: list[Answer] = []
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        call = message.get("tool_call_id")
        if message.get("role") != "tool" or not isinstance(call, str) or MARK not in call:
            break
        answers.insert(0, _answer(message, messages, f"messages[{at}]"))
    return answers


def _answer(message: Json, messages: list[Json], place: str) -> Answer:
    text = words_in(message.get("content"), f"{place}.content")
    answer = answer_to(message["tool_call_id"], text, f"{place}.tool_call_id")
    asked = (
        call
        for each in messages
        if isinstance(each.get("tool_calls"), list)
        for call in each["tool_calls"]
        if isinstance(call, dict) and call.get("id") == message["tool_call_id"]
    )
    name = next((_name(call) for call in asked), "")
    return replace(answer, result=_consent(text)) if name.startswith(APPROVE) else answer


def _consent(text: str) -> Json:
    """What a client's function answers that is there to be asked for consent; anything else than a yes is a no."""
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        said = text.strip().lower() in ("yes", "true", "approve", "approved")
    if isinstance(said, dict):
        reason = said.get("reason")
        return {"approve": said.get("approve") is True, "reason": reason if isinstance(reason, str) else None}
    return {"approve": said is True}


def _messages(messages: list[Json], first: int, spec: AgentSpec) -> list[Any]:
    made = []
    for at, message in enumerate(messages, first):
        place = f"messages[{at}]"
        role = role_of(message, _ROLES, place)
        content = message.get("content")
        if role == "tool":
            call = message.get("tool_call_id")
            if not isinstance(call, str):
                raise InvalidBody(f"{place}.tool_call_id: Field required")
            made.append(earlier_result(call, words_in(content, f"{place}.content"), place))
            continue
        parts = _parts(content, place, spec)
        if parts or role != "assistant":
            made.append(message_of(role, parts, place))
        calls = message.get("tool_calls")
        for number, call in enumerate(calls if role == "assistant" and isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise InvalidBody(f"{place}.tool_calls[{number}].function: Field required")
            made.append(
                earlier_call(
                    call.get("id"),
                    function.get("name"),
                    function.get("arguments"),
                    f"{place}.tool_calls[{number}]",
                )
            )
    return made


def _parts(content: Any, place: str, spec: AgentSpec) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidBody(f"{place}.content: give text, or a list of parts")
    return [read_part(part, f"{place}.content[{number}]", spec) for number, part in enumerate(content)]
