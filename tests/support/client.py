"""A client as users have: it speaks HTTP, reads SSE byte by byte, and believes nothing it did not receive."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclass
class Frame:
    """One SSE frame as it came."""

    raw: bytes
    id: str = ""
    event: str = ""
    data: Any = None

    @property
    def seq(self) -> int:
        """The place in the log that its cursor names."""
        return int(self.id.partition("-")[2])


def read_frame(raw: bytes) -> Frame:
    """Read one frame (without its empty line)."""
    frame = Frame(raw)
    for line in raw.decode().split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            frame.id = value
        elif name == "event":
            frame.event = value
        elif name == "data":
            frame.data = orjson.loads(value)
    return frame


@dataclass
class Stream:
    """A response that is being read."""

    response: httpx.Response
    frames: list[Frame] = field(default_factory=list)
    raw: bytes = b""
    ended: bool = False
    _rest: bytes = b""
    _bytes: Any = None

    async def until(self, enough: Callable[[list[Frame]], Any]) -> list[Frame]:
        """Read until the frames suffice, or the stream ends."""
        if self._bytes is None:
            self._bytes = self.response.aiter_raw()
        while not enough(self.frames):
            try:
                piece = await anext(self._bytes)
            except StopAsyncIteration:
                self.ended = True
                assert not self._rest, f"the stream ended within a frame: {self._rest!r}"
                break
            self.raw += piece
            *whole, self._rest = (self._rest + piece).split(b"\n\n")
            for each in whole:
                frame = read_frame(each)
                if frame.data is not None and frame.event != "ping":
                    self.frames.append(frame)
        return self.frames

    async def all(self) -> list[Frame]:
        """Read to the end."""
        frames = await self.until(lambda _: False)
        assert self.ended
        return frames


class Client:
    """Speaks to one front end with one key."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self.key = key
        self.http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
            # No certificates are needed here, and loading them takes longer than most tests.
            verify=False,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self.http.aclose()

    @asynccontextmanager
    async def open(self, method: str, path: str, **given: Any) -> AsyncIterator[Stream]:
        """Begin to read a stream; any status."""
        async with self.http.stream(method, path, **given) as response:
            yield Stream(response)

    # ── Agent API ──

    def process(self, session: str, text: str, **more: Any) -> Any:
        """Begin a turn and follow it (use as a context manager)."""
        headers = more.pop("headers", None)
        return self.open("POST", "/process", json=asked(session, text, **more), headers=headers)

    def follow(self, session: str, response: str = "", cursor: str = "", **params: str) -> Any:
        """Follow a turn or a session (use as a context manager)."""
        params |= {"session_id": session} | ({"response_id": response} if response else {})
        return self.open(
            "GET", "/process", params=params, headers={"Last-Event-ID": cursor} if cursor else {}
        )

    async def turn(self, session: str, text: str, **more: Any) -> list[Frame]:
        """A whole turn."""
        async with self.process(session, text, **more) as stream:
            assert stream.response.status_code == 200, await stream.response.aread()
            frames: list[Frame] = await stream.all()
            return frames

    # ── LiteAgent ──

    async def init(self) -> str:
        """A new LiteAgent session."""
        answer = await self.http.post("/liteAgent/v1/initSession")
        assert answer.status_code == 200, answer.text
        session: str = answer.json()["sessionId"]
        return session

    def chat(self, session: str, text: str, *, stream: bool = True, **more: Any) -> Any:
        """Begin a LiteAgent turn and follow it (use as a context manager)."""
        headers = more.pop("headers", None)
        body = {"content": [{"type": "text", "message": text}], "stream": stream, **more}
        return self.open(
            "POST", "/liteAgent/v1/chat", params={"sessionId": session}, json=body, headers=headers
        )

    async def callback(self, session: str, call: str, result: Any) -> httpx.Response:
        """Answer a call."""
        return await self.http.post(
            "/liteAgent/v1/callback", params={"sessionId": session}, json={"id": call, "result": result}
        )

    async def stop(self, session: str, task: str = "") -> httpx.Response:
        """Stop a task, or all of a session."""
        params = {"sessionId": session} | ({"taskId": task} if task else {})
        return await self.http.post("/liteAgent/v1/stop", params=params)


def large_text(words: int) -> str:
    """So many words of 4,000 characters, which are too long to be joined: an agent that says them makes an event of each."""
    return " ".join(["x" * 4_000] * words)


def asked(session: str, text: str, **more: Any) -> dict[str, Any]:
    """The body of a turn for ``/process``."""
    content = [{"type": "text", "text": text}]
    body: dict[str, Any] = {"input": [{"role": "user", "type": "message", "content": content}], **more}
    if session:
        body["session_id"] = session
    return body


# ── what to look for ──


def terminal(frames: list[Frame]) -> dict[str, Any] | None:
    """The terminal event of an Agent API stream, if it has come."""
    ended = {"completed", "failed", "canceled"}
    for frame in frames:
        if frame.data.get("object") == "response" and frame.data.get("status") in ended:
            event: dict[str, Any] = frame.data
            return event
    return None


def text_of(frames: list[Frame]) -> str:
    """What the deltas of the agent's own messages say, joined."""
    return "".join(
        frame.data["text"]
        for frame in frames
        if frame.data.get("object") == "content"
        and frame.data.get("delta")
        and frame.data.get("type") == "text"
    )


def calls_of(frames: list[Frame], message_type: str = "function_call") -> list[dict[str, Any]]:
    """The completed calls of an Agent API stream: their data."""
    return [
        frame.data["content"][0]["data"]
        for frame in frames
        if frame.data.get("object") == "message"
        and frame.data.get("type") == message_type
        and frame.data.get("status") == "completed"
    ]


def check_whole(frames: list[Frame]) -> None:
    """A whole turn: cursors increase, numbers are dense from 0, messages are closed, one terminal event, and it is the last."""
    cursors = [frame.seq for frame in frames]
    assert cursors == sorted(set(cursors)), "cursors must increase"
    numbers = [frame.data["sequence_number"] for frame in frames]
    assert numbers == list(range(len(numbers))), f"sequence numbers must be dense: {numbers}"
    messages = [frame.data for frame in frames if frame.data["object"] == "message"]
    begun = {each["id"] for each in messages if each["status"] == "created"}
    closed = {each["id"] for each in messages if each["status"] in ("completed", "incomplete")}
    assert begun <= closed, f"messages are left open: {begun - closed}"
    ended = [frame for frame in frames if terminal([frame])]
    assert len(ended) == 1, f"there must be one terminal event, not {len(ended)}"
    assert frames[-1] is ended[0], "nothing may follow the terminal event"
