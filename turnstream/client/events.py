"""Events as a client gets them: the protocol's models; what this version does not know survives."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from turnstream.shared.protocol import ENDED, AgentResponse, AnyContent, Content, Event, Message

Part: TypeAlias = Content
"""A content part, or a piece of one: `TextContent`, `DataContent`, …; plain `Content` for unknown types."""

TurnEvent: TypeAlias = AgentResponse | Message | Part | Event
"""What a stream tells; plain `Event` for an ``object`` that this version does not know."""

_CONTENT: TypeAdapter[Content] = TypeAdapter(AnyContent)


def read_event(data: str) -> TurnEvent:
    """One event's JSON as a model.

    Raises:
        ValueError: it is not a JSON object.
    """
    raw = from_json(data)
    if not isinstance(raw, dict):
        raise ValueError("an event is a JSON object")  # noqa: TRY004 - the text is wrong, not its type
    try:
        match raw.get("object"):
            case "content":
                return _CONTENT.validate_python(raw)
            case "message":
                return Message.model_validate(raw)
            case "response":
                return AgentResponse.model_validate(raw)
    except ValidationError:
        # A later edition may change a field's type; its event is worth more than our idea of it.
        pass
    return _as_it_came(raw)


def is_end(event: TurnEvent, response: str) -> bool:
    """Whether this is the last event of a response."""
    if not isinstance(event, AgentResponse) or event.status not in ENDED:
        return False
    # The server takes a task's id for its response's, and so does whoever reads the history.
    return (event.id or "").removeprefix("response_") == response.removeprefix("response_")


def _as_it_came(raw: dict[str, Any]) -> Event:
    fields = {"sequence_number": None, "object": "", "status": None, "error": None} | raw
    return Event.model_construct(**fields)
