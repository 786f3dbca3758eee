"""What a provider's tokens cost by themselves, in a process of their own: from a raw socket, and through pydantic-ai's loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvloop

from bench.provider import HOST, MODEL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection


class _Socket(asyncio.Protocol):
    """Asks for one chat, and parses what comes: nothing else."""

    def __init__(self, request: bytes, taken: list[int], over: asyncio.Event) -> None:
        self._request, self._taken, self._over = request, taken, over
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            at = frame.find(b"data: {")
            if at >= 0:
                choices = orjson.loads(frame[at + 6 :])["choices"]
                self._taken[0] += bool(choices and choices[0]["delta"].get("content"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._over.set()


async def _raw(port: int, text: str, taken: list[int]) -> None:
    body = orjson.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": text}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n\r\n"
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        lambda: _Socket(head.encode() + body, taken, over), HOST, port
    )
    try:
        await over.wait()
    finally:
        transport.close()


async def _library(port: int, text: str, taken: list[int]) -> None:
    agent = _agent(port)
    async with agent.iter(text) as run:
        async for node in run:
            if type(agent).is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        taken[0] += event.event_kind == "part_delta"


def _agent(port: int) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    if port not in _AGENTS:
        provider = OpenAIProvider(base_url=f"http://{HOST}:{port}/v1", api_key="unused")
        _AGENTS[port] = Agent(OpenAIChatModel(MODEL, provider=provider))
    return _AGENTS[port]


_AGENTS: dict[int, Any] = {}

WAYS: dict[str, Callable[[int, str, list[int]], Awaitable[None]]] = {"raw": _raw, "library": _library}


def serve(pipe: Connection, port: int) -> None:
    """Answer ``(way, chats, text, lead, seconds)``: CPU seconds and tokens of some seconds, once so many chats run."""

    async def measure(way: str, chats: int, text: str, lead: float, seconds: float) -> tuple[float, int]:
        taken = [0]
        running = [asyncio.ensure_future(WAYS[way](port, text, taken)) for _ in range(chats)]
        await asyncio.sleep(lead)
        begun, before = time.process_time(), taken[0]
        await asyncio.sleep(seconds)
        spent, count = time.process_time() - begun, taken[0] - before
        for each in running:
            each.cancel()
        for each in running:
            with contextlib.suppress(asyncio.CancelledError):
                await each
        return spent, count

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while True:
            pipe.send((True, runner.run(measure(*pipe.recv()))))
