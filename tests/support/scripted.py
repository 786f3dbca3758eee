"""Agents whose model does what the prompt says, so that a test writes the whole conversation in one place.

A prompt is JSON: a list of steps, one per answer of the model. A step is a text, in which ``{results}``
stands for what the tools returned and ``{instructions}`` for what the model was told, or a list of
calls ``[tool, arguments]``. Arguments that are a list are the script of a sub-agent.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.messages import (
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from turnstream import AgentError, current_turn, effects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage

Step = str | list[tuple[str, Any]] | dict[str, Any]


def script(*steps: Step) -> str:
    """The prompt that makes the model do these steps."""
    return json.dumps(steps)


async def _play(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    prompt, returned, answers = "", list[str](), 0
    for message in messages:
        if isinstance(message, ModelResponse):
            answers += 1
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart) and str(part.content).startswith(("[", "{")):
                prompt, returned, answers = str(part.content), [], 0
            elif isinstance(part, ToolReturnPart | RetryPromptPart):
                returned.append(
                    part.model_response_str(wrap_if_error=False)
                    if isinstance(part, ToolReturnPart)
                    else "retry"
                )
    steps, end = json.JSONDecoder().raw_decode(prompt)
    if isinstance(steps, dict):
        # Drafts: what follows the script are the critics' remarks on the former ones.
        steps = [steps["drafts"][prompt[end:].count("\nScore: ")]]
        answers = 0
    step = steps[answers]
    if isinstance(step, dict):
        await _do(step)
        step = step.get("say", "")
    if isinstance(step, str):
        said = step.replace("{results}", " | ".join(returned)).replace(
            "{instructions}", info.instructions or ""
        )
        for word in said.split(" "):
            yield word + " "
        return
    for at, (tool, arguments) in enumerate(step):
        given = {"task": json.dumps(arguments)} if isinstance(arguments, list) else arguments
        yield {at: DeltaToolCall(name=tool, json_args=json.dumps(given), tool_call_id=f"s{at}")}


async def _do(step: dict[str, Any]) -> None:
    if step.get("hang_at_attempt") == current_turn().attempt.number:
        await asyncio.Event().wait()
    if step.get("away_at_attempt") == current_turn().attempt.number:
        raise ModelConnectionError("scripted", "the stream was cut")
    if fail := step.get("fail"):
        raise AgentError("scripted_failure", fail)


def _judge(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Give a draft the score that it says of itself: ``… [7]``."""
    request = messages[0]
    asked = "".join(str(part.content) for part in request.parts if isinstance(part, UserPromptPart))
    score = int(asked.rpartition("[")[2].partition("]")[0])
    verdict = {"score": score, "description": f"Worth {score}."}
    return ModelResponse(parts=[ToolCallPart(tool_name=info.output_tools[0].name, args=verdict)])


player: Agent[None, str] = Agent(FunctionModel(stream_function=_play, model_name="scripted"))
judge: Agent[None, str] = Agent(FunctionModel(_judge, model_name="judge"))


@player.tool_plain
@effects(read_only=True)
async def hang_once() -> str:
    """Never return at the first attempt."""
    await _do({"hang_at_attempt": 1})
    return "went on"


@player.tool_plain
async def broken() -> str:
    """Raise, which ends the agent's run."""
    raise RuntimeError("the password is hunter2")


guarded: Agent[None, str] = Agent(FunctionModel(stream_function=_play, model_name="scripted"))
guarded.tool_plain(broken)


@guarded.tool_plain(requires_approval=True)
async def risky() -> str:
    """Do what somebody must agree to."""
    return "done"
