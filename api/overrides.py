"""What a request asks of its agent's model: allowed by the agent, or refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from shared.agents import OVERRIDES, ClientTool
from shared.errors import InvalidBody

if TYPE_CHECKING:
    from shared.agents import AgentSpec
    from shared.protocol import AgentRequest

# More would fill the model's context before anything is asked.
MOST_TOOLS = 128
MOST_TOOLS_BYTES = 128 * 1024

MOST_MODEL_NAME = 128


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was asked for, and allowed.

    Attributes:
        settings: ``model``, ``temperature`` …, as the request named them.
        tools: functions of the client, for this turn.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    tools: tuple[ClientTool, ...] = ()


NONE = Overrides()


def overrides_of(request: AgentRequest, spec: AgentSpec) -> Overrides:
    """Read what the request asks for.

    Raises:
        InvalidBody: the agent does not allow it, or it cannot be honoured; the text names the field.
    """
    given: dict[str, Any] = {
        name: value for name in OVERRIDES if (value := getattr(request, name)) not in (None, [])
    }
    for name in given:
        if name not in spec.allow_overrides:
            raise InvalidBody(f"{name}: this agent does not let a request set it; leave it out")
    tools = _tools(given.pop("tools", []), spec)
    model = given.get("model")
    if model is not None and not (model.strip() and len(model) <= MOST_MODEL_NAME and model.isprintable()):
        raise InvalidBody(f"model: the name of a model, at most {MOST_MODEL_NAME} printable characters")
    stop = given.get("stop")
    if stop is not None and not all([stop] if isinstance(stop, str) else stop):
        raise InvalidBody("stop: must not be empty")
    return Overrides(given, tools)


def _tools(given: list[Any], spec: AgentSpec) -> tuple[ClientTool, ...]:
    if len(given) > MOST_TOOLS:
        raise InvalidBody(f"tools: at most {MOST_TOOLS}")
    try:
        size = len(orjson.dumps(given, default=_fields))
    except orjson.JSONEncodeError:
        raise InvalidBody("tools: nested too deep") from None
    if size > MOST_TOOLS_BYTES:
        raise InvalidBody(f"tools: at most {MOST_TOOLS_BYTES // 1024} KiB")
    taken = {reference.partition(":")[2] for reference in spec.tools}
    taken |= {tool.name for tool in spec.client_tools} | set(spec.subagents)
    tools: list[ClientTool] = []
    for place, each in enumerate(given):
        tool = _tool(each, f"tools[{place}]")
        if tool.name in taken:
            raise InvalidBody(f"tools[{place}].function.name: {tool.name!r} is taken by another tool")
        taken.add(tool.name)
        tools.append(tool)
    return tuple(tools)


def _tool(given: Any, place: str) -> ClientTool:
    fields = given if isinstance(given, dict) else _fields(given)
    if fields.get("type", "function") != "function":
        raise InvalidBody(f"{place}.type: only 'function' is known")
    function = fields.get("function")
    if not isinstance(function, dict):
        raise InvalidBody(f"{place}.function: Field required")
    known = {name: function[name] for name in ClientTool.model_fields if function.get(name) is not None}
    try:
        return ClientTool.model_validate(known)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise InvalidBody(f"{place}.function.{path}: {first['msg']}") from None


def _fields(given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = given.model_dump(exclude_unset=True)
    return fields
