"""What Agent API clients send to ``/process``, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from turnstream.api.http.body import digest_of, json_object
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE, AGENTSCOPE_JAVA, AGENTSCOPE_JAVA_001
from turnstream.api.turns.overrides import MOST_TOOLS, take_out
from turnstream.shared.errors import BadRequest, InvalidBody
from turnstream.shared.protocol import (
    AgentRequest,
    FileContent,
    Message,
    Role,
    explain,
)
from turnstream.shared.protocol.content import BY_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.api.protocols.agent_api.frames import Agentscope
    from turnstream.shared.agents.config import AgentSpec

MOST_USER_ID = 256

# Checking a message costs some ten microseconds, and everybody waits for it.
MOST_MESSAGES = 1000
MOST_PARTS = 2000
MOST_STOPS = 16

# How a turn is answered, which is no part of what is asked.
_DELIVERY = frozenset({"stream", "reconnect"})

# What the server sets itself on the messages that it takes.
_ENVELOPE = frozenset(
    {"id", "object", "status", "sequence_number", "sequenceNumber", "index", "delta", "msg_id", "msgId"}
)

# What ``dialect`` and ``strict`` ask for.
_EDITIONS = {
    ("", ""): AGENTSCOPE,
    (AGENTSCOPE.name, ""): AGENTSCOPE,
    (AGENTSCOPE_JAVA.name, ""): AGENTSCOPE_JAVA,
    (AGENTSCOPE_JAVA.name, "001"): AGENTSCOPE_JAVA_001,
}

COMPLETE = "complete"
_ON_PARK = ("follow", COMPLETE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The body of ``/process``.

    Attributes:
        request: what the agent lets a request set, and all that is no setting.
        ignored: names of the settings that were left out.
        digest: of what is asked: a repeat has the same, however its answer is delivered.
    """

    request: AgentRequest
    ignored: list[str]
    digest: str


def parse_process(body: bytes, spec: AgentSpec) -> Parsed:
    """Read the body of ``/process``.

    Raises:
        InvalidBody: it is not a JSON object, or a field is wrong; the text names the field.
    """
    fields = json_object(body)
    ignored = take_out(fields, spec)
    _bounded(fields)
    try:
        request = AgentRequest.model_validate(fields)
    except ValidationError as error:
        raise InvalidBody(explain(error)) from None
    for place, message in enumerate(request.input):
        _check_message(message, place, spec)
    user = request.user_id or ""
    if len(user) > MOST_USER_ID or not user.isprintable():
        raise InvalidBody(f"user_id: at most {MOST_USER_ID} printable characters")
    asked = {name: value for name, value in fields.items() if name not in _DELIVERY}
    asked["input"] = [_without_envelope(message) for message in fields.get("input") or []]
    return Parsed(request, ignored, digest_of(asked, body))


def _check_message(message: Message, place: int, spec: AgentSpec) -> None:
    """Refuse what no model would be told, rather than pass over it."""
    if message.role and message.role not in _ROLES:
        raise InvalidBody(f"input[{place}].role: must be one of {', '.join(_ROLES)}")
    for index, part in enumerate(message.content or []):
        if part.type not in BY_TYPE:
            raise InvalidBody(f"input[{place}].content[{index}].type: must be one of {', '.join(BY_TYPE)}")
        if isinstance(part, FileContent) and part.file_id and not spec.file_ids:
            raise InvalidBody(
                f"input[{place}].content[{index}].file_id: this agent takes no files by id; send the file, or a link to it"
            )


_ROLES = tuple(role.value for role in Role)


def _without_envelope(message: Any) -> Any:
    """What a message, or a part of one, says; clients make its ids anew when they make their request anew."""
    if not isinstance(message, dict):
        return message
    said = message
    if not _ENVELOPE.isdisjoint(message):
        said = {name: value for name, value in message.items() if name not in _ENVELOPE}
    if isinstance(content := message.get("content"), list):
        said = {**said, "content": [_without_envelope(part) for part in content]}
    return said


def _bounded(fields: dict[str, Any]) -> None:
    """Refuse what would take long to check: tens of thousands of tiny messages fit into a body."""
    for name, most in (("input", MOST_MESSAGES), ("tools", MOST_TOOLS), ("stop", MOST_STOPS)):
        if isinstance(given := fields.get(name), list) and len(given) > most:
            raise InvalidBody(f"{name}: at most {most}{' messages' if name == 'input' else ''}")
    messages = fields.get("input")
    parts = sum(
        len(message["content"])
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and isinstance(message.get("content"), list)
    )
    if parts > MOST_PARTS:
        raise InvalidBody(f"input: at most {MOST_PARTS} content parts")


def dialect_of(request: Request) -> Agentscope:
    """The edition of the protocol that the client reads: ``?dialect=``, or a parameter of ``Accept``.

    Raises:
        BadRequest: we do not speak it.
    """
    name, strict = request.query_params.get("dialect"), request.query_params.get("strict", "")
    if name is None:
        accepted = request.headers.get("accept", "").replace(" ", "").replace('"', "").lower()
        name = "java" if "dialect=java" in accepted else ""
        strict = strict or ("001" if "strict=001" in accepted else "")
    edition = _EDITIONS.get((name, strict))
    if edition is None and strict:
        raise BadRequest("strict: only '001' is known, with dialect=java")
    if edition is None:
        raise BadRequest(f"dialect: give {AGENTSCOPE.name!r} or {AGENTSCOPE_JAVA.name!r}")
    return edition


def on_park_of(request: Request, spec: AgentSpec) -> str:
    """What becomes of the stream where the client is asked: ``follow`` or ``complete``, of the query, else the agent's.

    Raises:
        BadRequest: it is another word.
    """
    word = request.query_params.get("on_park", spec.on_park)
    if word not in _ON_PARK:
        raise BadRequest(f"on_park: give {' or '.join(map(repr, _ON_PARK))}")
    return word
