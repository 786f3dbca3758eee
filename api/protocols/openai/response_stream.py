"""One response as its events: the encoder of the stream, and the response as far as it has come.

A response is one segment of a turn. Each message of the log is an item of its output, but a tool's call and its result, which
are one, and what sub-agents say, which is not told: their client could not tell it from the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.openai.frames import DONE, named
from turnstream.api.protocols.openai.parts import cost_of, words_of
from turnstream.api.protocols.openai.resource import resource
from turnstream.api.turns.ids import CallId, ResponseId
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import END, PARKED, RESPONSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

# Nobody has all that ever comes: no frame is made.
UNSEEN = 10**12

_CLOSED = ("completed", "incomplete")

# The few codes that a response's error may have.
_ERRORS = {"too_many": "rate_limit_exceeded", "rate_limit": "rate_limit_exceeded"}


class ResponseStream:
    """The events of one response, fed from its segment's first entry.

    1. It costs what the turn has cost behind the park that it begins with, if it does.
    2. Its events are numbered densely from 0; those up to ``seen`` are made and not written, so that any front end goes on
       where another one was cut.
    3. A message's text is told as it comes, and what was not is told when it closes: a piece may have been cut from the log.
    4. Where the client is asked, and where the turn ends, the response does, and all of its items are done.

    Attributes:
        over: it has ended.
        output: its items, so far.
    """

    def __init__(
        self, name: ResponseId, echo: Mapping[str, Any], agent: str, created_at: int = 0, *, seen: int = -1
    ) -> None:
        """Without a time at which the turn was taken, that is the time of its first entry."""
        self.over = False
        self.output: list[Json] = []
        self._name = name
        self._echo = dict(echo)
        self._echo.setdefault("model", agent)
        if name.segment and not self._echo.get("conversation"):
            self._echo["previous_response_id"] = str(name._replace(segment=name.segment - 1))
        self._agent = agent
        self._created_at = created_at
        self._seen = seen
        self._number = 0
        self._frames: list[bytes] = []
        self._status = ""
        self._end: Json = {}
        # Message → what is told of it; call → the index of its item, while that has no result.
        self._messages: dict[str, _Message] = {}
        self._calls: dict[str, int] = {}
        self._fed = False
        self._spent: dict[str, int] = {}

    def feed(self, epoch: int, entry: Entry) -> bytes:  # noqa: ARG002 - no frame has a cursor
        """The frames of an entry."""
        if self.over:
            return b""
        self._created_at = self._created_at or entry.created // 1000
        if entry.kind == PARKED:
            self._take_park(entry)
        elif numbered(entry.event):
            self._numbered(entry)
        self._fed = True
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def quiet(self) -> None:
        """Make no frames: only the response is wanted."""
        self._seen = UNSEEN

    def document(self) -> Json:
        """The response as far as it has come."""
        if not self.over:
            for message in self._messages.values():
                message.settle()
        return resource(
            self._echo,
            name=str(self._name),
            created_at=self._created_at,
            status=self._status or "queued",
            output=self.output,
            **self._end,
        )

    def _numbered(self, entry: Entry) -> None:
        if entry.kind == RESPONSE:
            self._take_status(orjson.loads(entry.event)["status"])
            return
        event = orjson.loads(entry.event)
        self._begin()
        if entry.kind == END:
            self._take_end(event)
            return
        take = _OF_ALL.get(entry.kind) or (_OF_OWN.get(entry.kind) if not entry.path else None)
        if take is not None:
            take(self, event)

    # ── the response ──

    def _take_status(self, status: str) -> None:
        if status == "queued" and not self._status and not self._name.segment:
            self._status = "queued"
            self._tell("response.created", response=self.document())
            self._tell("response.queued", response=self.document())
        elif status == "in_progress":
            self._begin()

    def _begin(self) -> None:
        """Say that it is in progress, once; before that, that it is there."""
        if self._status == "in_progress":
            return
        created, self._status = not self._status, "in_progress"
        if created:
            self._tell("response.created", response=self.document())
        self._tell("response.in_progress", response=self.document())

    def _take_end(self, event: Json) -> None:
        status, at = event["status"], event.get("completed_at")
        usage = event.get("usage")
        if status == "completed":
            self._ended("response.completed", "completed", at, usage)
        elif status == "failed":
            error = event.get("error") or {}
            code = _ERRORS.get(str(error.get("code")), "server_error")
            self._end["error"] = {"code": code, "message": error.get("message") or "The turn failed."}
            self._ended("response.failed", "failed", at, usage)
        else:
            # There is no event that says so.
            self._ended("response.incomplete", "cancelled", at, usage)

    def _take_park(self, entry: Entry) -> None:
        usage = orjson.loads(entry.event).get("usage") or {}
        if self._name.segment and not self._fed:
            self._spent = usage
            return
        self._begin()
        self._ended("response.completed", "completed", entry.created // 1000, usage)

    def _ended(self, kind: str, status: str, at: int | None, usage: Json | None) -> None:
        for item in self.output:
            if item.get("status") == "in_progress":
                self._break_off(item)
        self._status = status
        self._end |= {"completed_at": at, "usage": cost_of(usage, self._spent)}
        self._tell(kind, response=self.document())
        self._frames.append(DONE)
        self.over = True

    def _break_off(self, item: Json) -> None:
        """End an item in its middle."""
        message = self._messages.get(item["id"])
        if message is not None:
            message.close(None, "incomplete")
        else:
            item["status"] = "incomplete"
            self._tell("response.output_item.done", output_index=self.output.index(item), item=item)

    # ── items ──

    def _take_message(self, event: Json) -> None:
        self._message(event, _Text)

    def _take_reasoning(self, event: Json) -> None:
        self._message(event, _Summary)

    def _message(self, event: Json, kind: type[_Message]) -> None:
        """A piece of a message, or all of it."""
        if event["object"] == "content":
            message = self._messages.get(event["msg_id"])
            if message is None:
                message = self._messages[event["msg_id"]] = kind(self, event["msg_id"])
            message.take(event)
        elif event.get("status") in _CLOSED:
            message = self._messages.get(event["id"])
            if message is None:
                message = self._messages[event["id"]] = kind(self, event["id"])
            message.close(event, event["status"])

    def _take_call(self, event: Json) -> None:
        """A tool that runs at the server, or a sub-agent: an item that is done when its result is there."""
        for name, data in _datas(event):
            arguments = data.get("arguments") or orjson.dumps({"task": _said(data)}).decode()
            item = self._tool(name, data, arguments)
            index = self._calls[_id(data)] = self._open_tool(item)
            self._tell("response.mcp_call_arguments.delta", item_id=name, output_index=index, delta=arguments)
            self._tell(
                "response.mcp_call_arguments.done", item_id=name, output_index=index, arguments=arguments
            )

    def _take_result(self, event: Json) -> None:
        for name, data in _datas(event):
            if data.get("name") == "reflection":
                continue
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

    def _take_tools(self, event: Json) -> None:
        for name, data in _datas(event):
            fields = ("name", "description", "input_schema", "annotations")
            tools = [{field: tool.get(field) for field in fields} for tool in data.get("tools") or []]
            item = {
                "type": "mcp_list_tools",
                "id": name,
                "server_label": data.get("server_label") or self._agent,
            }
            item |= {"tools": tools, "error": data.get("error")}
            index = self._open(item, {**item, "tools": []})
            self._tell("response.mcp_list_tools.in_progress", item_id=name, output_index=index)
            ended = "failed" if data.get("error") else "completed"
            self._tell(f"response.mcp_list_tools.{ended}", item_id=name, output_index=index)
            self._tell("response.output_item.done", output_index=index, item=item)

    def _take_function_call(self, event: Json) -> None:
        """The client is asked for a function's result."""
        for name, data in _datas(event):
            call, arguments = self.call_id(_id(data)), data.get("arguments") or "{}"
            item = {"type": "function_call", "id": name, "call_id": call, "name": data.get("name") or ""}
            begun = {**item, "arguments": "", "status": "in_progress"}
            item |= {"arguments": arguments, "status": "completed"}
            index = self._open(item, begun)
            kind = "response.function_call_arguments"
            self._tell(f"{kind}.delta", item_id=name, output_index=index, delta=arguments)
            self._tell(
                f"{kind}.done", item_id=name, output_index=index, name=item["name"], arguments=arguments
            )
            self._tell("response.output_item.done", output_index=index, item=item)

    def _take_approval(self, event: Json) -> None:
        """The client is asked for consent."""
        for _, data in _datas(event):
            item = {
                "type": "mcp_approval_request",
                "id": self.call_id(_id(data)),
                "name": data.get("name") or "",
                "server_label": data.get("server_label") or self._agent,
                "arguments": data.get("arguments") or "{}",
            }
            index = self._open(item, item)
            self._tell("response.output_item.done", output_index=index, item=item)

    def call_id(self, call: str) -> str:
        """A call's id for who has nothing else to send back."""
        return str(CallId(self._name.session, self._name.task, call))

    def _open(self, item: Json, begun: Json) -> int:
        index = len(self.output)
        self.output.append(item)
        self._tell("response.output_item.added", output_index=index, item=begun)
        return index

    # ── events ──

    def _tell(self, kind: str, **fields: Any) -> None:
        number, self._number = self._number, self._number + 1
        if number > self._seen:
            self._frames.append(named({"type": kind, "sequence_number": number, **fields}))


class _Message:
    """A message, or a thought, as an item whose parts grow."""

    def __init__(self, stream: ResponseStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._index = -1
        self._item: Json = {}
        # Part of the log → part of the item; the pieces of those that are not done.
        self._places: dict[int, int] = {}
        self._pieces: dict[int, list[str]] = {}
        self._done: set[int] = set()

    def take(self, event: Json) -> None:
        """A piece of a part, or a whole part."""
        index = event.get("index") or 0
        if not event.get("delta"):
            if event.get("status") in _CLOSED:
                self._finish(index, event)
            return
        text = event.get("text") if event.get("type") == "text" else None
        if text:
            self._grow(index, "text", text)

    def close(self, event: Json | None, status: str) -> None:
        """All of it; without an event, what was told of it."""
        for index, part in enumerate((event or {}).get("content") or []):
            self._finish(index, part)
        for index in [*self._pieces]:
            self._end_part(index, "".join(self._pieces[index]))
        if self._item and self._item.get("status") == "in_progress":
            self._item["status"] = status
            self._tell("response.output_item.done", output_index=self._index, item=self._item)

    def settle(self) -> None:
        """Have the item say what was told so far."""
        for index, pieces in self._pieces.items():
            part = self._item[self.parts][self._places[index]]
            part["refusal" if part["type"] == "refusal" else "text"] = "".join(pieces)

    def _finish(self, index: int, part: Json) -> None:
        """Tell what was not told of a part, and end it."""
        if index in self._done:
            return
        kind = "refusal" if part.get("type") == "refusal" else "text"
        whole = words_of(part)
        told = "".join(self._pieces.get(index, ()))
        if rest := whole[len(told) :] if whole.startswith(told) else "":
            self._grow(index, kind, rest)
        if index in self._places:
            self._end_part(index, whole or told)

    def _grow(self, index: int, kind: str, text: str) -> None:
        if index in self._done:
            return
        if not self._item:
            self._item = self._begun()
            self._index = self._stream._open(self._item, {**self._item, self.parts: []})  # noqa: SLF001 - a part of it
        if index not in self._places:
            self._places[index] = len(self._item[self.parts])
            self._item[self.parts].append(self._part(kind))
            self._pieces[index] = []
            self._tell(self.added, **self._at(index), part=self._part(kind))
        self._pieces[index].append(text)
        self._tell(self._delta(index), **self._at(index), delta=text, **self._more(index))

    def _end_part(self, index: int, whole: str) -> None:
        part = self._item[self.parts][self._places[index]]
        field = "refusal" if part["type"] == "refusal" else "text"
        part[field] = whole
        self._tell(
            self._delta(index).replace(".delta", ".done"),
            **self._at(index),
            **{field: whole},
            **self._more(index),
        )
        self._tell(self.done, **self._at(index), part=part)
        self._pieces.pop(index, None)
        self._done.add(index)

    def _at(self, index: int) -> Json:
        return {"item_id": self._name, "output_index": self._index, self.place: self._places[index]}

    def _tell(self, kind: str, **fields: Any) -> None:
        self._stream._tell(kind, **fields)  # noqa: SLF001 - a part of it

    # ── of its kind ──

    parts = added = done = place = ""

    def _begun(self) -> Json:
        raise NotImplementedError

    def _part(self, kind: str) -> Json:
        raise NotImplementedError

    def _delta(self, index: int) -> str:
        raise NotImplementedError

    def _more(self, index: int) -> Json:  # noqa: ARG002 - of its kind
        return {}


class _Text(_Message):
    """What is said."""

    parts, place = "content", "content_index"
    added, done = "response.content_part.added", "response.content_part.done"

    def _begun(self) -> Json:
        return {
            "type": "message",
            "id": self._name,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }

    def _part(self, kind: str) -> Json:
        if kind == "refusal":
            return {"type": "refusal", "refusal": ""}
        return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}

    def _delta(self, index: int) -> str:
        refusal = self._item["content"][self._places[index]]["type"] == "refusal"
        return "response.refusal.delta" if refusal else "response.output_text.delta"

    def _more(self, index: int) -> Json:
        refusal = self._item["content"][self._places[index]]["type"] == "refusal"
        return {} if refusal else {"logprobs": []}


class _Summary(_Message):
    """What is thought."""

    parts, place = "summary", "summary_index"
    added, done = "response.reasoning_summary_part.added", "response.reasoning_summary_part.done"

    def _begun(self) -> Json:
        return {"type": "reasoning", "id": self._name, "summary": [], "status": "in_progress"}

    def _part(self, kind: str) -> Json:  # noqa: ARG002 - there is one
        return {"type": "summary_text", "text": ""}

    def _delta(self, index: int) -> str:  # noqa: ARG002 - there is one
        return "response.reasoning_summary_text.delta"


# What each kind of message is, of whichever agent; and of the session's own.
_OF_ALL: dict[str, Callable[[ResponseStream, Json], None]] = {
    "function_call": ResponseStream._take_function_call,  # noqa: SLF001 - its own
    "mcp_approval_request": ResponseStream._take_approval,  # noqa: SLF001 - its own
}
_OF_OWN: dict[str, Callable[[ResponseStream, Json], None]] = {
    "message": ResponseStream._take_message,  # noqa: SLF001 - its own
    "reasoning": ResponseStream._take_reasoning,  # noqa: SLF001 - its own
    "mcp_list_tools": ResponseStream._take_tools,  # noqa: SLF001 - its own
    **dict.fromkeys(("plugin_call", "mcp_call", "component_call"), ResponseStream._take_call),  # noqa: SLF001 - its own
    **dict.fromkeys(
        ("plugin_call_output", "mcp_call_output", "component_call_output"),
        ResponseStream._take_result,  # noqa: SLF001 - its own
    ),
}


def _datas(event: Json) -> list[tuple[str, Json]]:
    """The data of a closed message's parts, each with a name for its item."""
    if event["object"] != "message" or event.get("status") not in _CLOSED:
        return []
    datas = [part["data"] for part in event.get("content") or [] if isinstance(part.get("data"), dict)]
    return [(event["id"] if not at else f"{event['id']}_{at}", data) for at, data in enumerate(datas)]


def _id(data: Json) -> str:
    return str(data.get("call_id") or data.get("id") or data.get("dispatchId") or "")


def _said(data: Json) -> str:
    """What a sub-agent is asked, or answers."""
    return "".join(str(part.get("message") or "") for part in data.get("content") or [])
