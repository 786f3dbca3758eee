"""A chat completion, as chunks and whole: the text, and the calls of a response; of tools that run here nothing is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.openai.chat_requests import APPROVE
from turnstream.api.protocols.openai.frames import DONE, unnamed
from turnstream.api.protocols.openai.parts import cost_of, words_of
from turnstream.api.turns.ids import CallId
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import END, PARKED, RESPONSE

if TYPE_CHECKING:
    from turnstream.api.turns.ids import ResponseId
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

_CLOSED = ("completed", "incomplete")
# Between two messages of one turn.
_BETWEEN = "\n\n"


class ChatStream:
    """The chunks of one completion, fed from its segment's first entry.

    Attributes:
        over: it has ended.
        error: what ended it, if it failed.
    """

    def __init__(self, name: ResponseId, model: str, *, usage: bool = False) -> None:
        """With ``usage`` the last chunk says what it cost."""
        self.over = False
        self.error: Json | None = None
        self._name = name
        self._model = model
        self._with_usage = usage
        self._created = 0
        self._finish = ""
        self._frames: list[bytes] = []
        self._begun = self._fed = False
        self._usage: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        # Told: text, thoughts, calls. What is open: part → how much of it was told.
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Json] = []
        self._told: dict[tuple[str, int], list[str]] = {}
        self._last: dict[str, str] = {}

    def feed(self, epoch: int, entry: Entry) -> bytes:  # noqa: ARG002 - no frame has a cursor
        """The frames of an entry."""
        if self.over:
            return b""
        self._created = self._created or entry.created // 1000
        if entry.kind == PARKED:
            self._take_park(entry)
        elif numbered(entry.event):
            self._numbered(entry)
        self._fed = True
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def document(self) -> Json:
        """The completion as one object."""
        message: Json = {"role": "assistant", "content": "".join(self._text) or None, "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish or "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._cost()}

    def _numbered(self, entry: Entry) -> None:
        if entry.kind == RESPONSE:
            self._begin()
            return
        event = orjson.loads(entry.event)
        if entry.kind == END:
            self._take_end(event)
            return
        if entry.kind in ("function_call", "mcp_approval_request"):
            if event["object"] == "message" and event.get("status") in _CLOSED:
                for part in event.get("content") or []:
                    self._take_call(entry.kind, part.get("data") or {})
        elif entry.kind in ("message", "reasoning") and not entry.path:
            self._take_message(entry.kind, event)

    def _take_message(self, kind: str, event: Json) -> None:
        if event["object"] == "content":
            place = event["msg_id"], event.get("index") or 0
            if not event.get("delta"):
                if event.get("status") in _CLOSED:
                    self._finish_part(kind, place, event)
            elif event.get("type") == "text" and event.get("text"):
                self._grow(kind, place, event["text"])
        elif event.get("status") in _CLOSED:
            for index, part in enumerate(event.get("content") or []):
                self._finish_part(kind, (event["id"], index), part)

    def _finish_part(self, kind: str, place: tuple[str, int], part: Json) -> None:
        """Tell what was not told of a part."""
        whole, told = words_of(part), "".join(self._told.get(place, ()))
        if len(whole) > len(told) and whole.startswith(told):
            self._grow(kind, place, whole[len(told) :])

    def _grow(self, kind: str, place: tuple[str, int], text: str) -> None:
        self._told.setdefault(place, []).append(text)
        gathered = self._text if kind == "message" else self._thoughts
        # Of another message than the last.
        if gathered and self._last.get(kind) != place[0]:
            text = _BETWEEN + text
        self._last[kind] = place[0]
        gathered.append(text)
        self._tell({"content" if kind == "message" else "reasoning_content": text})

    def _take_call(self, kind: str, data: Json) -> None:
        call = str(data.get("call_id") or data.get("id") or "")
        name = str(data.get("name") or "")
        made = {
            "id": str(CallId(self._name.session, self._name.task, call)),
            "type": "function",
            "function": {
                "name": name if kind == "function_call" else APPROVE + name,
                "arguments": data.get("arguments") or "{}",
            },
        }
        self._calls.append(made)
        self._tell({"tool_calls": [{"index": len(self._calls) - 1, **made}]})

    def _take_park(self, entry: Entry) -> None:
        usage = orjson.loads(entry.event).get("usage") or {}
        if self._name.segment and not self._fed:
            self._spent = usage
            return
        self._usage = cost_of(usage, self._spent)
        self._ended("tool_calls")

    def _take_end(self, event: Json) -> None:
        self._usage = cost_of(event.get("usage"), self._spent)
        if event["status"] == "failed":
            error = event.get("error") or {}
            self.error = {
                "message": error.get("message") or "The turn failed.",
                "type": "server_error",
                "param": None,
                "code": str(error.get("code") or "server_error"),
            }
            self._begin()
            self._frames.append(unnamed({"error": self.error}))
            self.over = True
            return
        self._ended("stop")

    def _ended(self, reason: str) -> None:
        self._finish = reason
        self._tell({}, reason)
        if self._with_usage:
            head = self._head("chat.completion.chunk")
            self._frames.append(unnamed({**head, "choices": [], "usage": self._cost()}))
        self._frames.append(DONE)
        self.over = True

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._chunk({"role": "assistant", "content": ""}, None)

    def _tell(self, delta: Json, finish: str | None = None) -> None:
        self._begin()
        self._chunk(delta, finish)

    def _chunk(self, delta: Json, finish: str | None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        self._frames.append(unnamed(chunk))

    def _head(self, kind: str) -> Json:
        name = f"chatcmpl-{self._name.task}-{self._name.segment}"
        return {"id": name, "object": kind, "created": self._created, "model": self._model}

    def _cost(self) -> Json:
        given, made = self._usage.get("input_tokens", 0), self._usage.get("output_tokens", 0)
        return {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": self._usage.get("total_tokens", given + made),
        }
