"""The OpenAI client on its own transport, against a provider that misbehaves on the wire."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelRequest, PartDeltaEvent, TextPartDelta, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.providers.openai import OpenAIProvider

from turnstream.worker.agents.delta_listener import DeltaListener, listening
from turnstream.worker.agents.failures import explain
from turnstream.worker.agents.models import CompatibleModel
from turnstream.worker.agents.openai_client import READ_BYTES, LeanProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = (
    b'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",'
    b' "choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
)
FIRST = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@asynccontextmanager
async def _provider(
    answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[LeanProvider]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        await reader.readexactly(int(sizes[0].partition(b":")[2]))
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(writer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    provider = LeanProvider(OpenAIProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key="key"))
    provider._client = provider.client.with_options(max_retries=0)
    async with server, provider:
        yield provider


async def _read(model: CompatibleModel) -> str | None:
    asked: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("go")])]
    async with model.request_stream(asked, None, ModelRequestParameters()) as streamed:
        async for _ in streamed:
            pass
        return streamed.get().text


@pytest.mark.parametrize(
    "answer",
    [b"no HTTP at all\r\n\r\n", HEAD + FIRST + b"no chunk\r\n", HEAD + FIRST, b""],
    ids=["no HTTP", "no chunk", "cut", "nothing"],
)
async def test_what_breaks_on_the_wire_is_the_provider_s_trouble(answer: bytes) -> None:
    """Not an error of the agent's code: it is retried where the library retries, and has the code for clients."""
    async with _provider(answer) as provider:
        with pytest.raises(ModelAPIError) as raised:
            await _read(CompatibleModel("m", provider=provider))
    assert explain(raised.value)[0] == "model_unavailable"


@pytest.mark.parametrize(
    "more",
    [b"x-policy: %b\r\n" % (b"a" * 20_000), b"".join(b"x-%d: a\r\n" % number for number in range(500))],
    ids=["long", "many"],
)
async def test_a_large_head_of_an_answer_is_taken(more: bytes) -> None:
    """As gateways send them: the library's own transport takes it."""
    head = HEAD.removesuffix(b"\r\n") + more + b"\r\n"
    async with _provider(head + FIRST + LAST) as provider:
        assert await _read(CompatibleModel("m", provider=provider)) == "a"


def _piece(text: str) -> bytes:
    piece = PIECE.replace(b'"a"', b'"%b"' % text.encode())
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def test_a_stream_waits_only_when_it_has_no_more() -> None:
    """Behind a full read the next one is there already: large events take no window for each of their reads."""
    text, waited, waits = "x" * 5 * READ_BYTES, asyncio.Event(), 0

    def window() -> float:
        nonlocal waits
        waits += 1
        waited.set()
        return 0.0

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + _piece(text))
        await waited.wait()
        writer.write(LAST)

    async with _provider(answer) as provider:
        with listening(DeltaListener(_unheard, window)):
            assert await _read(CompatibleModel("m", provider=provider)) == text
    # Its beginning may come by itself, and so may the end.
    assert 1 <= waits <= 3


async def _unheard(event: PartDeltaEvent) -> None:
    raise AssertionError(event)


@pytest.mark.parametrize("ends", ["whole", "cut"])
async def test_what_comes_while_a_stream_waits_is_one_piece(ends: str) -> None:
    """A provider writes more while the worker waits: all of it is read then, and so is the end."""
    waits = asyncio.Event()
    heard: list[object] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + _piece("a") + _piece("b"))
        await waits.wait()
        for text in "cdef":
            writer.write(_piece(text))
            # Rounds of the event loop in which it would be read.
            for _ in range(50):
                await asyncio.sleep(0)
        if ends == "whole":
            writer.write(LAST)

    def window() -> float:
        first = not waits.is_set()
        waits.set()
        return 0.5 if first else 0.0

    async def hear(event: PartDeltaEvent) -> None:
        heard.append(event.delta)

    async with _provider(answer) as provider:
        with listening(DeltaListener(hear, window)):
            reading = _read(CompatibleModel("m", provider=provider))
            if ends == "whole":
                assert await reading == "abcdef"
            else:
                with pytest.raises(ModelAPIError):
                    await reading
    assert heard[-1] == TextPartDelta("cdef")
