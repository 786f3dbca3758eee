"""One run as its events: what AG-UI's clients are told of a segment of a turn.

A 0.0.x client, which says no version, knows neither sub-agents nor some ways in which a run ends: it is not told of them.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.protocols.ag_ui.dispatches import Dispatches
from turnstream.api.streaming.dialect import data_frame
from turnstream.api.streaming.segment_encoder import TEXT, SegmentEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnstream.api.protocols.ag_ui.thread import Past
    from turnstream.api.streaming.segment_encoder import EncodedMessage, Part
    from turnstream.shared.session.entry import Entry

Json = dict[str, Any]

VERSION = "1.0"

CALLS = ("plugin_call", "mcp_call", "component_call", "function_call")
RESULTS = ("plugin_call_output", "mcp_call_output", "component_call_output", "function_call_output")

# What an interrupt asks for.
CONSENT: Json = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}

_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
}


class RunStream(SegmentEncoder):
    """The events of one run.

    1. Calls that the segment before asked consent for are not told again when they run; see `Past`.
    2. What its client has answered is not told: the client has it. Who connects has not.
    3. A sub-agent is begun before the first that is told of it in this run, and ended before the run ends: as suspended, where
       the client is asked.
    """

    def __init__(
        self,
        thread: str,
        run: str,
        segment: int = 0,
        past: Past | None = None,
        *,
        is_old: bool = False,
        connects: bool = False,
    ) -> None:
        """``past``: what was told before this segment; ``connects``: tell that first."""
        super().__init__(segment)
        self._thread = thread
        self._run = run
        self._is_old = is_old
        self._connects = connects
        self._begun = False
        self._snapshot = past.messages if past is not None and connects else None
        self._dispatches = past.dispatches if past is not None else Dispatches()
        # Calls that were told, before or here; those told here; those for which consent is asked here.
        self._told = set(past.calls) if past is not None else set()
        self._here: list[str] = []
        self._asked: dict[str, Json] = {}
        # Path → sub-agent, of those that were begun here.
        self._active: dict[str, str] = {}
        self._ended: set[str] = set()

    def is_written(self, entry: Entry) -> bool:
        """Sub-agents' words, too, for clients that can tell them from the answer."""
        return not self._is_old or super().is_written(entry) or entry.kind in RESULTS

    def take_status(self, status: str) -> None:  # noqa: ARG002 - whichever it is
        """The run's beginning, once."""
        if self._begun:
            return
        self._begun = True
        version = {} if self._is_old else {"protocolVersion": VERSION}
        self._tell("RUN_STARTED", threadId=self._thread, runId=self._run, **version)
        if self._snapshot is not None:
            self._tell("MESSAGES_SNAPSHOT", messages=self._snapshot)
            self._snapshot = None

    # ── text ──

    def begin_message(self, message: EncodedMessage) -> None:
        """An answer, or a thought."""
        name, owner = message.name, self._owner(message.path)
        if message.kind == "message":
            self._tell("TEXT_MESSAGE_START", messageId=name, role="assistant", **owner)
        else:
            self._tell("REASONING_START", messageId=name, **owner)
            self._tell("REASONING_MESSAGE_START", messageId=name, role="reasoning", **owner)

    def piece(self, part: Part) -> bytes:
        """A piece of it."""
        message = part.message
        kind = "TEXT_MESSAGE_CONTENT" if message.kind == "message" else "REASONING_MESSAGE_CONTENT"
        return data_frame({"type": kind, "messageId": message.name, "delta": TEXT})

    def end_message(self, message: EncodedMessage, status: str) -> None:  # noqa: ARG002 - there is one end
        """No more of it comes."""
        if message.kind == "message":
            self._tell("TEXT_MESSAGE_END", messageId=message.name)
        else:
            self._tell("REASONING_MESSAGE_END", messageId=message.name)
            self._tell("REASONING_END", messageId=message.name)

    # ── calls ──

    def take_data(self, entry: Entry, name: str, data: Json) -> None:
        """A call, its result, or a request for consent."""
        if entry.kind in CALLS:
            self._call(entry, call_of(data), data)
        elif entry.kind == "mcp_approval_request":
            self._request(entry, data)
        elif entry.kind in RESULTS:
            self._result(entry, name, data)

    def _call(self, entry: Entry, call: str, data: Json) -> None:
        owner = self._owner(entry.path)
        if call not in self._told:
            self._told.add(call)
            self._here.append(call)
            parent = parent_of(entry, call)
            name = str(data.get("name") or "")
            self._tell("TOOL_CALL_START", toolCallId=call, toolCallName=name, parentMessageId=parent, **owner)
            self._tell("TOOL_CALL_ARGS", toolCallId=call, delta=arguments_of(data))
            self._tell("TOOL_CALL_END", toolCallId=call)
        if entry.kind == "component_call":
            self._owner(self._dispatches.begin(entry, data))

    def _request(self, entry: Entry, data: Json) -> None:
        question = str(data.get("id") or "")
        call = self._in_question(question)
        if call == question:
            self._call(entry, call, data)
        interrupt: Json = {"id": question, "reason": "tool_call", "toolCallId": call}
        reason = data.get("reason")
        interrupt["message"] = reason if isinstance(reason, str) else f"Run {data.get('name')}?"
        interrupt["responseSchema"] = CONSENT
        self._asked[question] = interrupt | self._owner(entry.path)

    def _in_question(self, question: str) -> str:
        """The call that a question is about: one that was lost has another id than the question whether to repeat it."""
        call, mark, number = question.rpartition("_")
        return call if mark and number.isdigit() and call in self._told else question

    def _result(self, entry: Entry, name: str, data: Json) -> None:
        if entry.kind == "component_call_output" and data.get("name") == "reflection":
            if not self._is_old:
                value = data.get("output")
                self._tell("CUSTOM", name="turnstream.reflection", value=value, **self._owner(entry.path))
            return
        call = call_of(data)
        if self._is_old and entry.path and call not in self._told:
            return
        if entry.kind == "function_call_output" and call not in self._here and not self._connects:
            return
        if entry.kind == "component_call_output":
            self._end_subagent(entry, call, data)
        content = content_of(data)
        self._tell(
            "TOOL_CALL_RESULT",
            messageId=name,
            toolCallId=call,
            content=content,
            role="tool",
            **self._owner(entry.path),
        )

    # ── sub-agents ──

    def _owner(self, path: str) -> Json:
        """The tag of what a sub-agent says, which is begun if it was not."""
        if not path or self._is_old:
            return {}
        if path not in self._active:
            dispatch = self._dispatches.at(path, self._run)
            above = self._owner(path.rpartition("/")[0])
            parent = {"parentSubagentRunId": above["subagentRunId"]} if above else {}
            if dispatch.call:
                parent["parentToolCallId"] = dispatch.call
            name = dispatch.name
            while name in self._ended:
                # It says more than was expected of it: a name may be begun once in a run.
                name += "'"
            self._active[path] = name
            self._tell("SUBAGENT_STARTED", subagentRunId=name, name=dispatch.agent, **parent)
        return {"subagentRunId": self._active[path]}

    def _end_subagent(self, entry: Entry, call: str, data: Json) -> None:
        path = next((path for path, name in self._active.items() if name == call), None)
        self._dispatches.end(call)
        if path is None:
            return
        failed = bool(entry.extra and orjson.loads(entry.extra).get("failed"))
        self._end_below(path, failed=failed)
        self._end_active(path, content_of(data), failed=failed)

    def _end_below(self, path: str, *, failed: bool) -> None:
        """End those that a sub-agent has begun, the deepest first."""
        for below in sorted(self._active, key=lambda each: -each.count("/")):
            if below.startswith(f"{path}/"):
                self._end_active(below, "", failed=failed)

    def _end_active(self, path: str, said: str, *, failed: bool) -> None:
        name = self._active.pop(path)
        self._ended.add(name)
        if failed:
            self._tell("SUBAGENT_ERROR", subagentRunId=name, message=said or "It was ended.")
        else:
            self._tell("SUBAGENT_FINISHED", subagentRunId=name, outcome={"type": "success"})

    # ── the end ──

    def take_park(self, entry: Entry, park: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - the encoder's
        """The client is asked: for consent, or for functions' results; for both, the former is how the run ends."""
        until = dt.datetime.fromtimestamp(park["until"] / 1000, dt.UTC)
        expires = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        waits = set(park["calls"])
        interrupts = [
            {**interrupt, "expiresAt": expires}
            for question, interrupt in self._asked.items()
            if question in waits
        ]
        for path in sorted(self._active, key=lambda each: -each.count("/")):
            name = self._active.pop(path)
            raised = [each["id"] for each in interrupts if each.get("subagentRunId") == name]
            outcome = {"type": "suspended", **({"interruptIds": raised} if raised else {})}
            self._tell("SUBAGENT_FINISHED", subagentRunId=name, outcome=outcome)
        if interrupts:
            self._end_run({"type": "interrupt", "interrupts": interrupts}, usage)
            return
        known = [call for call in self._here if call in waits]
        pending = [*known, *sorted(waits.difference(known))]
        self._end_run(None if self._is_old else {"type": "success", "pendingToolCallIds": pending}, usage)

    def take_end(self, entry: Entry, end: Json, usage: dict[str, int]) -> None:  # noqa: ARG002 - the encoder's
        """How the turn has ended."""
        status = end["status"]
        for path in sorted(self._active, key=lambda each: -each.count("/")):
            self._end_active(path, "The turn has ended.", failed=status != "completed")
        if status == "failed":
            error = end.get("error") or {}
            message, code = error.get("message") or "The turn failed.", str(error.get("code") or "failed")
            self._tell("RUN_ERROR", message=message, code=code, **self._cost(usage))
            return
        outcome = {"type": "success" if status == "completed" else "cancelled"}
        self._end_run(None if self._is_old else outcome, usage)

    def _end_run(self, outcome: Json | None, usage: dict[str, int]) -> None:
        ended = {"outcome": outcome} if outcome else {}
        self._tell("RUN_FINISHED", threadId=self._thread, runId=self._run, **ended, **self._cost(usage))

    def _cost(self, usage: dict[str, int]) -> Json:
        tokens = {name: usage[ours] for ours, name in _USAGE.items() if usage.get(ours, -1) >= 0}
        return {"usage": [tokens]} if tokens and not self._is_old else {}

    def _tell(self, kind: str, **fields: Any) -> None:
        self.frames.append(data_frame({"type": kind, **fields}))


def call_of(data: Json) -> str:
    """The id of a call, as its data has it."""
    return str(data.get("call_id") or data.get("id") or data.get("dispatchId") or "")


def parent_of(entry: Entry, call: str) -> str:
    """The message that has a call: calls of one answer of a model are one message's."""
    group = orjson.loads(entry.extra).get("group") if entry.extra else None
    return str(group["ids"][0]) if group and group.get("ids") else call


def arguments_of(data: Json) -> str:
    """The arguments of a call, JSON text; those of a sub-agent are its task."""
    given = data.get("arguments")
    return given if isinstance(given, str) and given else orjson.dumps(_task(data)).decode()


def content_of(data: Json) -> str:
    """What a call has returned."""
    if data.get("error"):
        return str(data["error"])
    output = data.get("output")
    if isinstance(output, str):
        return output
    return _said(data.get("content")) if output is None else orjson.dumps(output).decode()


def _task(data: Json) -> Json:
    return {"task": _said(data["content"])} if data.get("content") else {}


def _said(parts: Iterable[Json] | None) -> str:
    return "".join(str(part.get("message") or "") for part in parts or ())
