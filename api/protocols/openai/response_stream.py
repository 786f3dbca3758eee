"""One response as its events: the encoder of the stream, and the response as far as it has come.

A response is one segment of a turn. Each message of the log is an item of its output, but a tool's call and its result, which
are one, and the messages of sub-agents, which are left out: their client could not tell them from the answer.

No frame has an ``id:``: the Python client never forgets one, and then takes the blank line behind a comment for an event. The
client's place is the ``sequence_number`` of the last event that it received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.openai.resource import resource
from turnstream.api.streaming.dialect import DONE, one_line
from turnstream.api.streaming.segment_encoder import SegmentEncoder, cut_short
from turnstream.api.turns.ids import CallId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnstream.api.streaming.segment_encoder import EncodedMessage, Part
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.api.turns.ids import ResponseId
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

# Where a log goes on in another epoch, numbers go on so far behind the last one, and behind ten thousands for each second since the
# turn was taken: farther than what was told, and then lost, had come, if there were not more in a second. They are less than
# 2**31, as clients of .NET want them, for two days.
JUMP = 10_000
EPOCH_PER_NUMBER = 1_000_000 // JUMP

# The few codes that a response's error may have.
_ERRORS = {"too_many": "rate_limit_exceeded", "rate_limit": "rate_limit_exceeded"}


class ResponseStream(SegmentEncoder):
    """The events of one response.

    1. Its events are numbered densely from 0; those up to ``seen`` are made and not written, so that any front end goes on
       where another one was cut.
    2. Where the log went on in another epoch (its broker failed over or restarted, and may have lost what was told), numbers go on
       at one that no other epoch of this log gives: a number is never that of two events.
    3. At its end all of its items are done.

    Attributes:
        output: its items, so far.
    """

    def __init__(
        self,
        name: ResponseId,
        echo: Mapping[str, Any],
        agent: str,
        *,
        submitted: int = 0,
        epoch: int = 0,
        seen: int = -1,
    ) -> None:
        """Without the time at which the turn was ``submitted`` (Unix milliseconds), and an ``epoch``, these are its first entry's."""
        super().__init__(name.segment)
        self.output: list[Json] = []
        self._name = name
        self._echo = dict(echo)
        self._echo.setdefault("model", agent)
        if name.segment and not self._echo.get("conversation"):
            self._echo["previous_response_id"] = str(name._replace(segment=name.segment - 1))
        self._agent = agent
        self._submitted = submitted
        self._seen = seen
        self._number = 0
        # The turn's epoch, that of the last entry, the first number of this one, and the numbers of those before.
        self._first_epoch = self._epoch = epoch
        self._first_number = 0
        self._former: list[range] = []
        self._status = ""
        self._end: Json = {}
        # The messages that are items, and are not done; call → the index of its item, while that has no result.
        self._open_messages: dict[str, EncodedMessage] = {}
        self._calls: dict[str, int] = {}
        # The part whose piece was written last, and what its pieces have in common.
        self._piece_of: Part | None = None
        self._piece_begins = self._piece_goes_on = self._piece_ends = b""

    def document(self) -> Json:
        """The response as far as it has come."""
        for message in self._open_messages.values():
            item = self.output[message.place]
            for part, told in zip(message.parts.values(), item[_parts_of(message)], strict=True):
                told[_field(part)] = part.text
        return resource(
            self._echo,
            name=str(self._name),
            created_at=self._taken // 1000,
            status=self._status or "queued",
            output=self.output,
            **self._end,
        )

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """The frames of an entry."""
        if entry.epoch != self._epoch:
            self._go_on_in(entry.epoch)
        return super().feed(epoch, entry)

    def has_told(self, number: int) -> bool:
        """Whether there was an event of that number."""
        numbers = range(self._first_number, self._number)
        return any(number in each for each in (*self._former, numbers))

    def _go_on_in(self, epoch: int) -> None:
        """The log is of another epoch from here on."""
        if not epoch:
            # It was made for a reader.
            return
        if self._first_epoch:
            self._former.append(range(self._first_number, self._number))
            taken = 1000 * self._taken
            # A server whose clock is behind counts on from the epoch that was.
            far = (epoch - (taken if taken <= epoch else self._first_epoch)) // EPOCH_PER_NUMBER
            self._first_number = self._number = max(self._number, far) + JUMP
        else:
            self._first_epoch = epoch
        self._epoch = epoch

    @property
    def _taken(self) -> int:
        """When the turn was, Unix milliseconds."""
        return self._submitted or self.created

    def outcome(self) -> tuple[int, Json, Headers]:
        """The response, whatever became of its turn."""
        return 200, self.document(), ()

    # ── the response ──

    def take_status(self, status: str) -> None:
        """It is there; it is in progress."""
        if status == "queued" and not self._status and not self._name.segment:
            self._status = "queued"
            self._tell("response.created", response=self.document())
            self._tell("response.queued", response=self.document())
        elif status == "in_progress":
            created, self._status = not self._status, "in_progress"
            if created:
                self._tell("response.created", response=self.document())
            self._tell("response.in_progress", response=self.document())

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - calls are items
        """It is completed where the client is asked."""
        self._ended("response.completed", "completed", entry.created // 1000, usage)

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:  # noqa: ARG002
        """It ends as the turn does."""
        status, at = end["status"], end.get("completed_at")
        if status == "completed" and (cut := cut_short(end)):
            self._end["incomplete_details"] = {"reason": "max_output_tokens" if cut == "length" else cut}
            self._ended("response.incomplete", "incomplete", at, usage)
        elif status == "completed":
            self._ended("response.completed", "completed", at, usage)
        elif status == "failed":
            error = end.get("error") or {}
            code = _ERRORS.get(str(error.get("code")), "server_error")
            self._end["error"] = {"code": code, "message": error.get("message") or "The turn failed."}
            self._ended("response.failed", "failed", at, usage)
        else:
            # There is no event for that.
            self._ended("response.incomplete", "cancelled", at, usage)

    def _ended(self, kind: str, status: str, at: int | None, usage: Json) -> None:
        for index, item in enumerate(self.output):
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"
                self._tell("response.output_item.done", output_index=index, item=item)
        self._status = status
        self._end |= {"completed_at": at, "usage": usage}
        self._tell(kind, response=self.document())
        self.frames.append(DONE)

    # ── messages ──

    def begin_message(self, message: EncodedMessage) -> None:
        """An item without parts."""
        item: Json = {"type": message.kind, "id": message.name, "status": "in_progress"}
        if message.kind == "message":
            item["role"] = "assistant"
        parts = _parts_of(message)
        message.place = self._open({**item, parts: []}, {**item, parts: []})
        self._open_messages[message.name] = message

    def begin_part(self, part: Part) -> None:
        """An empty part."""
        self._item(part)[_parts_of(part.message)].append(_empty(part))
        kind = "content_part" if part.message.kind == "message" else "reasoning_summary_part"
        self._tell(f"response.{kind}.added", **self._at(part), part=_empty(part))

    def take_piece(self, part: Part, piece: bytes) -> None:
        """A piece of a part."""
        number, self._number = self._number, self._number + 1
        if number <= self._seen or self.is_quiet:
            return
        # What `_tell` would write, whose constant parts are made once.
        if part is not self._piece_of:
            self._piece_of, kind = part, b"response.%b.delta" % _kind(part).encode()
            self._piece_begins = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind, kind)
            self._piece_goes_on = b',%b,"delta":' % orjson.dumps(self._at(part))[1:-1]
            self._piece_ends = b',"logprobs":[]}\n\n' if _more(part) else b"}\n\n"
        begins, goes_on, ends = self._piece_begins, self._piece_goes_on, self._piece_ends
        self.frames.append(b"%b%d%b%b%b" % (begins, number, goes_on, piece, ends))

    def end_part(self, part: Part) -> None:
        """A part that is done."""
        made = self._item(part)[_parts_of(part.message)][part.place]
        made[_field(part)] = part.text
        self._tell(
            f"response.{_kind(part)}.done", **self._at(part), **{_field(part): part.text}, **_more(part)
        )
        kind = "content_part" if part.message.kind == "message" else "reasoning_summary_part"
        self._tell(f"response.{kind}.done", **self._at(part), part=made)

    def end_message(self, message: EncodedMessage, status: str) -> None:
        """An item that is done."""
        item = self.output[message.place]
        item["status"] = status
        del self._open_messages[message.name]
        self._tell("response.output_item.done", output_index=message.place, item=item)

    def _item(self, part: Part) -> Json:
        return self.output[part.message.place]

    def _at(self, part: Part) -> Json:
        place = "content_index" if part.message.kind == "message" else "summary_index"
        return {"item_id": part.message.name, "output_index": part.message.place, place: part.place}

    # ── calls ──

    def take_data(self, entry: Entry, name: str, data: Json) -> None:
        """A call, a result, a list of tools."""
        match entry.kind:
            case "plugin_call" | "mcp_call" | "component_call":
                self._take_call(name, data)
            case "plugin_call_output" | "mcp_call_output" | "component_call_output":
                self._take_result(name, data)
            case "mcp_list_tools":
                self._take_tools(name, data)
            case "function_call":
                self._take_function_call(name, data)
            case "mcp_approval_request":
                self._take_approval(data)

    def _take_call(self, name: str, data: Json) -> None:
        """A tool that runs at the server, or a sub-agent: an item that is done when its result is there."""
        arguments = data.get("arguments") or orjson.dumps({"task": _said(data)}).decode()
        item = self._tool(name, data, arguments)
        index = self._calls[_id(data)] = self._open_tool(item)
        kind = "response.mcp_call_arguments"
        self._tell(f"{kind}.delta", item_id=name, output_index=index, delta=arguments)
        self._tell(f"{kind}.done", item_id=name, output_index=index, arguments=arguments)

    def _take_result(self, name: str, data: Json) -> None:
        if data.get("name") == "reflection":
            return
        index = self._calls.pop(_id(data), None)
        if index is None:
            # It was called in the response before: the sub-agent has asked the client since.
            index = self._open_tool(self._tool(name, data, "{}"))
        item = self.output[index]
        error = data.get("error")
        item["status"] = "failed" if error else "completed"
        if error:
            text = {"type": "text", "text": str(error)}
            item["error"] = {"type": "mcp_tool_execution_error", "content": [text]}
        else:
            item["output"] = data["output"] if isinstance(data.get("output"), str) else _said(data)
        self._tell(f"response.mcp_call.{item['status']}", item_id=item["id"], output_index=index)
        self._tell("response.output_item.done", output_index=index, item=item)

    def _tool(self, name: str, data: Json, arguments: str) -> Json:
        return {
            "type": "mcp_call",
            "id": name,
            "name": data.get("name") or "",
            "server_label": data.get("server_label") or self._agent,
            "arguments": arguments,
            "status": "in_progress",
            "approval_request_id": None,
            "error": None,
            "output": None,
        }

    def _open_tool(self, item: Json) -> int:
        index = self._open(item, {**item, "arguments": ""})
        self._tell("response.mcp_call.in_progress", item_id=item["id"], output_index=index)
        return index

    def _take_tools(self, name: str, data: Json) -> None:
        fields = ("name", "description", "input_schema", "annotations")
        tools = [{field: tool.get(field) for field in fields} for tool in data.get("tools") or []]
        label = data.get("server_label") or self._agent
        item: Json = {"type": "mcp_list_tools", "id": name, "server_label": label}
        item |= {"tools": tools, "error": data.get("error")}
        index = self._open(item, {**item, "tools": []})
        self._tell("response.mcp_list_tools.in_progress", item_id=name, output_index=index)
        ended = "failed" if data.get("error") else "completed"
        self._tell(f"response.mcp_list_tools.{ended}", item_id=name, output_index=index)
        self._tell("response.output_item.done", output_index=index, item=item)

    def _take_function_call(self, name: str, data: Json) -> None:
        """The client is asked for a function's result."""
        call, arguments = self._call_id(_id(data)), data.get("arguments") or "{}"
        item = {"type": "function_call", "id": name, "call_id": call, "name": data.get("name") or ""}
        begun = {**item, "arguments": "", "status": "in_progress"}
        item |= {"arguments": arguments, "status": "completed"}
        index = self._open(item, begun)
        kind = "response.function_call_arguments"
        self._tell(f"{kind}.delta", item_id=name, output_index=index, delta=arguments)
        self._tell(f"{kind}.done", item_id=name, output_index=index, name=item["name"], arguments=arguments)
        self._tell("response.output_item.done", output_index=index, item=item)

    def _take_approval(self, data: Json) -> None:
        """The client is asked for consent."""
        item = {
            "type": "mcp_approval_request",
            "id": self._call_id(_id(data)),
            "name": data.get("name") or "",
            "server_label": data.get("server_label") or self._agent,
            "arguments": data.get("arguments") or "{}",
        }
        index = self._open(item, item)
        self._tell("response.output_item.done", output_index=index, item=item)

    def _call_id(self, call: str) -> str:
        """A call's id for a client that sends back nothing else."""
        return str(CallId(self._name.session, self._name.task, call))

    def _open(self, item: Json, begun: Json) -> int:
        index = len(self.output)
        self.output.append(item)
        self._tell("response.output_item.added", output_index=index, item=begun)
        return index

    # ── events ──

    def _tell(self, kind: str, **fields: Any) -> None:
        number, self._number = self._number, self._number + 1
        if number > self._seen and not self.is_quiet:
            self.frames.append(_named({"type": kind, "sequence_number": number, **fields}))


def _named(event: Json) -> bytes:
    """A frame whose name is its event's type."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), one_line(orjson.dumps(event)))


def _parts_of(message: EncodedMessage) -> str:
    """How an item calls its parts."""
    return "content" if message.kind == "message" else "summary"


def _kind(part: Part) -> str:
    """How events call a part's text."""
    if part.message.kind == "reasoning":
        return "reasoning_summary_text"
    return "refusal" if part.kind == "refusal" else "output_text"


def _field(part: Part) -> str:
    """How a part calls its text."""
    return "refusal" if _kind(part) == "refusal" else "text"


def _empty(part: Part) -> Json:
    match _kind(part):
        case "reasoning_summary_text":
            return {"type": "summary_text", "text": ""}
        case "refusal":
            return {"type": "refusal", "refusal": ""}
        case kind:
            return {"type": kind, "text": "", "annotations": [], "logprobs": []}


def _more(part: Part) -> Json:
    return {"logprobs": []} if _kind(part) == "output_text" else {}


def _id(data: Json) -> str:
    return str(data.get("call_id") or data.get("id") or data.get("dispatchId") or "")


def _said(data: Json) -> str:
    """What a sub-agent is asked, or answers."""
    return "".join(str(part.get("message") or "") for part in data.get("content") or [])
