"""A model that needs no network, so that the examples run anywhere, CI included.

An example's ``rule`` is given the prompt and what the tools returned since, and gives a text or a list
of calls. Set ``MODEL`` to put a real model in its place, for example ``MODEL=openai:gpt-5-mini`` with
``OPENAI_API_KEY``, or any other pydantic-ai model string; nothing else in the example changes.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import infer_model
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import AgentInfo

Call = tuple[str, dict[str, Any]]


def model(rule: Callable[[str, list[str]], str | list[Call]]) -> Model:
    """The model that ``MODEL`` names, or one that follows the rule."""
    if name := os.environ.get("MODEL"):
        return infer_model(name)

    async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:  # noqa: ARG001
        said = rule(*_situation(messages))
        if isinstance(said, str):
            for word in re.findall(r"\S+\s*", said):
                yield word
            return
        for place, (tool, arguments) in enumerate(said):
            yield {
                place: DeltaToolCall(name=tool, json_args=json.dumps(arguments), tool_call_id=f"call{place}")
            }

    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = rule(*_situation(messages))
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        # Critics are asked for a verdict: a call of the one tool that takes it.
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, said[0][1])])

    return FunctionModel(whole, stream_function=streamed, model_name="offline")


def _situation(messages: list[ModelMessage]) -> tuple[str, list[str]]:
    prompt, returned = "", list[str]()
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                prompt, returned = str(part.content), []
            elif isinstance(part, ToolReturnPart):
                returned.append(part.model_response_str())
    return prompt, returned
