"""What a request asks of its agent's model: allowed by the agent and checked, or not applied and named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from turnstream.shared.agents import json_schema
from turnstream.shared.agents.config import OVERRIDES, ClientTool
from turnstream.shared.errors import InvalidBody

if TYPE_CHECKING:
    from turnstream.shared.agents.config import AgentSpec
    from turnstream.shared.protocol import AgentRequest

# More would fill the model's context before anything is asked.
MOST_TOOLS = 128
MOST_TOOLS_BYTES = 128 * 1024
# To look their schemas over takes some tenths of a millisecond for each object, and some milliseconds for a pattern.
MOST_TOOLS_OBJECTS = 2_000
MOST_TOOLS_PATTERNS = 64

MOST_MODEL_NAME = 128

# What the protocols' clients know, in the order in which the response names it. Instructions are the agent's alone.
_KNOWN = (*OVERRIDES[:1], "instructions", *OVERRIDES[1:])
_SPELLINGS = {name: {name, to_camel(name)} for name in _KNOWN}
_ALL_SPELLINGS = frozenset().union(*_SPELLINGS.values())


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was asked for.

    Attributes:
        settings: ``model``, ``temperature`` …, as the request named them; allowed by the agent.
        tools: functions of the client, for this turn; allowed by the agent.
        ignored: names of what is not applied.
        output_schema: JSON Schema that the answer is to fit; allowed by the agent.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    tools: tuple[ClientTool, ...] = ()
    ignored: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None


NONE = Overrides()


def take_out(fields: dict[str, Any], spec: AgentSpec) -> list[str]:
    """Take out of a request's fields what the agent does not let it set; the names of those that asked for something.

    Before they are validated: what is not applied costs nothing, and may be anything.

    Raises:
        InvalidBody: the agent is strict; the text names the field.
    """
    ignored: list[str] = []
    if _ALL_SPELLINGS.isdisjoint(fields):
        return ignored
    for name in _KNOWN:
        if name not in spec.allow_overrides:
            given = [fields.pop(spelling, None) for spelling in _SPELLINGS[name]]
            if any(value not in _NOTHING for value in given):
                _refuse_if_strict(name, spec)
                ignored.append(name)
    return ignored


# Many clients write every field that they know.
_NOTHING: tuple[Any, ...] = (None, "", [])


def overrides_of(request: AgentRequest, spec: AgentSpec, ignored: list[str]) -> Overrides:
    """Read what the request asks for, of what the agent allows; ``ignored`` is what `take_out` took.

    Raises:
        InvalidBody: it cannot be honoured, or the agent is strict; the text names the field.
    """
    given: dict[str, Any] = {
        name: value for name in OVERRIDES if (value := getattr(request, name)) not in _NOTHING
    }
    if request.n is not None and request.n > 1:
        _refuse_if_strict("n", spec)
        ignored = [*ignored, "n"]
    tools = _tools(given.pop("tools", []), spec)
    model = given.get("model")
    if model is not None and not (model.strip() and len(model) <= MOST_MODEL_NAME and model.isprintable()):
        raise InvalidBody(f"model: the name of a model, at most {MOST_MODEL_NAME} printable characters")
    stop = given.get("stop")
    if stop is not None and not all([stop] if isinstance(stop, str) else stop):
        raise InvalidBody("stop: must not be empty")
    return Overrides(given, tools, tuple(ignored))


def _refuse_if_strict(name: str, spec: AgentSpec) -> None:
    if spec.strict_overrides:
        raise InvalidBody(f"{name}: this agent does not let a request set it; leave it out")


def _tools(given: list[Any], spec: AgentSpec) -> tuple[ClientTool, ...]:
    if not given:
        return ()
    try:
        text = orjson.dumps(given, default=_fields)
    except orjson.JSONEncodeError:
        raise InvalidBody("tools: nested too deep") from None
    if len(text) > MOST_TOOLS_BYTES:
        raise InvalidBody(f"tools: at most {MOST_TOOLS_BYTES // 1024} KiB")
    if text.count(b"{") > MOST_TOOLS_OBJECTS:
        raise InvalidBody(f"tools: at most {MOST_TOOLS_OBJECTS} objects in all")
    taken = {reference.partition(":")[2] for reference in spec.tools}
    taken |= {tool.name for tool in spec.client_tools} | set(spec.subagents)
    tools: list[ClientTool] = []
    patterns = 0
    for place, each in enumerate(given):
        tool = _tool(each, f"tools[{place}]")
        if tool.name in taken:
            raise InvalidBody(f"tools[{place}].function.name: {tool.name!r} is taken by another tool")
        patterns += json_schema.patterns(tool.parameters)
        if patterns > MOST_TOOLS_PATTERNS:
            raise InvalidBody(f"tools: at most {MOST_TOOLS_PATTERNS} patterns in all")
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
    # No schema, or an empty one, is that of a function without parameters.
    known = {name: function[name] for name in ClientTool.model_fields if function.get(name) not in (None, {})}
    try:
        return ClientTool.model_validate(known)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise InvalidBody(f"{place}.function.{path}: {first['msg']}") from None


def _fields(given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = given.model_dump(exclude_unset=True)
    return fields
