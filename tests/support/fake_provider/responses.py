"""The provider's Responses API with background mode: it generates while nobody reads, and counts what it generates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import JSONResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Reply:
    """What one response is to say.

    Attributes:
        tokens: the text, token by token.
        seconds: how long each takes.
        hold: nothing more is generated until it is set, after ``before`` tokens.
        call: a tool call instead of text: name and arguments.
        fails: a code with which it fails instead of its end.
    """

    tokens: tuple[str, ...] = ()
    seconds: float = 0.0
    hold: asyncio.Event | None = None
    before: int = 0
    call: tuple[str, str] | None = None
    fails: str = ""


@dataclass
class Cut:
    """A connection ends after so many events; ``clean``: in order, as HTTP ends a response."""

    after: int
    clean: bool = False


class CutOff(Exception):  # noqa: N818 - it is no error of the server
    """Cuts a connection."""


@dataclass
class Refusal:
    """An answer that is none: a status, headers and a body."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Made:
    """A response, its events so far, how many tokens it has cost, and how often who read it left before its end."""

    id: str
    body: dict[str, Any]
    reply: Reply
    status: str = "queued"
    generated: int = 0
    left: int = 0
    text: str = ""
    output: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether no event comes any more."""
        return self.status not in {"queued", "in_progress"}

    def whole(self) -> dict[str, Any]:
        """The response object."""
        error = {"code": self.reply.fails, "message": "no"} if self.status == "failed" else None
        usage = {
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": self.generated,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10 + self.generated,
        }  # fmt: skip
        return {
            "id": self.id, "object": "response", "created_at": 1, "status": self.status, "model": self.body["model"],
            "background": bool(self.body.get("background")), "output": self.output, "error": error,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage if self.over else None,
        }  # fmt: skip

    def add(self, kind: str, **about: Any) -> None:
        """Another event for all who read."""
        self.events.append({"type": kind, "sequence_number": len(self.events), **about})
        more, self.more = self.more, asyncio.Event()
        more.set()


class Responses:
    """Makes responses by script, goes on with those in the background while nobody reads, and gives them again.

    Attributes:
        script: the replies of the next responses, or what gives the reply to a request.
        made: all responses, by id.
        asked: what was asked for, in order: ``create``, ``ID``, ``ID stream``, ``ID after N``, ``ID cancel``.
        cuts: for each of the next connections, where it is cut, if it is; or what says so.
        streams: whether events of a response are given again; if not, as OpenAI does after five minutes.
        remembers: whether responses are.
        refusals: for each of the next requests for a response that was made, a status and headers instead.
        keys: idempotency key → response, where it is honoured; None: it is not, as OpenAI promises nothing of it.
    """

    def __init__(self) -> None:
        self.script: list[Reply] | Callable[[dict[str, Any]], Reply] = []
        self.made: dict[str, Made] = {}
        self.asked: list[str] = []
        self.cuts: list[Cut | None] | Callable[[], Cut | None] = []
        self.refusals: list[Refusal] = []
        self.streams = True
        self.remembers = True
        self.keys: dict[str, str] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def generated(self) -> int:
        """Tokens of all responses: what is paid."""
        return sum(each.generated for each in self.made.values())

    async def close(self) -> None:
        """Generate nothing more."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def create(self, body: dict[str, Any], key: str) -> Response:
        """POST /v1/responses."""
        self.asked.append("create")
        made = self.made.get(self.keys.get(key, "")) if self.keys is not None else None
        if made is None and not self.script:
            return JSONResponse({"error": {"message": "the test's script is over"}}, 400)
        if made is None:
            reply = self.script(body) if callable(self.script) else self.script.pop(0)
            made = Made(f"resp_{len(self.made) + 1}", body, reply)
            self.made[made.id] = made
            if self.keys is not None:
                self.keys[key] = made.id
            made.add("response.created", response=made.whole())
            self._begin(made)
        return self._given(made, stream=bool(body.get("stream")), after=-1)

    def retrieve(self, response: str, *, stream: bool, after: str | None) -> Response:
        """GET /v1/responses/{id}."""
        place = f"after {after}" if after is not None else "stream"
        self.asked.append(f"{response} {place}" if stream else response)
        if self.refusals:
            refusal = self.refusals.pop(0)
            return JSONResponse(refusal.body, refusal.status, refusal.headers)
        made = self.made.get(response)
        if made is None or not self.remembers:
            return JSONResponse({"error": {"message": f"Response with id '{response}' not found."}}, 404)
        if stream and not self.streams:
            text = "This response can no longer be streamed because it is more than 5 minutes old"
            return JSONResponse({"error": {"message": text}}, 400)
        return self._given(made, stream=stream, after=-1 if after is None else int(after))

    def cancel(self, response: str) -> Response:
        """POST /v1/responses/{id}/cancel; a response that is over stays as it is."""
        self.asked.append(f"{response} cancel")
        made = self.made[response]
        if not made.over:
            made.status = "cancelled"
            made.more.set()
        return JSONResponse(made.whole())

    def _begin(self, made: Made) -> None:
        task = asyncio.create_task(_generate(made))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _given(self, made: Made, *, stream: bool, after: int) -> Response:
        if not stream:
            return JSONResponse(made.whole())
        cut = self.cuts() if callable(self.cuts) else (self.cuts.pop(0) if self.cuts else None)
        return StreamingResponse(_sent(made, after + 1, cut), media_type="text/event-stream")


async def _sent(made: Made, at: int, cut: Cut | None) -> AsyncIterator[bytes]:
    """The events from a place on, as they come."""
    last = None if cut is None else at + cut.after
    while True:
        more = made.more
        while at < len(made.events) and at != last:
            event = made.events[at]
            at += 1
            yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
        if at == last:
            if cut is not None and cut.clean:
                return
            raise CutOff
        if made.over:
            return
        try:
            await more.wait()
        except asyncio.CancelledError:
            made.left += 1
            raise


async def _generate(made: Made) -> None:
    made.status = "in_progress"
    made.add("response.in_progress", response=made.whole())
    item = _say(made) if made.reply.call is None else _call(made, *made.reply.call)
    async for _ in item:
        if made.over:
            return
    made.status = "failed" if made.reply.fails else "completed"
    made.add(f"response.{made.status}", response=made.whole())


async def _say(made: Made) -> AsyncIterator[None]:
    item: dict[str, Any] = {
        "id": f"msg_{made.id}", "type": "message", "role": "assistant", "status": "in_progress", "content": []
    }  # fmt: skip
    part = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    made.add("response.output_item.added", output_index=0, item=item)
    content = {"type": "output_text", "text": "", "annotations": []}
    made.add("response.content_part.added", **part, part=content)
    for number, token in enumerate(made.reply.tokens):
        if made.reply.hold is not None and number == made.reply.before:
            await made.reply.hold.wait()
        await asyncio.sleep(made.reply.seconds)
        yield
        made.generated += 1
        made.text += token
        made.add("response.output_text.delta", **part, delta=token, logprobs=[])
    content = {**content, "text": made.text}
    made.add("response.output_text.done", **part, text=made.text, logprobs=[])
    made.add("response.content_part.done", **part, part=content)
    made.output = [{**item, "status": "completed", "content": [content]}]
    made.add("response.output_item.done", output_index=0, item=made.output[0])


async def _call(made: Made, name: str, arguments: str) -> AsyncIterator[None]:
    item: dict[str, Any] = {
        "id": f"fc_{made.id}", "type": "function_call", "call_id": f"call_{made.id}", "name": name, "arguments": ""
    }  # fmt: skip
    made.add("response.output_item.added", output_index=0, item=item)
    about = {"item_id": item["id"], "output_index": 0}
    await asyncio.sleep(made.reply.seconds)
    yield
    made.generated += 1
    made.add("response.function_call_arguments.delta", **about, delta=arguments)
    made.add("response.function_call_arguments.done", **about, name=name, arguments=arguments)
    made.output = [{**item, "arguments": arguments, "status": "completed"}]
    made.add("response.output_item.done", output_index=0, item=made.output[0])
