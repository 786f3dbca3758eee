"""The rules of the LiteAgent wire. Its clients parse by hand, so the framing is exact and the enums are closed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import orjson

from tests.conformance.capture import Capture, Frame, Json, Rules, Violation
from tests.conformance.rules_framing import FRAMING

LITEAGENT = Rules("LiteAgent wire")
LITEAGENT.adopt(FRAMING)
rule = LITEAGENT.rule

EVENTS = frozenset({"message", "chunk", "functionCall"})
ROLES = frozenset(
    {"developer", "user", "agent", "assistant", "dispatcher", "subagent", "reflection", "tool", "client"}
)
ENDS = frozenset({"done", "stop", "exception"})
STATES = ENDS | {"start", "toolsStart", "toolsDone"}

# Who says what to whom.
DIRECTIONS: dict[str, tuple[frozenset[str], str]] = {
    "taskStatus": (frozenset({"agent", "subagent"}), "client"),
    "contentList": (frozenset({"user"}), "agent"),
    "toolCalls": (frozenset({"assistant", "subagent"}), "agent"),
    "functionCall": (frozenset({"agent", "subagent"}), "client"),
    "toolReturn": (frozenset({"tool"}), "agent"),
    "text": (frozenset({"assistant", "subagent"}), "agent"),
    "imageUrl": (frozenset({"assistant", "subagent"}), "agent"),
    "reasoningContent": (frozenset({"assistant", "subagent"}), "agent"),
    "dispatch": (frozenset({"subagent"}), "agent"),
    "reflection": (frozenset({"reflection"}), "agent"),
}
# Known to clients, never said by us.
TYPES = DIRECTIONS.keys() | {"planning"}

# A frame without an id shares an event with the one behind it; these are the events of several frames.
SHARED = frozenset(
    {
        ("toolsStart", "toolCalls"),
        ("toolsStart", "dispatch"),
        ("toolCalls", "functionCall"),
        ("toolReturn", "toolsDone"),
        ("toolReturn", "toolReturn"),
        ("dispatch", "toolsDone"),
        # A refusal comes whole; a text that was cut off is closed with its message.
        ("chunk", "chunk end"),
        ("chunk end", "text"),
        # The parts of an answer are told when it closes, before its text.
        ("chunk end", "imageUrl"),
        ("imageUrl", "imageUrl"),
        ("imageUrl", "text"),
        ("text", "imageUrl"),
        ("text", "text"),
    }
)

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0800")


# ── frames ──


@rule("frames")
def fields_are_id_event_data(capture: Capture) -> Iterator[str]:
    """A frame is ``event`` and directly behind it ``data``, with an ``id`` before them or none; nothing else."""
    for frame in capture.frames:
        names = [line.partition(b":")[0] for line in frame.lines if not line.startswith(b":")]
        if names and names not in ([b"id", b"event", b"data"], [b"event", b"data"]):
            yield b", ".join(names).decode(errors="replace")


@rule("frames")
def no_space_follows_the_colon(capture: Capture) -> Iterator[str]:
    """Values begin directly behind the colon."""
    for frame in capture.frames:
        for line in frame.lines:
            if not line.startswith(b":") and line.partition(b":")[2].startswith(b" "):
                yield repr(line[:30])


@rule("frames")
def there_are_no_comments(capture: Capture) -> Iterator[str]:
    """No comment lines: the Java client dies on a frame without ``event``."""
    for frame in capture.frames:
        for line in frame.lines:
            if line.startswith(b":"):
                yield repr(line[:30])


@rule("frames")
def event_names_are_known(capture: Capture) -> Iterator[str]:
    """Event names are message, chunk and functionCall, and ping for a heartbeat, which holds nothing."""
    for frame in capture.frames:
        ping = frame.lines == (b"event:ping", b"data:{}")
        if frame.event and frame.event not in EVENTS and not ping:
            yield repr(frame.raw[:60])


@rule("frames")
def frames_are_not_split(capture: Capture) -> Iterator[str]:
    """A network read ends with a frame: the Dart client looks at each read by itself."""
    for number, piece in enumerate(capture.reads):
        if not piece.replace(b"\r\n", b"\n").endswith(b"\n\n") and number < len(capture.reads) - 1:
            yield f"read {number} ends with {piece[-30:]!r}"


@rule("resuming")
def ids_end_events(capture: Capture) -> Iterator[str]:
    """The last frame of each event has an id, and only frames of the same event go before it without one."""
    said = capture.said
    for one, other in pairwise(said):
        if not one.id and (_name(one), _name(other)) not in SHARED:
            yield f"{_name(one)} before {_name(other)} has none"
    if said and not said[-1].id:
        yield "the last frame has none"


# ── envelopes ──


@rule("envelope")
def envelopes_are_complete(capture: Capture) -> Iterator[str]:
    """An envelope has all of its strings; a chunk has ``part``, everything else ``content``."""
    for frame in capture.said:
        body = frame.json
        for key in ("sessionId", "taskId", "role", "to", "type", "createTime"):
            if not isinstance(body.get(key), str) or not body[key]:
                yield f"{_name(frame)}: {key} is {body.get(key)!r}"
        if ("part" in body) != (frame.event == "chunk") or ("content" in body) == (frame.event == "chunk"):
            yield f"{frame.event} has {sorted(body.keys() & {'part', 'content'})}"


@rule("envelope")
def enums_are_closed(capture: Capture) -> Iterator[str]:
    """Roles, ``to`` and types come from the lists that the Java client knows."""
    for body in _bodies(capture):
        for key, known in (("role", ROLES), ("to", ROLES), ("type", TYPES)):
            if body.get(key) not in known:
                yield f"{key} {body.get(key)!r}"


@rule("envelope")
def everybody_speaks_in_their_place(capture: Capture) -> Iterator[str]:
    """Each type has those who say it, and whom they say it to."""
    for body in _bodies(capture):
        speakers, to = DIRECTIONS.get(str(body.get("type")), (ROLES, str(body.get("to"))))
        known = body.get("role") in ROLES and body.get("to") in ROLES
        if known and (body.get("role") not in speakers or body.get("to") != to):
            yield f"{body.get('type')}: {body.get('role')} to {body.get('to')}"


@rule("envelope")
def events_carry_their_types(capture: Capture) -> Iterator[str]:
    """``functionCall`` frames carry functionCall, ``chunk`` frames text, ``message`` frames all the rest."""
    expected = {"functionCall": {"functionCall"}, "chunk": {"text"}}
    for frame in capture.said:
        kinds = expected.get(frame.event, TYPES - {"functionCall"})
        if frame.event in EVENTS and frame.json.get("type") in TYPES - kinds:
            yield f"{frame.event} carries {frame.json.get('type')}"


@rule("envelope")
def times_are_as_written(capture: Capture) -> Iterator[str]:
    """``createTime`` is ``yyyy-MM-dd'T'HH:mm:ss.SSS+0800``."""
    for body in _bodies(capture):
        if not TIME.fullmatch(str(body.get("createTime"))):
            yield repr(body.get("createTime"))


@rule("envelope")
def one_session_is_heard(capture: Capture) -> Iterator[str]:
    """All envelopes of a stream are of one session."""
    sessions = {body.get("sessionId") for body in _bodies(capture)}
    if len(sessions) > 1:
        yield f"{len(sessions)} sessions"


@rule("envelope")
def subagents_say_who_they_are(capture: Capture) -> Iterator[str]:
    """What a sub-agent says carries ``agentId`` and ``parentTaskId``; the session's agent has neither."""
    for body in _bodies(capture):
        named = [isinstance(body.get(key), str) and bool(body[key]) for key in ("agentId", "parentTaskId")]
        inner = body.get("role") == "subagent" and body.get("type") != "dispatch"
        if any(named) != all(named) or (inner and not all(named)):
            yield f"{body.get('type')}: {body.get('agentId')!r} of {body.get('parentTaskId')!r}"
        if body.get("role") in ("agent", "assistant", "user", "reflection") and any(named):
            yield f"{body.get('role')} is {body.get('agentId')!r}"


@rule("envelope")
def completions_are_whole_or_absent(capture: Capture) -> Iterator[str]:
    """``completions`` has a usage of three ints, an id and a model, or is not there."""
    for body in _bodies(capture):
        given = body.get("completions", _WHOLE)
        usage = given.get("usage") if isinstance(given, dict) else None
        counts = [usage.get(name) for name in _WHOLE["usage"]] if isinstance(usage, dict) else [None]
        texts = [given.get(key) for key in ("id", "model")] if isinstance(given, dict) else [None]
        if not all(type(count) is int for count in counts) or not all(
            isinstance(text, str) for text in texts
        ):
            yield repr(given)


_WHOLE: Json = {
    "usage": {"promptTokens": 0, "completionTokens": 0, "totalTokens": 0},
    "id": "",
    "model": "",
}


# ── contents ──


@rule("contents")
def contents_have_their_shape(capture: Capture) -> Iterator[str]:
    """``content`` is what its type asks for: text, a list of parts, an object."""
    for body in _bodies(capture):
        shaped = _SHAPES.get(str(body.get("type")))
        if "content" in body and shaped is not None and not shaped(body["content"]):
            yield f"{body.get('type')}: {orjson.dumps(body['content']).decode()[:200]}"
        if "part" in body and not isinstance(body["part"], str):
            yield f"part {body['part']!r}"


@rule("task status")
def states_are_known(capture: Capture) -> Iterator[str]:
    """A state is one of six, and its content names the task, as the envelope does."""
    for body in _states(capture):
        content = body["content"]
        if content.get("status") not in STATES:
            yield repr(content.get("status"))
        if content.get("taskId") != body.get("taskId"):
            yield f"{content.get('status')} of {content.get('taskId')!r}"


@rule("task status")
def states_describe_themselves(capture: Capture) -> Iterator[str]:
    """ToolsStart and toolsDone name the calls; an exception has a code and an error, both text."""
    for body in _states(capture):
        status, said = body["content"].get("status"), body["content"].get("description")
        if (
            not isinstance(said, dict)
            or (status in ("toolsStart", "toolsDone") and not _texts(said.get("functionCallIdList")))
            or (
                status == "exception" and not all(isinstance(said.get(key), str) for key in ("code", "error"))
            )
        ):
            yield f"{status}: {said!r}"


@rule("tool calls")
def arguments_have_both_names(capture: Capture) -> Iterator[str]:
    """A call's ``arguments`` and ``parameters`` are the same object: clients read the one or the other."""
    for call in _calls(capture):
        given = call.get("arguments")
        if not isinstance(given, dict) or call.get("parameters") != given:
            yield f"{call.get('name')}: {sorted(call)}"


@rule("reflection")
def scores_are_numbers(capture: Capture) -> Iterator[str]:
    """A verdict's ``isPass`` is a bool; scores and counts are ints; the content stands under both names."""
    for body in _bodies(capture):
        verdict = body.get("content")
        if body.get("type") != "reflection" or not isinstance(verdict, dict):
            continue
        judged = verdict.get("messageScore")
        judged = judged if isinstance(judged, dict) else {}
        scores = judged.get("reflectScoreList")
        listed = [one.get("score") for one in scores] if isinstance(scores, list) else [None]
        numbers = [verdict.get(key) for key in ("passScore", "count", "maxCount")] + listed
        if not isinstance(verdict.get("isPass"), bool) or not all(type(number) is int for number in numbers):
            yield f"isPass {verdict.get('isPass')!r}, numbers {numbers!r}"
        if not _parts(judged.get("content")) or judged.get("contentList") != judged.get("content"):
            yield "content and contentList differ"
        if not isinstance(judged.get("messageType"), str) or not isinstance(judged.get("message"), str):
            yield f"{judged.get('messageType')!r}: {judged.get('message')!r}"


def _parts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict)
        and part.get("type") in ("text", "imageUrl")
        and isinstance(part.get("message"), str)
        for part in value
    )


def _texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _call(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("id", "name"))


def _dispatch(value: object) -> bool:
    texts = ("dispatchId", "agentId", "name")
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in texts)
        and _parts(value.get("content"))
    )


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "imageUrl": lambda value: isinstance(value, str) and bool(value),
    "reasoningContent": lambda value: isinstance(value, str) and bool(value),
    "contentList": _parts,
    "toolCalls": lambda value: isinstance(value, list) and bool(value) and all(map(_call, value)),
    "functionCall": _call,
    "toolReturn": lambda value: (
        isinstance(value, dict) and isinstance(value.get("id"), str) and isinstance(value.get("result"), dict)
    ),
    "dispatch": _dispatch,
    "reflection": lambda value: isinstance(value, dict),
    "taskStatus": lambda value: isinstance(value, dict),
}


# ── order ──


@rule("order")
def tasks_begin_with_start_and_echo(capture: Capture) -> Iterator[str]:
    """A task begins with ``start``, once, and the echo of what the user said."""
    for turn, whole in _turns(capture):
        names = [_name(frame) for frame in turn]
        if whole and names[:2] != ["start", "contentList"]:
            yield f"begins with {names[:2]}"
        if names.count("start") > 1:
            yield f"{names.count('start')} starts"


@rule("order")
def tasks_end_once(capture: Capture) -> Iterator[str]:
    """A task ends with exactly one of done, stop and exception, and nothing of it follows."""
    if not (capture.turns or capture.resumed):
        yield "there is no task"
    for turn, _ in _turns(capture):
        ends = [place for place, frame in enumerate(turn) if _name(frame) in ENDS]
        if len(ends) != 1:
            yield f"{len(ends)} ends"
        elif ends[0] != len(turn) - 1:
            yield f"{len(turn) - 1 - ends[0]} frames after the end"


@rule("chunks")
def chunks_come_only_when_asked_for(capture: Capture) -> Iterator[str]:
    """Without ``stream`` there are no chunks, and no text without words."""
    if capture.stream:
        return
    for frame in capture.said:
        if frame.event == "chunk" or (_name(frame) == "text" and frame.json.get("content") == ""):
            yield frame.raw[:60].decode(errors="replace")


@rule("chunks")
def streamed_texts_are_closed(capture: Capture) -> Iterator[str]:
    """Pieces are followed by an empty chunk, and that by a text message without words, of the same speaker."""
    for turn, whole in _turns(capture):
        states: dict[str, str] = {}
        for frame in turn:
            speaker, name = str(frame.json.get("agentId", "")), _name(frame)
            state = states.get(speaker, "silent")
            if name == "chunk":
                states[speaker] = "speaks"
            elif name == "chunk end":
                if state != "speaks" and whole:
                    yield "an empty chunk closes nothing"
                states[speaker] = "closed"
            elif name == "text":
                if state == "speaks":
                    yield "the text's message comes before its empty chunk"
                if state == "closed" and frame.json.get("content") == "":
                    states[speaker] = "silent"
            elif name in ENDS:
                for left, other in states.items():
                    if other != "silent":
                        yield f"the text of {left or 'the agent'} is left open at the end"


@rule("tool calls")
def calls_are_announced(capture: Capture) -> Iterator[str]:
    """Calls and dispatches stand between a toolsStart and the toolsDone that name them."""
    for turn, whole in _turns(capture):
        running: set[str] = set()
        for frame in turn:
            name, body = _name(frame), frame.json
            if name in ("toolsStart", "toolsDone"):
                ids = set(_list(body["content"].get("description"), "functionCallIdList"))
                if name == "toolsStart":
                    if ids & running:
                        yield f"{sorted(ids & running)} are announced twice"
                    running |= ids
                else:
                    if ids - running and whole:
                        yield f"{sorted(ids - running)} are done but were not announced"
                    running -= ids
            elif name in ("toolCalls", "toolReturn", "dispatch"):
                for call in _ids(body):
                    if call not in running and whole:
                        yield f"{name} {call} outside of its toolsStart and toolsDone"
            elif name == "done" and running:
                yield f"{sorted(running)} are never done"


@rule("tool calls")
def results_follow_their_calls(capture: Capture) -> Iterator[str]:
    """Each call has an id of its own, and at most one result, after it; at ``done`` each has one."""
    for turn, whole in _turns(capture):
        results: dict[str, int] = {}
        for frame in turn:
            name = _name(frame)
            if name == "toolCalls":
                for call in _ids(frame.json):
                    if call in results:
                        yield f"{call} is called twice"
                    results[call] = 0
            elif name == "toolReturn":
                for call in _ids(frame.json):
                    if call not in results and whole:
                        yield f"a result for {call}, which was not called"
                    results[call] = results.get(call, 0) + 1
        done = any(_name(frame) == "done" for frame in turn)
        for call, count in results.items():
            if count > 1 or (count == 0 and done):
                yield f"{call} has {count} results"


@rule("client functions")
def client_functions_follow_their_calls(capture: Capture) -> Iterator[str]:
    """A functionCall says the same as the toolCalls before it; without one it asks for approval."""
    for turn, _ in _turns(capture):
        called: dict[str, Json] = {}
        asked: set[str] = set()
        for frame in turn:
            if _name(frame) == "toolCalls":
                calls = frame.json["content"]
                called |= {str(call.get("id")): call for call in calls if isinstance(call, dict)}
            elif _name(frame) == "functionCall":
                call = frame.json["content"]
                name = str(call.get("id")) if isinstance(call, dict) else ""
                if name in asked:
                    yield f"{name} is asked for twice"
                if called.get(name, call) != call:
                    yield f"{name} differs from its toolCalls"
                asked.add(name)


# ── history ──


@rule("history")
def history_is_a_bare_array(capture: Capture) -> Iterator[str]:
    """The history is an array of objects, each complete; without states and without requests to the client."""
    if capture.history is None:
        return
    told = orjson.loads(capture.history)
    if not isinstance(told, list) or not all(isinstance(body, dict) for body in told):
        yield repr(capture.history[:60])
        return
    for body in told:
        if body.get("type") in ("taskStatus", "functionCall"):
            yield str(body["type"])
        if missing := {"sessionId", "taskId", "role", "to", "type", "createTime"} - body.keys():
            yield f"{sorted(missing)} missing"


@rule("history")
def history_says_it_under_both_names(capture: Capture) -> Iterator[str]:
    """What was said stands under ``content`` and under ``message``."""
    for body in _history(capture):
        if "content" not in body or body.get("message") != body["content"]:
            yield f"{body.get('type')}: {sorted(body)}"


@rule("history")
def history_is_what_was_said(capture: Capture) -> Iterator[str]:
    """The history repeats what the stream told, envelope by envelope, with the times at which it was said."""
    if capture.history is None or capture.resumed:
        return
    said, kept = list(_said(capture)), [_kept(body) for body in _history(capture)]
    for place, (one, other) in enumerate(zip(said, kept, strict=False)):
        if wrong := sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key)):
            yield f"envelope {place} ({one.get('type')}) differs in {wrong}"
    if len(said) != len(kept):
        yield f"{len(said)} envelopes were told, {len(kept)} are kept"


def _said(capture: Capture) -> Iterator[Json]:
    """What the stream told, in whole envelopes: the pieces of a text are joined in the message that ends it."""
    pieces: dict[str, list[str]] = {}
    for frame in capture.said:
        body = frame.json
        speaker = str(body.get("agentId", ""))
        if frame.event == "chunk":
            pieces.setdefault(speaker, []).append(str(body.get("part")))
        elif body.get("type") == "text" and body.get("content") == "":
            if text := "".join(pieces.pop(speaker, [])):
                yield _kept(body | {"content": text})
        elif body.get("type") not in ("taskStatus", "functionCall"):
            yield _kept(body)


def _kept(body: Json) -> Json:
    """An envelope as it can be compared: the history's name for its content left out."""
    return {key: value for key, value in body.items() if key != "message"}


def check(capture: Capture) -> list[Violation]:
    """What the wire does not allow."""
    return LITEAGENT.check(capture)


# ── parts of the checks ──


def _turns(capture: Capture) -> Iterator[tuple[tuple[Frame, ...], bool]]:
    """Each task's frames, and whether its beginning was told."""
    for number, turn in enumerate(capture.turns):
        yield turn, not (capture.resumed and number == 0)


def _bodies(capture: Capture) -> Iterator[Json]:
    return (frame.json for frame in capture.said)


def _history(capture: Capture) -> list[Json]:
    told = orjson.loads(capture.history) if capture.history is not None else []
    return [body for body in told if isinstance(body, dict)] if isinstance(told, list) else []


def _name(frame: Frame) -> str:
    """What a frame is: its type, a task's state by its name, a chunk by whether it ends a text."""
    body = frame.json
    if frame.event == "chunk":
        return "chunk" if body.get("part") else "chunk end"
    if body.get("type") == "taskStatus" and isinstance(body.get("content"), dict):
        return str(body["content"].get("status"))
    return str(body.get("type"))


def _states(capture: Capture) -> Iterator[Json]:
    for body in _bodies(capture):
        if body.get("type") == "taskStatus" and isinstance(body.get("content"), dict):
            yield body


def _calls(capture: Capture) -> Iterator[Json]:
    for body in _bodies(capture):
        if body.get("type") in ("toolCalls", "functionCall"):
            content = body.get("content")
            calls = content if isinstance(content, list) else [content]
            yield from (call for call in calls if isinstance(call, dict))


def _ids(body: Json) -> list[str]:
    content = body.get("content")
    calls = content if isinstance(content, list) else [content]
    return [str(call.get("id") or call.get("dispatchId")) for call in calls if isinstance(call, dict)]


def _list(value: object, key: str) -> list[str]:
    listed = value.get(key) if isinstance(value, dict) else None
    return [str(one) for one in listed] if isinstance(listed, list) else []
