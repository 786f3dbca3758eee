"""A provider of chat completions over real HTTP, which does what a test's script says, request by request."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.fake_provider.responses import Refusal, Responses
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request

KEY_VARIABLE = "TEST_MODEL_KEY"
KEY = "sk-provider-0123456789abcdef"


@dataclass(frozen=True)
class Call:
    """A tool call of the model; ``arguments`` is JSON text as the model writes it, right or wrong."""

    name: str
    arguments: str = "{}"
    id: str = "call_of_provider"


class Cut(Exception):  # noqa: N818 - it is no error of the server
    """Cuts the connection in the middle of an answer."""


class Reset(Cut):
    """Resets it."""


@dataclass
class Answer:
    """One answer of the model, streamed.

    Attributes:
        pieces: the text, piece by piece.
        seconds: how long each takes.
        usage: tokens of the request and of the answer; ``cached`` and ``reasoned`` are among them.
        thoughts: reasoning before it, in the field in which DeepSeek, Qwen and vLLM send it.
        calls: tool calls, after the text.
        cut: end the connection after the text, without an end of the stream.
        reset: the same, by a reset of TCP.
        until: wait for it after the text.
        raw: send these bytes after the text, instead of all that would follow.
    """

    pieces: tuple[str, ...] = ()
    seconds: float = 0.0
    thoughts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    usage: tuple[int, int] = (10, 5)
    cached: int = 0
    reasoned: int = 0
    finish: str = ""
    cut: bool = False
    reset: bool = False
    until: asyncio.Event | None = None
    raw: bytes | None = None


def says(*pieces: str, **more: Any) -> Answer:
    """The model says something."""
    return Answer(pieces=pieces, **more)


def calls(*each: Call, **more: Any) -> Answer:
    """The model calls tools, all at once."""
    return Answer(calls=each, **more)


class Provider:
    """Answers by script, and remembers what it was asked.

    Attributes:
        script: the answers still to give, the next one first; an empty script is a failure of the test.
        answer: what gives the answer to a request instead.
        requests: bodies of all requests, in order.
        headers: their headers.
        times: when they came, in seconds of the loop's clock.
        left: how many answers were closed by who asked, before their end.
        responses: what it does in the form of OpenAI's Responses API.
        files: what it serves beside, by path.
        others: paths that were asked for beside, whether there or not.
    """

    def __init__(self) -> None:
        self.script: list[Answer | Refusal] = []
        self.answer: Callable[[dict[str, Any]], Answer | Refusal] | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.left = 0
        self.others: list[str] = []
        self.files: dict[str, bytes] = {}
        self.responses = Responses()
        self._app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/responses/{id}", self._retrieve),
                Route("/v1/responses/{id}/cancel", self._cancel, methods=["POST"]),
                Route("/{path:path}", self._other),
            ]
        )
        self._server: _Server
        self._serving: asyncio.Task[None] | None = None
        self._port = 0
        self.address = ""

    @property
    def base_url(self) -> str:
        """What a spec gives as ``base_url``."""
        return f"{self.address}/v1"

    async def start(self) -> None:
        """Serve on a free port; after `close` on the same one again."""
        self._server = _Server(
            uvicorn.Config(self._app, port=self._port, log_config=None, access_log=False, lifespan="off")
        )
        self._serving = asyncio.create_task(self._server.serve())
        await wait_until(lambda: self._server.started, "the provider to serve")
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"

    async def close(self) -> None:
        """Stop serving, and generating; connections are cut."""
        await self.responses.close()
        self._server.should_exit = True
        self._server.force_exit = True
        if self._serving is not None:
            await self._serving
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[Any]:
        return list(self._server.server_state.connections)

    def _reset(self, client: tuple[str, int]) -> None:
        """Have the connection with a client reset when it is closed, and close it."""
        for connection in self._connections():
            if connection.client == client:
                opened = connection.transport.get_extra_info("socket")
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.transport.abort()

    def messages(self, request: int = -1) -> list[dict[str, Any]]:
        """The messages of a request."""
        messages: list[dict[str, Any]] = self.requests[request]["messages"]
        return messages

    async def _other(self, request: Request) -> Response:
        self.others.append(request.url.path)
        if (held := self.files.get(request.url.path)) is not None:
            return Response(held, media_type="application/pdf")
        return JSONResponse({}, status_code=404)

    async def _respond(self, request: Request) -> Response:
        """The other form of OpenAI's: kept, and refused where the script has nothing for it."""
        body = orjson.loads(await request.body())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if not (self.responses.script or self.responses.made):
            return JSONResponse({"error": {"message": "not in this form"}}, status_code=400)
        return self.responses.create(body, request.headers.get("Idempotency-Key", ""))

    async def _retrieve(self, request: Request) -> Response:
        after = request.query_params.get("starting_after")
        stream = request.query_params.get("stream") == "true"
        return self.responses.retrieve(request.path_params["id"], stream=stream, after=after)

    async def _cancel(self, request: Request) -> Response:
        return self.responses.cancel(request.path_params["id"])

    async def _complete(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.requests.append(body)
        self.times.append(asyncio.get_running_loop().time())
        self.headers.append(dict(request.headers))
        if wrong := _refused(body["messages"]):
            return JSONResponse({"error": {"message": wrong}}, status_code=400)
        if not self.script and self.answer is None:
            return JSONResponse({"error": {"message": "the test's script is over"}}, status_code=400)
        answer = self.answer(body) if self.answer is not None else self.script.pop(0)
        if isinstance(answer, Refusal):
            return Response(orjson.dumps(answer.body), answer.status, answer.headers, "application/json")
        if not body.get("stream"):
            return JSONResponse(_whole(answer, body["model"]))
        sent = self._sent(_stream(answer, body["model"]), request.scope["client"])
        return StreamingResponse(sent, media_type="text/event-stream")

    async def _sent(self, answer: AsyncIterator[bytes], client: tuple[str, int]) -> AsyncIterator[bytes]:
        try:
            async for piece in answer:
                yield piece
        except asyncio.CancelledError:
            self.left += 1
            raise
        except Reset:
            self._reset(client)
            raise


def _refused(messages: list[dict[str, Any]]) -> str:
    """What a strict provider has against a conversation; empty when it takes it.

    As OpenAI: each call has its result, directly behind it. As others beside: user and assistant take turns.
    """
    open_calls: list[str] = []
    last = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in open_calls:
                return "a tool's result without its call"
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return "a call without its result"
        elif role == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
            if last == "assistant" or not (open_calls or message.get("content")):
                return "an assistant's message after another one, or an empty one"
        elif role == "system" and last:
            return "a system message in the middle"
        last = role if role != "system" else last
    if open_calls or last not in {"user", "tool"}:
        return "nothing to answer"
    return ""


async def _stream(answer: Answer, model: str) -> AsyncIterator[bytes]:
    yield _chunk(model, {"role": "assistant", "content": ""})
    for piece in answer.thoughts:
        yield _chunk(model, {"content": None, "reasoning_content": piece})
    for piece in answer.pieces:
        if answer.seconds:
            await asyncio.sleep(answer.seconds)
        yield _chunk(model, {"content": piece})
    if answer.until is not None:
        await answer.until.wait()
    if answer.cut or answer.reset:
        raise Reset if answer.reset else Cut
    if answer.raw is not None:
        yield answer.raw
        return
    for index, call in enumerate(answer.calls):
        named = {"name": call.name, "arguments": ""}
        yield _chunk(
            model,
            {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": named}]},
        )
        # In pieces that split wherever they like, as providers send them.
        size = max(7, len(call.arguments) // 1000)
        for at in range(0, len(call.arguments), size):
            more = {"arguments": call.arguments[at : at + size]}
            yield _chunk(model, {"tool_calls": [{"index": index, "function": more}]})
    yield _chunk(model, {}, answer.finish or ("tool_calls" if answer.calls else "stop"))
    yield _event({**_envelope(model), "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def _whole(answer: Answer, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.pieces) or None}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    finish = answer.finish or ("tool_calls" if answer.calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    envelope = {**_envelope(model), "object": "chat.completion"}
    return {**envelope, "choices": [choice], "usage": _usage(answer)}


def _usage(answer: Answer) -> dict[str, Any]:
    prompt, completion = answer.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoned},
    }


def _envelope(model: str) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 1, "model": model}


def _chunk(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event({**_envelope(model), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
