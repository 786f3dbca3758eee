"""Requests (Agent API protocol §5)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from turnstream.shared.names import FURTHER, NAME, NAME_IN_WORDS
from turnstream.shared.protocol.base import ProtocolModel
from turnstream.shared.protocol.message import Message
from turnstream.shared.protocol.tools import Tool


def _empty_is_absent(value: object) -> object:
    return None if value == "" else value


Id = Annotated[
    Annotated[str, StringConstraints(pattern=f"^{NAME}$")] | None,
    BeforeValidator(_empty_is_absent),
]
"""An id that a client chooses: up to 128 of letters, digits and ``_ . : @ -``, not ``.`` or ``..``. Empty means none."""


ResponseId = Annotated[
    Annotated[str, StringConstraints(pattern=f"^{NAME}{FURTHER}$")] | None,
    BeforeValidator(_empty_is_absent),
]
"""An `Id`, or of a response that goes on with its turn: with ``~`` and its number behind it."""


class BaseRequest(ProtocolModel):
    """What is asked, and how the answer is delivered."""

    reconnect: bool = False
    """True: follow the session's running turn instead of starting one; ``input`` may then be absent."""

    input: Annotated[list[Message], Field(fail_fast=True)] = Field(
        default_factory=list, validate_default=True
    )
    """The messages of this turn, at least one."""

    stream: bool = True
    """True: events as they come. False: one response at the end."""

    id: ResponseId = None
    """Becomes the response id; sending the request again with it finds the same turn."""

    @field_validator("input")
    @classmethod
    def _something_to_answer(cls, value: list[Message], info: ValidationInfo) -> list[Message]:
        if not value and not info.data.get("reconnect"):
            raise PydanticCustomError(
                "input_missing", "Give at least one message, or set 'reconnect' to true"
            )
        return value


class AgentRequest(BaseRequest):
    """A turn in a session, with settings for the model."""

    model: str | None = None
    """The model to use, where the agent allows a choice."""

    top_p: float | None = Field(default=None, ge=0, le=1)
    """Nucleus sampling: the share of probability considered, 0 to 1."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """Randomness, 0 to 2; some models take less."""

    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Dislike of repeating words, -2 to 2."""

    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Liking for new topics, -2 to 2."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Tokens that may be generated, at most."""

    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    """Text, or texts, at which generation stops."""

    n: int | None = Field(default=1, ge=1, le=5)
    """How many answers, 1 to 5. One is given; a larger number is named in the response's ``metadata.ignored``."""

    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    """The same seed and settings give the same answer, as far as the model can."""

    tools: (
        Annotated[
            list[Annotated[Tool | dict[str, Any], Field(union_mode="left_to_right")]], Field(fail_fast=True)
        ]
        | None
    ) = None
    """Functions of the client that the model may call."""

    session_id: Id = None
    """The session; absent: a new one, named in every response."""

    user_id: str | None = None
    """Whom the session belongs to; fixed when the session is created."""

    response_id: ResponseId = None
    """The older name of ``id``; ``id`` wins when both are given."""

    metadata: dict[str, Any] | None = None
    """Whatever the client attaches; passed on untouched."""


# More would hide the first ones.
_MOST_PROBLEMS = 5


def explain(error: ValidationError) -> str:
    """What is wrong with a request in one line, each field named: ``input[0].content[1].text: …; n: …``."""
    problems: dict[str, str] = {}
    # Without the input: it may be a user's words.
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        # Of what the alternatives of a union have against a field, the first is enough.
        problems.setdefault(_path(problem["loc"]), _IN_JSON.get(problem["type"], problem["msg"]))
    told = [f"{path}: {problem}" if path else problem for path, problem in problems.items()]
    return "; ".join(told[:_MOST_PROBLEMS])


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for place, step in enumerate(loc):
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_alternative(loc[:place]):
            path += f".{step}" if path else step
    return path


# What is wrong, in the words of JSON where pydantic has those of Python.
_IN_JSON = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "Input should be an object"),
    "list_type": "Input should be an array",
    "too_short": "Input should not be empty",
    # Ids are all that has a pattern here.
    "string_pattern_mismatch": f"An id is made of {NAME_IN_WORDS}",
}


def _is_alternative(before: tuple[int | str, ...]) -> bool:
    """Whether a union put the next step there: the name of what it tried, which no client wrote."""
    match before:
        case ("input", int(), "content", int()) | ("tools", int()) | ("stop",):
            return True
        case ("input",) | ("tool_choice",) | ("conversation",):
            return True
    return False
