# ruff: noqa: INP001 - the documentation is no package
"""Agents that the protocol reference is captured from, beside the demo agent, and the one of the console's pictures."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.messages import UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from turnstream import Turn, agent
from turnstream.shared.protocol import (
    AudioContent,
    DataContent,
    FileContent,
    ImageContent,
    Message,
    RefusalContent,
    VideoContent,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo


@agent
async def every_content(turn: Turn) -> AsyncIterator[Any]:  # noqa: ARG001 - it says the same to everybody
    """Says one part of each type."""
    yield "Here "
    yield "you are."
    yield ImageContent(image_url="https://example.com/a.png")
    yield DataContent(data={"answer": 42})
    yield AudioContent(data="UklGRg==", format="wav")
    yield FileContent(file_url="https://example.com/a.pdf", filename="a.pdf")
    yield VideoContent(video_url="https://example.com/a.mp4")
    yield RefusalContent(refusal="More I may not say.")


@agent
async def mirror(turn: Turn) -> AsyncIterator[Any]:
    """Tells which types of content it was sent."""
    yield "I see " + ", ".join(part["type"] for part in turn.input[-1]["content"]) + "."


@agent
async def shop(turn: Turn) -> AsyncIterator[Any]:  # noqa: ARG001
    """Meets an error, says so, and goes on."""
    yield Message(type="error", role="assistant", code="out_of_stock", message="There are no apples left.")
    yield "Would pears do?"


@agent
async def cut_off(turn: Turn) -> AsyncIterator[Any]:
    """Its provider cuts the first answer in the middle; the second one is whole."""
    yield "The train leaves "
    if turn.attempt == 1:
        raise ModelConnectionError("showcase", "the stream was cut")
    yield "at nine."


@agent
async def storyteller(turn: Turn) -> AsyncIterator[Any]:  # noqa: ARG001
    """Begins a story and never comes to its end: somebody has to stop it."""
    yield "Once "
    yield "upon "
    await asyncio.Event().wait()


# ── the shop's support, as the console shows it ──

ORDERS = [
    {"order": "1042", "item": "Desk lamp", "state": "delayed", "price": 49},
    {"order": "1057", "item": "Monitor arm", "state": "shipped", "price": 89},
]
ANSWER = """Ada has **two open orders**:

| order | item | state | price |
|---|---|---|---|
| 1042 | Desk lamp | delayed since Monday | 49.00 EUR |
| 1057 | Monitor arm | shipped | 89.00 EUR |

The lamp is out of stock until December. I can pay it back: `refund` needs your approval."""


async def open_orders(customer: str) -> list[dict[str, Any]]:  # noqa: ARG001 - everybody has the same
    """List a customer's open orders."""
    return ORDERS


async def refund(order: str, amount: int) -> str:
    """Pay an order back."""
    return f"{amount} EUR of order {order} are paid back."


async def _support(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:  # noqa: ARG001
    """Look orders up and answer; asked for a refund, call it."""
    latest = messages[-1].parts[-1]
    if not isinstance(latest, UserPromptPart):
        yield ANSWER
    elif "orders" in str(latest.content):
        yield {0: DeltaToolCall(name="open_orders", json_args=json.dumps({"customer": "ada"}))}
    else:
        yield {0: DeltaToolCall(name="refund", json_args=json.dumps({"order": "1042", "amount": 49}))}


support_agent = Agent(
    FunctionModel(stream_function=_support), tools=[open_orders, Tool(refund, requires_approval=True)]
)
