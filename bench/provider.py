"""A model's provider that paces: OpenAI's chat completions and Responses, each token a server-sent event of its own.

The last user message says what is wanted: ``COUNT RATE`` streams so many tokens at so many a second, each with the
time at which it was written, or with its number if the word ``count`` follows. Other words change the form: ``think``
puts them into the reasoning field, ``refuse`` into a refusal, and ``call`` ends the answer with a call of a tool
``look``. The server is a bare protocol of asyncio, so that it takes little of the machine that it shares with what is
measured.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

HOST = "127.0.0.1"
MODEL = "paced"
CALLED = "look"

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class ChatCompletions:
    """Frames of a streamed chat completion."""

    def __init__(self, words: list[str]) -> None:
        self._field = (
            "reasoning_content" if "think" in words else "refusal" if "refuse" in words else "content"
        )
        self._calls = "call" in words

    def begin(self) -> Iterator[bytes]:
        """What stands before the first token."""
        yield _frame(self._chunk({"role": "assistant", "content": ""}))

    def token(self, text: str) -> bytes:
        """One token."""
        return _frame(self._chunk({self._field: text}))

    def end(self, count: int) -> Iterator[bytes]:
        """What stands behind the last token."""
        if self._calls:
            call = {"index": 0, "id": "call_1", "type": "function"}
            yield _frame(
                self._chunk({"tool_calls": [{**call, "function": {"name": CALLED, "arguments": ""}}]})
            )
            yield _frame(self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}))
        yield _frame(self._chunk({}, "tool_calls" if self._calls else "stop"))
        usage = {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}
        yield _frame({**self._chunk({}), "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {
            "id": "chatcmpl-paced",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": MODEL,
            "system_fingerprint": "fp_paced",
            "choices": [choice],
        }


class Responses:
    """Frames of a streamed response of the Responses API."""

    def __init__(self, words: list[str]) -> None:
        self._kind = "refusal" if "refuse" in words else "output_text"
        self._thinks = "think" in words
        self._calls = "call" in words
        self._number = 0
        self._text = ""

    def begin(self) -> Iterator[bytes]:
        """What stands before the first token."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress"))
        if not self._thinks:
            part = self._part()
            yield self._event(
                "response.content_part.added", item_id="item_0", output_index=0, content_index=0, part=part
            )

    def token(self, text: str) -> bytes:
        """One token."""
        self._text += text
        if self._thinks:
            return self._event(
                "response.reasoning_summary_text.delta",
                item_id="item_0",
                output_index=0,
                summary_index=0,
                delta=text,
            )
        more: dict[str, Any] = {"logprobs": [], "obfuscation": "x"} if self._kind == "output_text" else {}
        return self._event(
            f"response.{self._kind}.delta",
            item_id="item_0",
            output_index=0,
            content_index=0,
            delta=text,
            **more,
        )

    def end(self, count: int) -> Iterator[bytes]:
        """What stands behind the last token."""
        if self._kind == "output_text" and not self._thinks:
            about = {"item_id": "item_0", "output_index": 0, "content_index": 0}
            yield self._event("response.output_text.done", **about, text=self._text, logprobs=[])
            yield self._event("response.content_part.done", **about, part=self._part())
        output = [self._item("completed")]
        yield self._event("response.output_item.done", output_index=0, item=output[0])
        if self._calls:
            call = {"id": "item_1", "type": "function_call", "call_id": "call_1", "name": CALLED}
            about = {"item_id": "item_1", "output_index": 1}
            yield self._event(
                "response.output_item.added",
                output_index=1,
                item={**call, "arguments": "", "status": "in_progress"},
            )
            yield self._event("response.function_call_arguments.delta", **about, delta="{}")
            yield self._event("response.function_call_arguments.done", **about, name=CALLED, arguments="{}")
            output.append({**call, "arguments": "{}", "status": "completed"})
            yield self._event("response.output_item.done", output_index=1, item=output[1])
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 10 + count,
        }
        response = {**self._response("completed"), "output": output, "usage": usage}
        yield self._event("response.completed", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        data = {"type": kind, "sequence_number": self._number - 1, **fields}
        return b"event: %b\n%b" % (kind.encode(), _frame(data))

    def _part(self) -> dict[str, Any]:
        if self._kind == "refusal":
            return {"type": "refusal", "refusal": self._text}
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}

    def _item(self, status: str) -> dict[str, Any]:
        if self._thinks:
            summary = [{"type": "summary_text", "text": self._text}] if self._text else []
            return {"id": "item_0", "type": "reasoning", "summary": summary}
        content = [self._part()] if self._text else []
        return {
            "id": "item_0",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": "resp_paced",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": MODEL,
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
        }


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(data)


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection, one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        top, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        lines = top.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        length = int(headers.get(b"content-length", b"0"))
        if len(body) < length:
            return
        self._received = body[length:]
        self._answer(lines[0].split()[1], orjson.loads(body[:length]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._due is not None:
            self._due.cancel()

    def _answer(self, path: bytes, body: dict[str, Any]) -> None:
        count, rate, *words = _said(body).split()
        self._form = Responses(words) if path.endswith(b"/responses") else ChatCompletions(words)
        self._left = self._count = int(count)
        self._numbered = "count" in words
        self._gap = 1 / float(rate)
        self._transport.write(_HEAD)
        self._write(*self._form.begin())
        # Chats that are begun at once must not go on in step.
        self._next = self._loop.time() + random.random() * self._gap
        self._due = self._loop.call_at(self._next, self._token)

    def _token(self) -> None:
        if not self._left:
            self._write(*self._form.end(self._count))
            self._transport.write(b"0\r\n\r\n")
            return
        said = f"tok{self._count - self._left} " if self._numbered else f"at{time.perf_counter_ns()} "
        self._left -= 1
        self._write(self._form.token(said))
        self._next += self._gap
        self._due = self._loop.call_at(self._next, self._token)

    def _write(self, *frames: bytes) -> None:
        """Each frame as a chunk of its own."""
        self._transport.write(b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames))


def _said(body: dict[str, Any]) -> str:
    """The text of the last message."""
    last = (body.get("messages") or body["input"])[-1]
    content = last["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


def serve(pipe: Connection, port: int) -> None:
    """Say that the port is open, then serve for ever."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Connection, HOST, port, backlog=1024)
        pipe.send((True, port))
        await server.serve_forever()

    uvloop.run(run())
