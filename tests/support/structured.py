"""Agents that return something else than text, of a scripted model; and one whose tools have deps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, PromptedOutput, RunContext, TextOutput
from pydantic_ai.models.function import FunctionModel

from tests.support.scripted import _play
from turnstream import current_turn

_MODEL = FunctionModel(stream_function=_play, model_name="scripted")


class Weather(BaseModel):
    """What they return."""

    city: str
    degrees: int = Field(lt=60)


async def settle(city: str, degrees: int) -> Weather:
    """Return it, but hang at the first attempt, when the model's answer is kept already."""
    if current_turn().attempt.number == 1:
        await asyncio.Event().wait()
    return Weather(city=city, degrees=degrees)


def shout(text: str) -> str:
    """What becomes of an answer's text."""
    return text.strip().upper()


called: Agent[None, Weather] = Agent(_MODEL, output_type=Weather)
written: Agent[None, Weather] = Agent(_MODEL, output_type=PromptedOutput(Weather))
chosen: Agent[None, Any] = Agent(_MODEL, output_type=Literal["yes", "no"])  # type: ignore[call-overload]
either: Agent[None, str | Weather] = Agent(_MODEL, output_type=[str, Weather])
made: Agent[None, str] = Agent(_MODEL, output_type=TextOutput(shout))
called_late: Agent[None, Weather] = Agent(_MODEL, output_type=settle)
written_late: Agent[None, Any] = Agent(_MODEL, output_type=PromptedOutput[Any](settle))


@called.tool_plain
async def look() -> str:
    """Look out of the window."""
    return "sunny"


@dataclass
class Shop:
    """What the tools of `needy` need."""

    customer: str


async def open_shop() -> Shop:
    """Make it for one run."""
    return Shop(current_turn().user)


needy: Agent[Shop, str] = Agent(_MODEL, deps_type=Shop)


@needy.tool
async def customer(ctx: RunContext[Shop]) -> str:
    """Who it is."""
    return ctx.deps.customer
