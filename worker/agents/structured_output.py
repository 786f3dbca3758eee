"""Structured output: what an agent returns instead of text, by its ``output_type`` or its table's ``output_schema``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pydantic_core
from pydantic_ai import BinaryImage, StructuredDict
from pydantic_ai._output import TextOutputProcessor
from pydantic_core import core_schema

from turnstream.shared.agents import json_schema
from turnstream.worker.agents.run_outcome import AgentMistake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetCoreSchemaHandler
    from pydantic_ai import Agent
    from pydantic_ai.run import AgentRunResult


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How an agent's model returns its output.

    Attributes:
        in_text: an answer's text is, or may be, the output in writing (JSON, or what a function reads): no words for the
            client.
        tools: names of the calls by which a model returns output; none of them is a tool to the client.
    """

    in_text: bool = False
    tools: frozenset[str] = frozenset()


def form_of(agent: Agent[Any, Any]) -> OutputForm:
    """How this agent's model returns its output."""
    schema = agent._output_schema  # noqa: SLF001 - the library has no other way to know before a run
    text = schema.text_processor
    tools = frozenset(schema.toolset.processors) if schema.toolset else frozenset()
    return OutputForm(text is not None and type(text) is not TextOutputProcessor, tools)


def is_structured(form: OutputForm, result: AgentRunResult[Any]) -> bool:
    """Whether the output is another thing than what the client has from the model already: its text, or an image."""
    if result._output_tool_name is not None:  # noqa: SLF001 - the library has no other way to know
        return True
    output = result.output
    return (
        output is not None
        and not isinstance(output, BinaryImage)
        and (form.in_text or not isinstance(output, str))
    )


def jsonable(output: Any) -> Any:
    """The output as JSON has it.

    Raises:
        AgentMistake: it has no JSON form.
    """
    try:
        return pydantic_core.to_jsonable_python(output, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        raise AgentMistake(f"its output, of type {type(output).__name__}, has no JSON form") from None


def type_of(schema: Mapping[str, Any]) -> type[Any]:
    """The output type of a JSON Schema. What does not fit it goes back to the model, with the reasons.

    Raises:
        UserError: the schema refers to itself, which no provider is given.
    """
    base: Any = StructuredDict(dict(schema))

    def fits(output: dict[str, Any]) -> dict[str, Any]:
        if wrong := json_schema.misfits(schema, output):
            raise ValueError("; ".join(wrong))
        return output

    class Output(base):  # type: ignore[misc]
        @classmethod
        def __get_pydantic_core_schema__(
            cls, source_type: Any, handler: GetCoreSchemaHandler
        ) -> core_schema.CoreSchema:
            inner = base.__get_pydantic_core_schema__(source_type, handler)
            return core_schema.no_info_after_validator_function(fits, inner)

    return Output
