"""Chats as loads: one connection a stream, bytes kept as they come, looked at when all is over."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson

HOST = "127.0.0.1"

# A stream that is not over by then never will be.
STREAM_SECONDS = 60


@dataclass(slots=True)
class Stream:
    """What one stream brought, with monotonic times in seconds.

    Attributes:
        sent: when its connection was begun.
        marked: when the mark was first seen in it; 0.0: never.
        ended: when the server closed it.
        chunks, times: what came, and when each of it did.
        reached: set when the mark was seen.
    """

    sent: float = 0.0
    marked: float = 0.0
    ended: float = 0.0
    chunks: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def arrivals(self, pattern: re.Pattern[bytes]) -> list[tuple[bytes, float]]:
        """What a pattern's first group matched, and when the last byte of each match came."""
        ends = list(itertools.accumulate(map(len, self.chunks)))
        found = pattern.finditer(b"".join(self.chunks))
        return [(match[1], self.times[bisect.bisect_left(ends, match.end())]) for match in found]

    def events(self) -> list[dict[str, Any]]:
        """The events, parsed."""
        return [orjson.loads(data) for data in frames(b"".join(self.chunks))]

    def check(self, tokens: int) -> None:
        """Every token arrived, once, in order, and the turn completed.

        Raises:
            AssertionError: it did not.
        """
        events = self.events()
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(numbers))), "an event is missing, doubled or out of order"
        said = "".join(event["text"] for event in events if event.get("delta"))
        assert said == "".join(f"tok{number} " for number in range(tokens)), (
            "the text is not what the agent said"
        )
        assert events[-1]["status"] == "completed", f"the turn ended as {events[-1]}"


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes, stream: Stream, mark: bytes, over: asyncio.Future[None]) -> None:
        self._request = request
        self._stream = stream
        self._mark = mark
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        now = time.perf_counter()
        if not stream.marked and self._mark in data:
            stream.marked = now
            stream.reached.set()
        stream.chunks.append(data)
        stream.times.append(now)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._stream.ended = time.perf_counter()
        if not self._over.done():
            self._over.set_result(None)


async def stream(port: int, request: bytes, mark: bytes = b"tok0 ", into: Stream | None = None) -> Stream:
    """Send a request on a connection of its own, and read until the server closes it.

    Raises:
        TimeoutError: it does not.
    """
    loop = asyncio.get_running_loop()
    result, over = into or Stream(), loop.create_future()
    result.sent = time.perf_counter()
    async with asyncio.timeout(STREAM_SECONDS):
        transport, _ = await loop.create_connection(lambda: _Reader(request, result, mark, over), HOST, port)
        try:
            await over
        finally:
            transport.close()
    return result


async def closed_loop(port: int, at_once: int, requests: list[bytes]) -> tuple[list[Stream], float]:
    """Send each request, ``at_once`` at a time: what came, and how long all of it took in seconds."""
    waiting = iter(requests)
    results: list[Stream] = []

    async def one_after_the_other() -> None:
        for request in waiting:
            results.append(await stream(port, request))  # noqa: PERF401 - seen by the others as it grows

    begun = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return results, time.perf_counter() - begun


def post(key: str, text: str, session: str = "", **more: Any) -> bytes:
    """A turn in a new session, as bytes: the connection is closed when it is over."""
    asked = {
        "session_id": session or uuid.uuid4().hex,
        "input": [{"role": "user", "type": "message", "content": [{"type": "text", "text": text}]}],
        **more,
    }
    return head("POST", "/process", key, orjson.dumps(asked))


def head(method: str, path: str, key: str, body: bytes = b"", **headers: str) -> bytes:
    """A request as bytes; its body is JSON unless a header says otherwise."""
    headers = {"content_type": "application/json", **headers}
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (
        f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n{more}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body


def body_of(raw: bytes) -> bytes:
    """The body of a 200, as far as it came; chunks joined.

    Raises:
        AssertionError: the status is another one.
    """
    top, _, rest = raw.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200"), f"answered {raw[:300]!r}"
    if b"transfer-encoding: chunked" not in top.lower():
        return rest
    parts, at = [], 0
    while True:
        end = rest.find(b"\r\n", at)
        if end < 0:
            break
        size = int(rest[at:end], 16)
        if not size:
            break
        parts.append(rest[end + 2 : end + 2 + size])
        at = end + size + 4
    return b"".join(parts)


def frames(raw: bytes) -> list[bytes]:
    """The data of each whole server-sent event."""
    whole = body_of(raw).split(b"\n\n")[:-1]
    return [frame[frame.index(b"data: ") + 6 :] for frame in whole if b"data: " in frame]
