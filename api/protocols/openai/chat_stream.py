"""A chat completion, as chunks and whole: the text, and the calls of a response; tools that run here are not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnstream.api.protocols.openai.chat_requests import APPROVE
from turnstream.api.streaming.dialect import DONE, data_frame
from turnstream.api.streaming.segment_encoder import ASKING, TEXT, SegmentEncoder, cut_short
from turnstream.api.turns.ids import CallId

if TYPE_CHECKING:
    from turnstream.api.streaming.segment_encoder import EncodedMessage, Part
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.api.turns.ids import ResponseId
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

# Between two messages of one turn.
_BETWEEN = "\n\n"

# How a completion ends, by how its turn did. OpenAI has no word for a turn that was stopped: `length` is how its clients know
# that an answer is not all of it.
_REASONS = {"completed": "stop", "canceled": "length"}

# A turn that failed was made: its client is not to ask for it again.
_NOT_AGAIN = ((b"x-should-retry", b"false"),)


class ChatStream(SegmentEncoder):
    """The chunks of one completion."""

    def __init__(self, name: ResponseId, model: str, *, usage: bool = False) -> None:
        """With ``usage`` the last chunk has its usage."""
        super().__init__(name.segment)
        self._name = name
        self._model = model
        self._with_usage = usage
        self._finish_reason: str | None = None
        self._error: Json | None = None
        self._begun = False
        self._usage: dict[str, int] = {}
        self._calls: list[Json] = []
        # Of each kind: what was said; and of both, what a worker did not finish.
        self._said: dict[str, list[EncodedMessage]] = {"message": [], "reasoning": []}
        self._broken: set[str] = set()

    @property
    def text(self) -> str:
        """The text that was sent so far."""
        return _BETWEEN.join(map(_words, self._said["message"]))

    def outcome(self) -> tuple[int, Json, Headers]:
        """The completion as one object, or what it failed of."""
        if self._error is not None:
            return 500, {"error": self._error}, _NOT_AGAIN
        message: Json = {"role": "assistant", "content": self._whole("message") or None, "refusal": None}
        if thoughts := self._whole("reasoning"):
            message["reasoning_content"] = thoughts
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        return 200, {**self._head("chat.completion"), "choices": [choice], "usage": self._cost()}, ()

    def take_status(self, status: str) -> None:  # noqa: ARG002 - whichever it is
        """Its first chunk."""
        if not self._begun:
            self._begun = True
            self._chunk({"role": "assistant", "content": ""}, None)

    def begin_message(self, message: EncodedMessage) -> None:
        """Behind what was said before, something between them."""
        said = self._said[message.kind]
        if said:
            self._chunk({_field(message): _BETWEEN}, None)
        said.append(message)

    def piece(self, part: Part) -> bytes:
        """A chunk of text."""
        return data_frame(self._chunk_of({_field(part.message): TEXT}, None))

    def end_message(self, message: EncodedMessage, status: str) -> None:
        """What a worker did not finish is written anew by the next one."""
        if status == "incomplete":
            self._broken.add(message.name)

    def take_data(self, entry: Entry, name: str, data: Json) -> None:  # noqa: ARG002
        """A call that the client is to answer."""
        if entry.kind not in ASKING:
            return
        call = str(data.get("call_id") or data.get("id") or "")
        function = str(data.get("name") or "")
        made = {
            "id": str(CallId(self._name.session, self._name.task, call)),
            "type": "function",
            "function": {
                "name": function if entry.kind == "function_call" else APPROVE + function,
                "arguments": data.get("arguments") or "{}",
            },
        }
        self._calls.append(made)
        self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **made}]}, None)

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:  # noqa: ARG002
        """The client is to answer its calls."""
        self._ended("tool_calls", usage)

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:  # noqa: ARG002
        """The end, or an error."""
        if end["status"] in _REASONS:
            self._ended(cut_short(end) or _REASONS[end["status"]], usage)
            return
        error = end.get("error") or {}
        self._error = {
            "message": error.get("message") or "The turn failed.",
            "type": "server_error",
            "param": None,
            "code": str(error.get("code") or "server_error"),
        }
        self.frames.append(data_frame({"error": self._error}))

    def _whole(self, kind: str) -> str:
        """All text of that kind, without what was written anew."""
        said = self._said[kind]
        return _BETWEEN.join(
            _words(message) for message in said if message is said[-1] or message.name not in self._broken
        )

    def _ended(self, reason: str, usage: dict[str, int]) -> None:
        self._finish_reason, self._usage = reason, usage
        self._chunk({}, reason)
        if self._with_usage:
            head = self._head("chat.completion.chunk")
            self.frames.append(data_frame({**head, "choices": [], "usage": self._cost()}))
        self.frames.append(DONE)

    def _chunk(self, delta: Json, finish: str | None) -> None:
        if not self.is_quiet:
            self.frames.append(data_frame(self._chunk_of(delta, finish)))

    def _chunk_of(self, delta: Json, finish: str | None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, kind: str) -> Json:
        name = f"chatcmpl-{self._name.task}-{self._name.segment}"
        return {"id": name, "object": kind, "created": self.created // 1000, "model": self._model}

    def _cost(self) -> Json:
        given, made = self._usage.get("input_tokens", 0), self._usage.get("output_tokens", 0)
        return {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": self._usage.get("total_tokens", given + made),
            "prompt_tokens_details": {"cached_tokens": self._usage.get("cached_tokens", 0)},
            "completion_tokens_details": {"reasoning_tokens": self._usage.get("reasoning_tokens", 0)},
        }


def _words(message: EncodedMessage) -> str:
    return "".join(part.written for part in message.parts.values())


def _field(message: EncodedMessage) -> str:
    return "content" if message.kind == "message" else "reasoning_content"
