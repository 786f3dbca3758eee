"""Which agent answers, and what a request asks of its model: OpenAI's fields as those that agents allow or not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnstream.api.turns.overrides import overrides_of, take_out
from turnstream.shared.agents import json_schema
from turnstream.shared.agents.config import OUTPUT_SCHEMA
from turnstream.shared.errors import InvalidBody, NoModel
from turnstream.shared.protocol import AgentRequest

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.turns.overrides import Overrides
    from turnstream.shared.agents.config import AgentSpec

Json = dict[str, Any]

# What no agent can be asked for, with what it asks for that is the usual anyway.
_USUAL: dict[str, tuple[Any, ...]] = {
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True),
    "max_tool_calls": (None,),
    "top_logprobs": (None, 0),
    "logprobs": (None, False),
    "logit_bias": (None, {}),
    "prediction": (None,),
}

# The place of a function's field, as it is where functions are nested.
_FLAT = re.compile(r"(tools\[(\d+)\])\.function")

NO_MODEL = "No such model: GET /v1/models lists those of this API key."


def applied(body: Any, caller: Caller) -> tuple[Caller, Overrides]:
    """The caller with the agent that the request names, and what that agent applies of the request.

    Raises:
        NoModel: there is no such agent or model for this key.
        InvalidBody: it asks for what its agent cannot do, or does not let it; the text names the field, as the request does.
    """
    caller, model = _agent(caller, body.model)
    try:
        overrides = _overrides(body, caller.spec, model)
    except InvalidBody as error:
        raise InvalidBody(_in_own_names(error.public_text, body)) from None
    ignored = tuple(body.own_names.get(name, name) for name in overrides.ignored)
    return caller, replace(overrides, ignored=ignored)


def _in_own_names(text: str, body: Any) -> str:
    field, mark, rest = text.partition(": ")
    if flat := _FLAT.match(field):
        tool = body.tools[int(flat[2])]
        field = field if isinstance(tool.get("function"), dict) else f"{flat[1]}{field[flat.end() :]}"
    return f"{body.own_names.get(field, field)}{mark}{rest}"


def _overrides(body: Any, spec: AgentSpec, model: str | None) -> Overrides:
    if getattr(body, "n", None) not in (None, 1):
        raise InvalidBody("n: a request has one answer; leave it out")
    tools = [] if body.tool_choice == "none" else _functions(body.tools or [], spec)
    fields: dict[str, Any] = {
        "input": [],
        "reconnect": True,
        "model": model,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "max_tokens": body.max_output_tokens,
        "stop": body.stop,
        "seed": body.seed,
        "tools": tools,
    }
    ignored = take_out(fields, spec)
    overrides = overrides_of(AgentRequest.model_validate(fields), spec, ignored)
    more = [name for name, usual in _USUAL.items() if getattr(body, name, None) not in usual]
    reasoning = body.reasoning or {}
    if any(reasoning.get(name) is not None for name in ("effort", "max_tokens")):
        more.append("reasoning")
    schema = _schema((body.text or {}).get("format"), body.form_field, spec, more)
    for name in more:
        if spec.strict_overrides:
            raise InvalidBody(f"{name}: this agent does not let a request set it; leave it out")
    return replace(overrides, ignored=(*overrides.ignored, *more), output_schema=schema)


def _agent(caller: Caller, model: str | None) -> tuple[Caller, str | None]:
    """The caller with the agent of that name; a model that is no agent is the agent's to allow."""
    if model is None:
        return caller, None
    named = caller.speaking_to(model)
    if named is not None:
        return named, None
    if "model" in caller.spec.allow_overrides:
        return caller, model
    raise NoModel(NO_MODEL)


def _functions(tools: list[dict[str, Any]], spec: AgentSpec) -> list[dict[str, Any]]:
    """The client's functions, as agents are given them."""
    labels = {spec.name, *(server.label for server in spec.mcp)}
    functions = []
    for place, tool in enumerate(tools):
        kind = tool.get("type")
        if kind == "function":
            function = tool.get("function")
            functions.append(
                {"type": "function", "function": function if isinstance(function, dict) else _flat(tool)}
            )
        elif kind != "mcp" or str(tool.get("server_label")) not in labels:
            raise InvalidBody(
                f"tools[{place}].type: 'function', or 'mcp' with the server_label of one of the agent's own servers"
            )
    return functions


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) for name in ("name", "description", "parameters")}


def _schema(form: Any, field: str, spec: AgentSpec, ignored: list[str]) -> Json | None:
    """The schema that the answer is to fit; what the answer would not fit is refused: its client would read it as that.

    ``field`` is the name of the form in the request.

    Raises:
        InvalidBody: it cannot be had of the agent; the text names the field.
    """
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if spec.output_schema is not None:
        # It answers with JSON, of its own.
        ignored.append(field)
        return None
    if OUTPUT_SCHEMA not in spec.allow_overrides or spec.python:
        raise InvalidBody(
            f"{field}: this agent answers with text; where it is configured, allow_overrides may have 'output_schema'"
        )
    given = form.get("json_schema")
    if isinstance(given, dict):
        form, field = given, f"{field}.json_schema"
    schema = form.get("schema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidBody(f"{field}.schema: a JSON Schema whose type is 'object'")
    try:
        json_schema.check(schema)
    except ValueError as error:
        raise InvalidBody(f"{field}.schema: {error}") from None
    return schema
