"""Turns that are given much, beside turns that are given little."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import text_of
from tests.support.fake_provider.server import says
from turnstream.worker.agents import memory
from turnstream.worker.budget import LIGHT

if TYPE_CHECKING:
    from tests.support.fake_provider.deployment import Deployments
    from tests.support.fake_provider.server import Provider


@pytest.mark.parametrize("reading", ["read_input", "recall", "remember"])
async def test_large_input_is_read_beside_the_event_loop(
    deploy: Deployments, provider: Provider, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """While a turn with a large image is read, remembered or recalled, the worker goes on with others' turns."""
    client = await deploy(images=True)
    picture = base64.b64encode(b"\x89PNG" + bytes(LIGHT)).decode()
    image = {"type": "image", "image_url": f"data:image/png;base64,{picture}"}
    content = [{"type": "text", "text": "Look"}, image]
    asked = {"session_id": "s1", "input": [{"role": "user", "content": content}]}
    loop, inside = asyncio.get_running_loop(), getattr(memory, reading)
    waited: list[bool] = []

    def read(*given: Any) -> Any:
        moved = threading.Event()
        loop.call_soon_threadsafe(moved.set)
        waited.append(moved.wait(5))
        return inside(*given)

    monkeypatch.setattr(memory, reading, read)
    for _ in range(2):
        provider.script = [says("Nice.")]
        async with client.open("POST", "/process", json=asked) as stream:
            assert text_of(await stream.all()) == "Nice."
    assert waited == [True, True]
    shown = [
        part["type"] for each in provider.messages() if each["role"] == "user" for part in each["content"]
    ]
    assert shown == ["text", "image_url"] * 2
