# ruff: noqa: INP001 - the documentation is no package
"""Agents that the protocol reference is captured from, beside the demo agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic_ai.exceptions import ModelConnectionError

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
