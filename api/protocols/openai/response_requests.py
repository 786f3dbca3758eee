"""What clients send to ``/v1/responses``, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.api.protocols.openai.input_items import Input, read_items
from turnstream.api.protocols.openai.overridden import applied
from turnstream.api.protocols.openai.resource import ECHOED
from turnstream.api.turns.ids import ConversationId, ResponseId
from turnstream.api.turns.overrides import MOST_TOOLS
from turnstream.shared.agents.json_depth import MOST_LEVELS, too_deep
from turnstream.shared.errors import InvalidBody
from turnstream.shared.protocol import explain

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.turns.overrides import Overrides

# How a response is delivered, which is no part of what is asked.
_DELIVERY = frozenset({"stream", "stream_options", "background"})

# Kept with the turn, and repeated in each of its responses.
MOST_ECHO_BYTES = 256 * 1024

Short = Annotated[str, StringConstraints(max_length=256)]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]
# Of chat completions; OpenAI's responses have neither.
Stop = str | Annotated[list[str], Field(max_length=16)] | None
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None


ToolChoice = Literal["none", "auto", "required"] | dict[str, Any] | None


# What else a tool may be chosen by; tools of OpenAI's own there are none.
_CHOICES = ("function", "allowed_tools", "mcp")
_TOLD_OF_SERVERS = ("type", "server_label", "server_url")


class CreateResponse(BaseModel):
    """A turn, or the answers to calls."""

    model_config = ConfigDict(extra="allow")

    # The name of the answer's form, and how the request calls what agents know by other names.
    form_field: ClassVar[str] = "text.format"
    own_names: ClassVar[dict[str, str]] = {"max_tokens": "max_output_tokens"}

    model: Short | None = Field(
        None,
        description="The agent, of those of the key; or a model, where the agent lets a request name one.",
    )
    input: str | list[Any] | None = Field(
        None, description="Text; or items: messages, `function_call_output`, `mcp_approval_response`."
    )
    instructions: str | None = Field(None, description="A system message of this turn.")
    # Ids of any length: what is none of ours is not found.
    previous_response_id: str | None = Field(
        None, description="The session's newest response: the turn goes on from there."
    )
    conversation: str | dict[str, Any] | None = Field(None, description="The session, `conv_…`.")
    store: bool | None = Field(None, description="False: the response cannot be retrieved.")
    background: bool | None = Field(None, description="True: answer at once, with the response as it is.")
    stream: bool | None = Field(None, description="True: events as they come.")
    stream_options: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Functions of the client, `type` `function`."
    )
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stop: Stop = None
    seed: Seed = None
    max_output_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    max_tool_calls: int | None = Field(None, ge=1, le=2**31 - 1)
    text: dict[str, Any] | None = Field(None, description="`format`: how the answer is to be written.")
    reasoning: dict[str, Any] | None = None
    metadata: Metadata | None = Field(None, description="Told again with the response.")
    safety_identifier: Short | None = Field(None, description="The session's user.")
    user: Short | None = Field(None, description="The older name of `safety_identifier`.")
    prompt_cache_key: Short | None = None
    service_tier: Short | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read.

    Attributes:
        caller: who asks, with the agent that the request names.
        body: its fields.
        given: its input.
        overrides: what it asks of the model, as far as that is applied.
        echo: what the response tells of it.
        session: where it goes on, if anywhere; the session of ``previous`` or of the conversation.
        previous: the response that it goes on from.
        digest: of what is asked.
    """

    caller: Caller
    body: CreateResponse
    given: Input
    overrides: Overrides
    echo: dict[str, Any]
    session: str | None
    previous: ResponseId | None
    digest: str

    @property
    def user(self) -> str:
        """The session's user."""
        return self.body.safety_identifier or self.body.user or ""


def parse_response(raw: bytes, caller: Caller) -> Asked:
    """Read the body of ``/v1/responses``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
        NoModel: the key has no such agent, and its agent lets no request name a model.
        NoTask, NoSession: an id is none of ours.
    """
    fields = json_object(raw)
    try:
        body = CreateResponse.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    if fields.get("prompt") is not None:
        raise InvalidBody("prompt: there are no stored prompts; send instructions and input")
    if not (body.user or "").isprintable() or not (body.safety_identifier or "").isprintable():
        raise InvalidBody("safety_identifier: printable characters only")
    if body.background and body.store is False:
        raise InvalidBody(
            "background: nobody could retrieve a response with store false; leave one of them out"
        )
    previous = ResponseId.parse(body.previous_response_id) if body.previous_response_id else None
    conversation = _conversation(body)
    if previous and conversation:
        raise InvalidBody("previous_response_id: give either this or conversation")
    session = previous.session if previous else conversation
    caller, overrides = applied(body, caller)
    given = read_items(body.input, caller.spec, known=session is not None)
    if body.instructions:
        given = given.instructed(body.instructions)
    _check_texts(body)
    echo = {name: value for name in ECHOED if (value := getattr(body, name)) not in (None, "")}
    echo |= {"model": body.model or caller.spec.name}
    if conversation:
        echo["conversation"] = {"id": str(ConversationId(conversation))}
    if overrides.ignored:
        # Where else would a client of OpenAI's look?
        echo["metadata"] = {**(body.metadata or {}), "turnstream_ignored": ",".join(overrides.ignored)[:512]}
    _check_echo(echo)
    asked = {name: value for name, value in fields.items() if name not in _DELIVERY}
    return Asked(caller, body, given, overrides, echo, session, previous, digest_of(asked, raw))


def _conversation(body: CreateResponse) -> str | None:
    given = body.conversation
    if isinstance(given, dict):
        given = given.get("id")
        if not isinstance(given, str):
            raise InvalidBody("conversation.id: Field required")
    return ConversationId.parse(given).session if given else None


def _check_texts(body: CreateResponse) -> None:
    """See to it that what is repeated as it was asked is of the types that clients read there."""
    form = (body.text or {}).get("format")
    if not (form is None or isinstance(form, dict)):
        raise InvalidBody("text.format: Input should be an object")
    choice = body.tool_choice if isinstance(body.tool_choice, dict) else None
    if choice is not None and choice.get("type") not in _CHOICES:
        raise InvalidBody(f"tool_choice.type: must be one of {', '.join(_CHOICES)}")
    for field, given, names in (
        ("text", body.text, ("verbosity",)),
        ("text.format", form, ("type", "name", "description")),
        ("reasoning", body.reasoning, ("effort", "summary", "generate_summary", "context")),
        ("tool_choice", choice and _flat(choice), ("name", "server_label", "mode")),
        *((f"tools[{at}]", tool, ("server_url",)) for at, tool in enumerate(body.tools or ())),
    ):
        for name in names:
            if not isinstance((given or {}).get(name), str | None):
                raise InvalidBody(f"{field}.{name}: send text")


def _check_echo(echo: dict[str, Any]) -> None:
    """Fill in what clients require of what is repeated, and refuse what is too much to be kept."""
    if "text" in echo and not echo["text"].get("format"):
        echo["text"] = {**echo["text"], "format": {"type": "text"}}
    if "reasoning" in echo:
        echo["reasoning"] = {"effort": None, "summary": None, **echo["reasoning"]}
    echo["tools"] = [_tool(tool) for tool in echo.get("tools") or []]
    if isinstance(choice := echo.get("tool_choice"), dict):
        echo["tool_choice"] = _flat(choice)
    for name, value in echo.items():
        if too_deep(value):
            raise InvalidBody(f"{name}: nested deeper than {MOST_LEVELS} levels")
    size = sum(len(str(value)) for value in echo.values())
    if size > MOST_ECHO_BYTES:
        raise InvalidBody(f"instructions, tools: at most {MOST_ECHO_BYTES // 1024} KiB together")


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        # Nothing that may be a secret: it may come with headers and a token.
        return {name: tool[name] for name in _TOLD_OF_SERVERS if tool.get(name) is not None}
    return {"description": None, "parameters": None, "strict": None, **_flat(tool)}


def _flat(given: dict[str, Any]) -> dict[str, Any]:
    """A function whose fields are nested, as in chat completions, as responses have it."""
    function = given.get("function")
    return {"type": given["type"], **function} if isinstance(function, dict) else given
