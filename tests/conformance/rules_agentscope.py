"""The rules of the Agent API wire, and those of its Java edition.

What is said is the same in both editions, so events are read into one spelling first; how it is spelled
has rules of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson

from tests.conformance.agent_events import (
    CAMEL,
    CONTENT_TYPES,
    ROLES,
    STATUSES,
    TYPES,
    Message,
    data_of,
    parts_of,
    turns_of,
    without_place,
)
from tests.conformance.capture import ENDS, Capture, Json, Rules, Violation
from tests.conformance.rules_framing import FRAMING

AGENTSCOPE = Rules("Agent API wire")
AGENTSCOPE.adopt(FRAMING)
rule = AGENTSCOPE.rule

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MESSAGE_ID = re.compile(f"msg_{_UUID}")
_RESPONSE_ID = re.compile(f"response_{_UUID}")
# With a number, the question whether to run a lost call again.
_CALL_ID = re.compile(r"call_[0-9a-f-]{32,36}(_\d+)?")

# Seconds of the year 5138; in milliseconds that is 1973. Nothing of ours is as old or as new.
_SECONDS_BELOW = 100_000_000_000

# Message types whose one part is data, the keys of that data, and which of them are strings.
TOOL_DATA: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "function_call": (frozenset({"call_id", "name", "arguments"}),) * 2,
    "plugin_call": (frozenset({"call_id", "name", "arguments"}),) * 2,
    "mcp_call": (frozenset({"name", "arguments"}),) * 2,
    "function_call_output": (frozenset({"call_id", "output"}),) * 2,
    "plugin_call_output": (frozenset({"call_id", "output"}),) * 2,
    "mcp_call_output": (frozenset({"call_id"}),) * 2,
    "mcp_approval_request": (frozenset({"id", "name", "arguments"}),) * 2,
    "mcp_approval_response": (
        frozenset({"approve", "approval_request_id"}),
        frozenset({"approval_request_id"}),
    ),
    "mcp_list_tools": (frozenset({"id", "server_label", "tools"}), frozenset({"id", "server_label"})),
    "component_call": (
        frozenset({"dispatchId", "agentId", "name", "content"}),
        frozenset({"dispatchId", "agentId", "name"}),
    ),
    "component_call_output": (frozenset({"name"}), frozenset({"name"})),
}
CALLS = frozenset({"function_call", "plugin_call", "mcp_call", "mcp_approval_request", "component_call"})
ANSWERS = {
    "function_call": "function_call_output",
    "plugin_call": "plugin_call_output",
    "mcp_call": "mcp_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "component_call": "component_call_output",
}

# ── frames ──


@rule("frames")
def fields_are_id_and_data(capture: Capture) -> Iterator[str]:
    """A frame is one ``id`` and one ``data`` line, in this order, or a comment; never an ``id`` alone."""
    for frame in capture.frames:
        names = [line.partition(b":")[0] for line in frame.lines]
        if not frame.comment and names != [b"id", b"data"]:
            yield b", ".join(names).decode(errors="replace")


@rule("frames")
def a_space_follows_the_colon(capture: Capture) -> Iterator[str]:
    """One space stands behind each field's colon: a client cuts off exactly that."""
    for frame in capture.frames:
        for line in frame.lines:
            name, _, value = line.partition(b":")
            if not value.startswith(b" ") or value.startswith(b"  "):
                yield f"{name.decode(errors='replace')!r}: {value[:20]!r}"


@rule("frames")
def comments_are_heartbeats(capture: Capture) -> Iterator[str]:
    """A comment is ``: ping``, alone in its frame."""
    for frame in capture.frames:
        if any(line.startswith(b":") for line in frame.lines) and frame.lines != (b": ping",):
            yield repr(frame.raw[:60])


# ── vocabularies ──


@rule("order")
def objects_are_known(capture: Capture) -> Iterator[str]:
    """An event is a response, a message or a content: the web UI shows any other as an error."""
    for event in _events(capture):
        if event.get("object") not in STATUSES:
            yield repr(event.get("object"))


@rule("statuses")
def statuses_are_known(capture: Capture) -> Iterator[str]:
    """Each kind of event has only the statuses that it can have."""
    for event in _everything(capture):
        kind = str(event.get("object"))
        if kind in STATUSES and event.get("status") not in STATUSES[kind]:
            yield f"{kind} {event.get('status')!r}"


@rule("message types and roles")
def types_and_roles_are_known(capture: Capture) -> Iterator[str]:
    """Message types, roles and content types come from closed lists."""
    for event in _everything(capture):
        kind, name = event.get("object"), event.get("type")
        if kind == "message":
            if name not in TYPES.values():
                yield f"message type {name!r}"
            if event.get("role") not in ROLES:
                yield f"role {event.get('role')!r}"
        elif kind == "content" and name not in CONTENT_TYPES:
            yield f"content type {name!r}"


@rule("order")
def ids_are_ours(capture: Capture) -> Iterator[str]:
    """Ids are ``msg_<uuid>`` and ``response_<uuid>``, or what the client chose."""
    for event in _everything(capture):
        name = str(event.get("id"))
        if event.get("object") == "message" and not _MESSAGE_ID.fullmatch(name):
            yield f"message {name!r}"
        if event.get("object") == "response" and not (name in capture.chosen or _RESPONSE_ID.fullmatch(name)):
            yield f"response {name!r}"


@rule("order")
def nulls_are_left_out(capture: Capture) -> Iterator[str]:
    """A field without a value is not written; only a user's own data may hold nulls."""
    for event in _everything(capture):
        for key, value in event.items():
            if value is None:
                yield f"{event.get('object')} {key}"


# ── numbers and times ──


@rule("order")
def numbers_are_integers(capture: Capture) -> Iterator[str]:
    """Every event has a ``sequence_number``, an int."""
    for event in _events(capture):
        number = event.get("sequence_number")
        if type(number) is not int:
            yield repr(number)


@rule("order")
def numbers_are_dense(capture: Capture) -> Iterator[str]:
    """A response's numbers begin at 0 and leave none out."""
    for turn, whole in turns_of(capture):
        numbers = [number for event in turn.events if isinstance(number := event.get("sequence_number"), int)]
        if whole and numbers and numbers[0] != 0:
            yield f"begins at {numbers[0]}"
        for one, other in pairwise(numbers):
            if other != one + 1:
                yield f"{other} after {one}"


@rule("order")
def responses_say_when(capture: Capture) -> Iterator[str]:
    """``created_at`` stands on every response event, ``completed_at`` on the terminal one only and not before it."""
    for turn, _ in turns_of(capture):
        for event in turn.responses:
            created, completed = event.get("created_at"), event.get("completed_at")
            ended = event.get("status") in ENDS
            if type(created) is not int or (ended and type(completed) is not int):
                yield f"{event.get('status')}: {created!r}, {completed!r}"
            elif (not ended and completed is not None) or (ended and int(completed or 0) < created):
                yield f"{event.get('status')}: completed at {completed!r}, created at {created}"


@rule("order")
def times_are_seconds(capture: Capture) -> Iterator[str]:
    """Times are Unix seconds."""
    for time in _times(capture):
        if time >= _SECONDS_BELOW:
            yield str(time)


@rule("sessions")
def responses_name_their_session(capture: Capture) -> Iterator[str]:
    """Every response event names its session, and all events of a turn are of one response."""
    sessions = set()
    for turn, _ in turns_of(capture):
        for event in turn.responses:
            if not event.get("session_id"):
                yield f"{event.get('status')} names none"
            sessions.add(event.get("session_id"))
        if len({event.get("id") for event in turn.responses}) > 1:
            yield "two responses in one turn"
    if len(sessions) > 1:
        yield f"{len(sessions)} sessions"


# ── order ──


@rule("order")
def responses_begin_in_order(capture: Capture) -> Iterator[str]:
    """A response is queued (perhaps), created, in progress, each once; only then it speaks."""
    for turn, whole in turns_of(capture):
        told = [str(event.get("status")) for event in turn.responses if event.get("status") not in ENDS]
        expected = ["queued", "created", "in_progress"]
        # A turn that was ended before a worker took it up says less.
        begun = expected[: len(told)] if told[:1] == ["queued"] else expected[1 : len(told) + 1]
        if whole and told != begun:
            yield " → ".join(told)
        if not whole and told != expected[len(expected) - len(told) :]:
            yield " → ".join(told)
        speaks = False
        for event in turn.events:
            if event.get("object") != "response":
                speaks = True
            elif speaks and event.get("status") not in ENDS:
                yield f"{event.get('status')} after it spoke"
        if whole and speaks and "in_progress" not in told:
            yield "it speaks without being in progress"


@rule("order")
def responses_end_once(capture: Capture) -> Iterator[str]:
    """Each turn has exactly one terminal response, and nothing follows it."""
    if not (capture.turns or capture.resumed):
        yield "there is no turn"
    for turn, _ in turns_of(capture):
        ends = [place for place, event in enumerate(turn.events) if event in turn.responses and _ended(event)]
        if len(ends) != 1:
            yield f"{len(ends)} terminal events"
        elif ends[0] != len(turn.events) - 1:
            yield f"{len(turn.events) - 1 - ends[0]} events after the terminal one"


@rule("order")
def messages_go_through_their_steps(capture: Capture) -> Iterator[str]:
    """A message is created, then in progress, then says its content, then is closed: each once, nothing after.

    One whose pieces were cut is told whole when it is closed, and not before.
    """
    grammar = re.compile(r"created in_progress( content)*( completed| incomplete)?|completed|incomplete")
    rest = re.compile(r"(in_progress)?( ?content)*( ?(completed|incomplete))?")
    for turn, whole in turns_of(capture):
        for name, message in turn.messages.items():
            steps = " ".join(message.steps)
            if not (grammar.fullmatch(steps) or (not whole and rest.fullmatch(steps))):
                yield f"{name}: {steps[:200]}"


@rule("order")
def messages_stay_what_they_are(capture: Capture) -> Iterator[str]:
    """A message's type and role are told with every event of it, and do not change."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            kinds = {(event.get("type"), event.get("role")) for event in message.events}
            if len(kinds) > 1:
                yield f"{name}: {sorted(map(str, kinds))}"


@rule("order")
def messages_are_closed_before_the_end(capture: Capture) -> Iterator[str]:
    """When the response ends no message is open."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            if turn.terminal and not message.closed:
                yield name


@rule("order")
def the_user_is_not_heard(capture: Capture) -> Iterator[str]:
    """The user's own message is no part of the response's stream."""
    for event in _everything(capture):
        heard = event.get("object") == "message" and event.get("role") == "user"
        if heard and event.get("type") != "mcp_approval_response":
            yield str(event.get("id"))


# ── content ──


@rule("content")
def indexes_count_parts(capture: Capture) -> Iterator[str]:
    """``index`` is the part's place in its message; a part begins when the one before is closed."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            first = message.contents[0].get("index") if message.contents and not message.seen_whole else 0
            place = first if isinstance(first, int) else 0
            for event in message.contents:
                if event.get("index") != place:
                    yield f"{name}: part {event.get('index')!r} where part {place} is due"
                if event.get("status") == "completed":
                    place += 1


@rule("content")
def deltas_are_in_progress(capture: Capture) -> Iterator[str]:
    """``delta`` is true on a piece, which is in progress, and false on what is whole."""
    for event in _events(capture):
        if event.get("object") == "content":
            delta = event.get("delta")
            if not isinstance(delta, bool) or (delta and event.get("status") != "in_progress"):
                yield f"delta {delta!r}, {event.get('status')}"


@rule("content")
def parts_are_closed_whole(capture: Capture) -> Iterator[str]:
    """A part's last event holds all that its deltas said."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            pieces: dict[Any, str] = {}
            for event in message.contents:
                index, text = event.get("index"), event.get("text")
                if event.get("delta"):
                    pieces[index] = pieces.get(index, "") + str(text)
                elif event.get("type") == "text" and index in pieces:
                    joined = pieces.pop(index)
                    missed = not message.seen_whole and str(text).endswith(joined)
                    if text != joined and not missed:
                        yield f"{name}: {joined[:60]!r} became {str(text)[:60]!r}"


@rule("content")
def messages_are_closed_whole(capture: Capture) -> Iterator[str]:
    """A closed message holds its parts as they were told; a part that was cut off holds its pieces."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            if not message.closed:
                continue
            if not isinstance(message.last.get("content"), list):
                yield f"{name} has no content"
            elif message.seen_whole and (wrong := _unlike(message)):
                yield f"{name}: {wrong}"


def _unlike(message: Message) -> str:
    """How a closed message differs from what its content events told; empty when it does not."""
    whole = parts_of(message.last)
    told = [without_place(event) for event in message.contents if not event.get("delta")]
    told = [event for event in told if event.get("status") == "completed"]
    if [without_place(part) for part in whole[: len(told)]] != told:
        return "a part is not what was told"
    closed = {event.get("index") for event in told}
    pieces = "".join(
        str(event.get("text"))
        for event in message.contents
        if event.get("delta") and event.get("index") not in closed
    )
    rest = whole[len(told) :]
    if pieces and message.last.get("status") == "completed":
        return "it is completed, but its last part is not"
    if len(rest) > (1 if pieces else 0) or (pieces and [part.get("text") for part in rest] != [pieces]):
        return f"it ends with {rest!r}, but {pieces!r} was said"
    return ""


@rule("content")
def content_names_its_message(capture: Capture) -> Iterator[str]:
    """``msg_id`` of a part is the id of the message that it stands in."""
    for turn, whole in turns_of(capture):
        known = {name for name, message in turn.messages.items() if message.events}
        for name, message in turn.messages.items():
            if message.contents and name not in known and whole:
                yield f"{name} is unknown"
        for event in [*turn.events, *parts_of({"content": turn.terminal.get("output")})]:
            for part in parts_of(event):
                if part.get("msg_id") != event.get("id"):
                    yield f"a part of {event.get('id')} says {part.get('msg_id')!r}"


# ── the end ──


@rule("terminal response")
def output_is_whole(capture: Capture) -> Iterator[str]:
    """The terminal response holds every message, as it was closed, in the order in which they began."""
    for turn, whole in turns_of(capture):
        if not turn.terminal:
            continue
        output = turn.terminal.get("output")
        if not isinstance(output, list):
            yield "there is none"
            continue
        told = [without_place(message.last) for message in turn.messages.values() if message.closed]
        listed = [without_place(message) for message in output if isinstance(message, dict)]
        if (listed if whole else listed[len(listed) - len(told) :]) != told:
            yield f"{len(told)} messages were told, {len(listed)} are listed, or one of them differs"


@rule("terminal response")
def usage_is_told(capture: Capture) -> Iterator[str]:
    """The terminal response tells the tokens used, whichever way it ended."""
    for turn, _ in turns_of(capture):
        usage = turn.terminal.get("usage") if turn.terminal else {"input_tokens": 0, "output_tokens": 0}
        counts = [usage.get(name) for name in ("input_tokens", "output_tokens")] if usage else [None]
        if not all(type(count) is int for count in counts):
            yield f"{turn.terminal.get('status')}: {usage!r}"


@rule("errors")
def failures_are_explained(capture: Capture) -> Iterator[str]:
    """A failed response has ``error`` with a code and a message, both text; no other event has one."""
    for event in _everything(capture):
        error = event.get("error")
        if event.get("object") == "response" and event.get("status") == "failed":
            texts = [error.get(key) for key in ("code", "message")] if isinstance(error, dict) else [None]
            if not all(isinstance(text, str) and text for text in texts):
                yield repr(error)
        elif error is not None:
            yield f"{event.get('object')} {event.get('status')} has one"


# ── tools ──


@rule("tools")
def tool_parts_are_snapshots(capture: Capture) -> Iterator[str]:
    """A tool's message has one part of type data, never told in pieces."""
    for turn, _ in turns_of(capture):
        for name, message in turn.messages.items():
            if message.last.get("type") not in TOOL_DATA:
                continue
            told = [*message.contents, *parts_of(message.last)]
            wrong = any(part.get("type") != "data" or part.get("delta") for part in told)
            if wrong or (message.closed and len(parts_of(message.last)) != 1):
                yield name


@rule("tools")
def tool_data_is_typed(capture: Capture) -> Iterator[str]:
    """The data of each kind of tool message has its keys; arguments and outputs are text."""
    for turn, _ in turns_of(capture):
        for message in turn.messages.values():
            kind, data = str(message.last.get("type")), data_of(message.last)
            if kind not in TOOL_DATA or message.last.get("status") != "completed":
                continue
            keys, texts = TOOL_DATA[kind]
            if missing := keys - data.keys():
                yield f"{kind} lacks {sorted(missing)}"
            for key in texts & data.keys():
                if not isinstance(data[key], str):
                    yield f"{kind} {key} is {type(data[key]).__name__}"


@rule("tools")
def arguments_are_json(capture: Capture) -> Iterator[str]:
    """The arguments of a call are the JSON text of an object."""
    for call in _calls(capture):
        data = data_of(call)
        if "arguments" in data:
            try:
                value = orjson.loads(str(data["arguments"]))
            except orjson.JSONDecodeError:
                value = None
            if not isinstance(value, dict):
                yield repr(data["arguments"])


@rule("tools")
def call_ids_are_ours(capture: Capture) -> Iterator[str]:
    """Calls have ids that we made, each used by one call of a kind."""
    seen = set()
    for call in _calls(capture):
        name = _call_of(call)
        if not _CALL_ID.fullmatch(name):
            yield repr(name)
        if (key := (call.get("type"), name)) in seen:
            yield f"{name} twice"
        seen.add(key)


@rule("tools")
def calls_are_answered_once(capture: Capture) -> Iterator[str]:
    """An output follows its call; when a response completes, each call has exactly one."""
    for turn, whole in turns_of(capture):
        open_calls: dict[tuple[str, str], int] = {}
        for event in turn.events:
            if event.get("object") != "message" or event.get("status") != "completed":
                continue
            kind, name = str(event.get("type")), _call_of(event)
            if kind in ANSWERS:
                open_calls[ANSWERS[kind], name] = 0
            elif kind in ANSWERS.values() and data_of(event).get("name") != "reflection":
                if (kind, name) not in open_calls and whole:
                    yield f"{kind} {name} answers no call"
                open_calls[kind, name] = open_calls.get((kind, name), 0) + 1
        for (kind, name), answers in open_calls.items():
            if answers > 1 or (answers == 0 and turn.terminal.get("status") == "completed"):
                yield f"{name} has {answers} {kind}"


# ── spelling ──


@rule("spelling")
def keys_are_snake_case(capture: Capture) -> Iterator[str]:
    """The protocol's keys are in snake_case, message types in lower case."""
    for frame in capture.said:
        for event in _nested(frame.json):
            yield from event.keys() & CAMEL.keys()
            if event.get("object") == "message" and str(event.get("type")) in TYPES:
                yield str(event.get("type"))


JAVA = Rules("Agent API wire, Java edition")
JAVA.adopt(AGENTSCOPE, without=frozenset({"keys_are_snake_case", "times_are_seconds"}))


@JAVA.rule("spelling")
def keys_are_camel_case(capture: Capture) -> Iterator[str]:
    """The protocol's keys are in camelCase, message types the upper-case names of the Java enum."""
    for frame in capture.said:
        for event in _nested(frame.json):
            yield from event.keys() & set(CAMEL.values())
            if event.get("object") == "message" and str(event.get("type")) in TYPES.values():
                yield str(event.get("type"))


@JAVA.rule("order")
def times_are_milliseconds(capture: Capture) -> Iterator[str]:
    """Times are Unix milliseconds."""
    for time in _times(capture):
        if time < _SECONDS_BELOW:
            yield str(time)


def check(capture: Capture) -> list[Violation]:
    """What the wire of this capture does not allow."""
    return (JAVA if capture.wire == "java" else AGENTSCOPE).check(capture)


# ── parts of the checks ──


def _events(capture: Capture) -> Iterator[Json]:
    return (event for turn, _ in turns_of(capture) for event in turn.events)


def _nested(event: Json) -> Iterator[Json]:
    """An event, and the messages and parts in it."""
    yield event
    for key in ("content", "output"):
        if event.get("object") in STATUSES and isinstance(event.get(key), list):
            for inner in event[key]:
                if isinstance(inner, dict):
                    yield from _nested(inner)


def _everything(capture: Capture) -> Iterator[Json]:
    for event in _events(capture):
        yield from _nested(event)


def _ended(event: Json) -> bool:
    return event.get("status") in ENDS


def _times(capture: Capture) -> Iterator[int]:
    for event in _events(capture):
        for key in ("created_at", "completed_at"):
            if isinstance(event.get(key), int):
                yield event[key]


def _calls(capture: Capture) -> Iterator[Json]:
    for turn, _ in turns_of(capture):
        for message in turn.messages.values():
            if message.last.get("type") in CALLS and message.last.get("status") == "completed":
                yield message.last


def _call_of(message: Json) -> str:
    data = data_of(message)
    keys = ("approval_request_id", "call_id", "dispatchId", "id")
    return str(next((data[key] for key in keys if key in data), ""))
