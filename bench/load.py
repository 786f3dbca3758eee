"""A lean HTTP client for loads: one connection a stream, chunked bodies, frames counted as they arrive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class Turn:
    """What one stream brought, with monotonic times in seconds."""

    sent: float = 0.0
    first_event: float = 0.0
    ended: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)

    def check(self, tokens: int) -> None:
        """Every event arrived, once, in order, and the turn ended.

        Raises:
            AssertionError: it did not.
        """
        numbers = [event["sequence_number"] for event in self.events]
        assert numbers == list(range(len(numbers))), "an event is missing, doubled or out of order"
        deltas = [event["text"] for event in self.events if event.get("delta")]
        assert deltas == [f"tok{number} " for number in range(tokens)], "the text is not what the agent said"
        assert self.events[-1]["status"] == "completed"


async def request(
    host: str, port: int, method: str, path: str, key: str, body: bytes = b""
) -> tuple[int, bytes]:
    """One request, its whole answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_head(method, path, key, body) + body)
        status, chunks = await _begin(reader)
        content = b"".join([chunk async for chunk in chunks])
        return status, content
    finally:
        writer.close()


async def turn(host: str, port: int, key: str, session: str, text: str, turn_id: str = "") -> Turn:
    """One turn, posted and followed to its end."""
    asked: dict[str, Any] = {
        "session_id": session,
        "input": [{"role": "user", "content": [{"type": "text", "text": text}]}],
    }
    if turn_id:
        asked["id"] = turn_id
    result = Turn(sent=time.perf_counter())
    await _stream(host, port, "POST", "/process", key, orjson.dumps(asked), result)
    return result


async def follow(host: str, port: int, key: str, session: str, turn_id: str) -> Turn:
    """Follow a turn that somebody else posted."""
    result = Turn(sent=time.perf_counter())
    path = f"/process?session_id={session}&response_id={turn_id}"
    await _stream(host, port, "GET", path, key, b"", result)
    return result


async def _stream(host: str, port: int, method: str, path: str, key: str, body: bytes, result: Turn) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_head(method, path, key, body) + body)
        status, chunks = await _begin(reader)
        rest = b""
        frames: list[bytes] = []
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n\n")
            for frame in whole:
                if b'"object":"message"' in frame or b'"object":"content"' in frame:
                    result.first_event = result.first_event or time.perf_counter()
                frames.append(frame)
        result.ended = time.perf_counter()
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {rest[:200]!r}")
    finally:
        writer.close()
    # Parsing waits until the stream is over: the load must not slow what it measures.
    for frame in frames:
        head, _, data = frame.partition(b"\ndata: ")
        if data:
            result.cursors.append(head[4:].decode())
            result.events.append(orjson.loads(data))


def _head(method: str, path: str, key: str, body: bytes) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()


async def _begin(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in head.lower():
        return status, _chunks(reader)
    return status, _plain(reader)


async def _plain(reader: asyncio.StreamReader) -> Any:
    while data := await reader.read(65536):
        yield data


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
