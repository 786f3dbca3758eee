"""A turn as chunks of the AI SDK's UI message stream: one segment to who answers, or the turn from its beginning to who comes back.

Each model's answer is a step. Nothing but ``data-*`` is sent that one of the versions does not know: to these an unknown chunk is
an error. The fifth has no approvals: there they are calls of functions named ``approve_<tool>``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from turnstream.api.streaming.dialect import DONE, EncodedDialect, data_frame
from turnstream.api.streaming.segment_encoder import ASKING, TEXT, SegmentEncoder, words_of

if TYPE_CHECKING:
    from collections.abc import Container

    from turnstream.api.streaming.segment_encoder import EncodedMessage, Part
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

HEADERS = ((b"x-vercel-ai-ui-message-stream", b"v1"),)

# In the fifth version: of the name of what asks for consent, and of its id, since the tool's own call has the same.
APPROVE = "approve_"

# Of a tool that runs here. In the fifth version its result must have them, too.
_OURS: Json = {"dynamic": True, "providerExecuted": True}
_DYNAMIC: Json = {"dynamic": True}

# Of parts: where their links are.
LINKS = {"image": "image_url", "file": "file_url", "video": "video_url"}
# Of chunks that go to the part of their call, wherever that is.
_BEHIND_CALLS = ("tool-output-", "tool-approval-response")
_RESULTS = ("plugin_call_output", "mcp_call_output", "component_call_output", "function_call_output")


class Chunks(Protocol):
    """Takes chunks in place of a client."""

    def take(self, chunk: Json) -> None:
        """The next one."""


class ChunkStream(SegmentEncoder):
    """The chunks of a segment, or of a turn up to where it is."""

    def __init__(
        self,
        task: str,
        segment: int = 0,
        *,
        fifth: bool = False,
        passes: int = 0,
        settled: Container[str] = (),
        into: Chunks | None = None,
    ) -> None:
        """``settled``: calls that had their answers before: the client is not asked again. ``into`` gets the chunks, if given."""
        super().__init__(segment, passes=passes)
        self._task = task
        self._fifth = fifth
        self._settled = settled
        self._into = into
        self._begun = False
        # Whether the step has parts, and whether these include results: what the model says then is its next answer.
        self._filled = self._answered = False
        # Calls that have no result, and the flags of their parts; those that the client is to answer.
        self._open: dict[str, Json] = {}
        self._asked: set[str] = set()
        # Tools that the client was asked about, in this segment or before: their call was sent. Those that it denied.
        self._consents: dict[str, bool] = {}
        self._others: set[tuple[str, int]] = set()
        # Sub-agents' messages: how much of each has come, and how much was sent last.
        self._sizes = Counter[str]()
        self._reports: dict[str, int] = {}
        # A park was passed, and nothing was sent since but results of what came before it.
        self._passed = False

    def is_written(self, entry: Entry) -> bool:
        """Of sub-agents all but their thoughts."""
        return not entry.path or entry.kind != "reasoning"

    # ── text ──

    def take_status(self, status: str) -> None:  # noqa: ARG002 - whichever it is
        """The first chunks. Parts of a further segment join the same message."""
        if not self._begun:
            self._begun = True
            self._tell("start", messageId=self._task)
            self._tell("start-step")

    def begin_part(self, part: Part) -> None:
        """A part of its own; a sub-agent's has all of its message's."""
        if not part.message.path:
            self._say()
            self._tell(f"{_kind(part)}-start", id=_id(part))

    def piece(self, part: Part) -> bytes:
        """A piece of text."""
        return data_frame(_delta(part, TEXT))

    def take_piece(self, part: Part, piece: bytes) -> None:
        """A piece of text; a sub-agent's is sent with what came before it, now and then."""
        if part.message.path:
            self._sizes[part.message.name] += len(piece)
            self._report(part.message, least=2)
        elif self._into is not None:
            self._into.take(_delta(part, orjson.loads(piece)))
        else:
            super().take_piece(part, piece)

    def end_part(self, part: Part) -> None:
        """A part is complete."""
        if not part.message.path:
            self._tell(f"{_kind(part)}-end", id=_id(part))

    def end_message(self, message: EncodedMessage, status: str) -> None:  # noqa: ARG002 - a message is over
        """The whole text of a sub-agent's message."""
        if message.path:
            self._report(message, least=1)

    def _report(self, message: EncodedMessage, *, least: int) -> None:
        """Send a sub-agent's text so far, if that is so many times as much as was sent: it replaces that."""
        size, told = self._sizes[message.name], self._reports.get(message.name, 0)
        if size >= max(told * least, told + 1):
            self._reports[message.name] = size
            text = "".join(part.text for part in message.parts.values())
            self._tell("data-subagent", id=message.name, data={"agent": message.path, "text": text})

    def take_other_part(self, message: EncodedMessage, index: int, part: Json) -> bool:
        """A file by its link, or data; what has no link is sent as text."""
        link = part.get(LINKS.get(str(part.get("type")), ""))
        if not isinstance(link, str) and part.get("type") != "data":
            return not words_of(part)
        if (message.name, index) not in self._others:
            self._others.add((message.name, index))
            self._say()
            if isinstance(link, str):
                self._tell("file", url=link, mediaType=media_type(link, str(part["type"])))
            else:
                self._tell("data-output", id=f"{message.name}:{index}", data=part.get("data"))
        return True

    def take_error(self, entry: Entry, event: Json) -> None:  # noqa: ARG002 - the event has it all
        """What went wrong, beside the answer."""
        told = {"code": event.get("code"), "message": event.get("message")}
        self._tell("data-error", id=event["id"], data=told)

    # ── calls ──

    def take_data(self, entry: Entry, name: str, data: Json) -> None:
        """A call, or its result."""
        call = str(data.get("call_id") or data.get("id") or data.get("dispatchId") or "")
        kind = entry.kind
        if kind in ASKING:
            self._ask(entry, call, data)
        elif kind == "mcp_approval_response":
            self._consent(data)
        elif kind in _RESULTS:
            if data.get("name") == "reflection":
                self._tell("data-reflection", id=name, data=data.get("output"))
            else:
                self._result(kind, call, data)
        elif kind in ("plugin_call", "mcp_call", "component_call") and call:
            self._call(entry, call, data)

    def _ask(self, entry: Entry, call: str, data: Json) -> None:
        """The client is to answer: a function of its own, or whether a tool may run."""
        tool = str(data.get("name") or "")
        consent = entry.kind == "mcp_approval_request"
        flags: Json = {}
        if consent:
            self._consents[call] = True
            if self._fifth:
                call, tool = APPROVE + call, APPROVE + tool
            else:
                flags = _DYNAMIC
        self._model_goes_on(entry)
        self._asked.add(call)
        self._open[call] = flags
        told = {"toolCallId": call, "toolName": tool, **flags}
        self._tell("tool-input-start", **told)
        if call.removeprefix(APPROVE) in self._settled:
            # Its page would be asked to do it again by `tool-input-available`.
            self._tell("tool-input-delta", toolCallId=call, inputTextDelta=data.get("arguments") or "{}")
            return
        self._tell("tool-input-available", **told, input=_arguments(data))
        if consent and not self._fifth:
            self._tell("tool-approval-request", approvalId=call, toolCallId=call)

    def _consent(self, data: Json) -> None:
        call = str(data.get("approval_request_id") or "")
        approved = data.get("approve") is True
        self._consents[call] = approved
        self._asked.discard(call)
        answer = {"approved": approved, **({"reason": data["reason"]} if data.get("reason") else {})}
        if self._fifth:
            self._asked.discard(APPROVE + call)
            if self._open.pop(APPROVE + call, None) is not None:
                output = {"approve": approved, **({"reason": data["reason"]} if data.get("reason") else {})}
                self._tell("tool-output-available", toolCallId=APPROVE + call, output=output)
        elif self._into is not None:
            # A chunk that the sixth version does not know.
            self._tell("tool-approval-response", approvalId=call, **answer)

    def _call(self, entry: Entry, call: str, data: Json) -> None:
        """A tool that runs here, or a sub-agent."""
        if call in self._consents and not self._fifth:
            # The client has it, as what it was asked about.
            self._open.setdefault(call, _DYNAMIC)
            return
        self._model_goes_on(entry)
        self._open[call] = _OURS
        told = {
            "toolCallId": call,
            "toolName": str(data.get("name") or data.get("agentId") or "tool"),
            **_OURS,
        }
        self._tell("tool-input-start", **told)
        self._tell("tool-input-available", **told, input=_arguments(data))

    def _result(self, kind: str, call: str, data: Json) -> None:
        self._asked.discard(call)
        flags = self._open.pop(call, None)
        if flags is None:
            # Of a call before this segment: the client has given it itself, or knows the tool by the call's id.
            if kind == "function_call_output":
                return
            flags = _OURS
        self._answered = True
        if self._consents.get(call) is False and not self._fifth:
            self._tell("tool-output-denied", toolCallId=call)
            return
        error, output = _output(kind, data)
        if error is None:
            self._tell("tool-output-available", toolCallId=call, output=output, **flags)
        else:
            self._tell("tool-output-error", toolCallId=call, errorText=error, **flags)

    # ── steps, and the end ──

    def _model_goes_on(self, entry: Entry) -> None:
        if not entry.path:
            self._say()

    def _say(self) -> None:
        """A part of the agent's own comes: behind results, of a further step.

        Not while the client is asked: it looks at the last step for whether all its calls have answers.
        """
        if self._passed or (self._answered and self._filled and not self._asked):
            self._next_step()
        self._filled = True

    def _next_step(self) -> None:
        self._passed = False
        self._tell("finish-step")
        self._tell("start-step")
        self._filled = self._answered = False

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - the message's own counts
        """The client is asked."""
        self._end("tool-calls", park)

    def pass_park(self) -> None:
        """What follows begins with a step, as in a stream of its own; until then a page looks in the last step for the calls."""
        self._passed = True

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - as above
        """The end."""
        status = end["status"]
        if self._open and status != "completed":
            for call, flags in self._open.items():
                text = "The turn ended before this had its result."
                self._tell("tool-output-error", toolCallId=call, errorText=text, **flags)
            # A client that answers by itself would take the last step for one that it has to answer.
            self._next_step()
        if status == "failed":
            error = end.get("error") or {}
            self._tell("error", errorText=error.get("message") or "The turn failed.")
            self._done()
        elif status == "completed":
            self._end("stop", end)
        else:
            self._tell("abort")
            self._end(None, end)

    def _end(self, reason: str | None, event: Json) -> None:
        self._tell("finish-step")
        metadata = {"usage": event["usage"]} if event.get("usage") else {}
        ignored = (event.get("metadata") or {}).get("ignored")
        if ignored:
            metadata["ignored"] = ignored
        told: Json = {"finishReason": reason} if reason else {}
        self._tell("finish", **told, **({"messageMetadata": metadata} if metadata else {}))
        self._done()

    def _done(self) -> None:
        if self._into is None:
            self.frames.append(DONE)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._passed and not kind.startswith(_BEHIND_CALLS):
            self._next_step()
        chunk = {"type": kind, **fields}
        if self._into is not None:
            self._into.take(chunk)
        else:
            self.frames.append(data_frame(chunk))


def _opened(session: str, entry: Entry) -> ChunkStream:  # noqa: ARG001 - a chunk tells no session
    return ChunkStream(entry.task)


CHUNKS = EncodedDialect("ai-sdk", _opened)


def _delta(part: Part, text: str) -> Json:
    return {"type": f"{_kind(part)}-delta", "id": _id(part), "delta": text}


def _kind(part: Part) -> str:
    return "reasoning" if part.message.kind == "reasoning" else "text"


def _id(part: Part) -> str:
    return f"{part.message.name}:{part.place}"


def media_type(link: str, kind: str) -> str:
    """The type of what is behind a link, as far as the link and the part's type tell."""
    if link.startswith("data:"):
        return link[5:].partition(",")[0].partition(";")[0] or "text/plain"
    return "application/octet-stream" if kind == "file" else f"{kind}/*"


def _arguments(data: Json) -> Any:
    if "arguments" not in data:
        return {"content": data.get("content") or []}
    given = data["arguments"] or "{}"
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError:
        return given


def _output(kind: str, data: Json) -> tuple[str | None, Any]:
    """What went wrong, if anything did; else what came of it, as JSON where it is an object or a list."""
    if data.get("error"):
        return str(data["error"]), None
    if kind == "component_call_output":
        return None, "".join(str(part.get("message") or "") for part in data.get("content") or [])
    output = data.get("output")
    if isinstance(output, str) and output[:1] in ("{", "["):
        try:
            output = orjson.loads(output)
        except orjson.JSONDecodeError:
            return None, output
    if kind == "function_call_output" and isinstance(output, dict) and output.keys() == {"error"}:
        return str(output["error"]), None
    return None, output
