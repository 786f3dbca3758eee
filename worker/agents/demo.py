"""The demo agent: a scripted model behind the real machinery, so that every path works without a network.

It answers to commands:

    /tokens N [delay_ms]   N pieces of text          /call NAME JSON   one client function
    /tool add 1 2          a server tool             /calls N          N client calls in parallel
    /slow SECONDS          a tool that takes long    /approve          a tool that needs approval
    /think                 thinking, then text       /dispatch         a sub-agent
    /fail TEXT             raises                    /reflect          critics; passes at the second round
    /image URL             an image
    /output JSON           what an agent with an `output_schema` answers with

Anything else is answered with "You said: …", word by word.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from pydantic_ai import Tool
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel

from turnstream.shared.agents.config import ClientTool
from turnstream.worker.agents.calls import effects
from turnstream.worker.agents.run_outcome import AgentError
from turnstream.worker.turn import current_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

# More would only fill the log: the demo shows paths, it does not measure.
MOST_TOKENS = 100_000
MOST_CALLS = 50

Said = str | dict[int, DeltaToolCall] | dict[int, DeltaThinkingPart]


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────


@effects(read_only=True)
async def add(a: int | float, b: int | float) -> int | float:  # noqa: PYI041 - whole numbers stay whole
    """Add two numbers."""
    return a + b


@effects(read_only=True)
async def slow(seconds: float) -> str:
    """Take that many seconds."""
    await asyncio.sleep(seconds)
    return f"That took {seconds:g} seconds."


@effects(on_lost="rerun")
async def show_image(url: str) -> str:
    """Show an image to the user."""
    current_turn().speaker().say("message", "assistant", {"type": "image", "image_url": url})
    return "The user sees the image."


@effects(on_lost="rerun")
async def _delete_everything(what: str) -> str:
    """Delete something; somebody must approve."""
    return f"{what} is gone."


delete_everything = Tool(_delete_everything, name="delete_everything", requires_approval=True)


def client_tools(prompt: str) -> list[ClientTool]:
    """The client functions that a command names: clients bring their own, so any name will do."""
    command, rest = _command(prompt)
    if command == "call":
        name = rest.split(maxsplit=1)[0] if rest else ""
        return [_any_function(name)] if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) else []
    if command == "calls":
        return [_any_function("client_function")]
    return []


def wants_critics(prompt: str) -> bool:
    """Whether the command is about critics."""
    return _command(prompt)[0] == "reflect"


def _any_function(name: str) -> ClientTool:
    return ClientTool(
        name=name,
        description="A function of the client.",
        parameters={"type": "object", "additionalProperties": True},
    )


# ── models ──────────────────────────────────────────────────────────────────────────────────────────


def model(agent: str) -> FunctionModel:
    """The scripted model of the demo agent, its sub-agent or its critic."""
    scripts = {"demo-researcher": _research, "demo-critic": _criticise}
    # Critics are run without streaming, everybody else with it.
    if agent == "demo-critic":
        return FunctionModel(_criticise_at_once, stream_function=_criticise, model_name=agent)
    return FunctionModel(stream_function=scripts.get(agent, _demo), model_name=agent)


async def _demo(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Said]:
    prompt, returns = _situation(messages)
    command, rest = _command(prompt)
    if returns:
        shown = ", ".join(_shown(part) for part in returns)
        for word in _words(f"The result is {shown.removesuffix('.')}."):
            yield word
        return
    match command:
        case "tokens":
            given = [*rest.split(), "0"]
            count = min(int(given[0]) if given[0].isdigit() else 10, MOST_TOKENS)
            delay = float(given[1]) / 1000 if re.fullmatch(r"\d+(\.\d+)?", given[1]) else 0.0
            for number in range(count):
                await asyncio.sleep(delay)
                yield f"tok{number} "
            if not count:
                yield "No tokens."
        case "call" if client_tools(prompt):
            name, _, arguments = rest.partition(" ")
            yield _call(0, name, arguments.strip() or "{}")
        case "calls" if rest.isdigit() and int(rest) > 0:
            for number in range(min(int(rest), MOST_CALLS)):
                yield _call(number, "client_function", json.dumps({"number": number}))
        case "tool":
            name, *values = rest.split() or ["add"]
            numbers = [*(_number(value) for value in values), 0, 0]
            yield _call(0, name, json.dumps({"a": numbers[0], "b": numbers[1]}))
        case "slow":
            yield _call(0, "slow", json.dumps({"seconds": _number(rest)}))
        case "approve":
            yield _call(0, "delete_everything", json.dumps({"what": rest or "everything"}))
        case "think":
            for word in _words("Let me think about that for a moment."):
                yield {0: DeltaThinkingPart(content=word)}
            for word in _words(f"I thought about it: {rest or 'it is fine'}."):
                yield word
        case "fail":
            raise AgentError("demo_failure", rest or "The demo agent failed, as it was told to.")
        case "dispatch":
            yield "I ask a colleague. "
            yield _call(1, "demo-researcher", json.dumps({"task": rest or "find out"}))
        case "image":
            yield _call(0, "show_image", json.dumps({"url": rest}))
        case "output" if info.output_tools:
            yield _call(0, info.output_tools[0].name, rest)
        case "reflect":
            drafts = prompt.count("\nScore: ") + 1
            for word in _words(f"This is draft {drafts}."):
                yield word
        case _:
            for word in _words(f"You said: {prompt}"):
                yield word


async def _research(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Said]:
    prompt, returns = _situation(messages)
    if prompt.startswith("/"):
        async for said in _demo(messages, info):
            yield said
        return
    text = f"I looked into it ({prompt}): it is as you thought."
    for word in _words(text if not returns else "Done."):
        yield word


async def _criticise(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Said]:
    name, arguments = _verdict(messages, info)
    yield _call(0, name, arguments)


def _criticise_at_once(messages: list[ModelMessage], info: AgentInfo) -> Any:
    from pydantic_ai.messages import ModelResponse, ToolCallPart

    name, arguments = _verdict(messages, info)
    return ModelResponse(parts=[ToolCallPart(tool_name=name, args=arguments)])


def _verdict(messages: list[ModelMessage], info: AgentInfo) -> tuple[str, str]:
    prompt, _ = _situation(messages)
    good = "draft 1." not in prompt
    verdict = {"score": 9 if good else 5, "description": "Well put." if good else "A first draft shows."}
    return info.output_tools[0].name, json.dumps(verdict)


# ── reading and speaking ────────────────────────────────────────────────────────────────────────────


def _situation(messages: list[ModelMessage]) -> tuple[str, list[ToolReturnPart]]:
    """The last prompt, and what the tools returned since."""
    prompt, returns = "", list[ToolReturnPart]()
    for message in messages:
        if not isinstance(message, ModelRequest):
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                content = part.content
                prompt = content if isinstance(content, str) else _described(content)
                returns = []
            elif isinstance(part, ToolReturnPart):
                returns.append(part)
    return prompt, returns


def _described(content: Any) -> str:
    return " ".join(part if isinstance(part, str) else "(an attachment)" for part in content)


def _command(prompt: str) -> tuple[str, str]:
    if not prompt.startswith("/"):
        return "", prompt
    command, *rest = prompt[1:].split(maxsplit=1) or [""]
    return command, rest[0].strip() if rest else ""


def _shown(part: ToolReturnPart) -> str:
    return part.model_response_str()


def _words(text: str) -> Iterator[str]:
    """Word by word: a long text has many, and each may wait until others were served."""
    return (found[0] for found in re.finditer(r"\S+\s*", text))


def _number(text: str) -> int | float:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return 0


def _call(index: int, name: str, arguments: str) -> dict[int, DeltaToolCall]:
    return {index: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"demo_{index}")}
