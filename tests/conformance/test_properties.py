"""Whatever a worker may say, in whatever order: both wires keep their rules, and every client rebuilds it."""

from __future__ import annotations

import json
import uuid
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.capture import read
from tests.conformance.captures import Recording, from_entries
from tests.conformance.checker import WAYS, check
from tests.conformance.features import Feature
from tests.conformance.reducers import (
    AGENT_API_CLIENTS,
    LITEAGENT_CLIENTS,
    Said,
    history_of,
    java_edition,
    no_json,
    output_of,
    without_requests,
)
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.protocols.liteagent.frames import history
from turnstream.shared.protocol import Event, Fold, Message, MessageBuilder, ResponseBuilder, canonical
from turnstream.shared.session.entry import END, RESPONSE, Entry

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

Json: TypeAlias = dict[str, Any]
# Says one event at a time, so that several agents can speak at once.
Saying: TypeAlias = "Generator[None, None, None]"

SESSION = "ab" * 16
EPOCH = 1_700_000_000_000
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
COMPLETIONS = {
    "usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": 3},
    "id": "chatcmpl-1",
    "model": "m",
}

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# ── what may be said ──

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["\u2028", "\r\n", "\n\n", "data: ", "\x85\x1c\x0b", '"}', "\U0001f600", "id:1-1"]
)
pieces = st.lists(texts, min_size=1, max_size=4)
names = st.sampled_from(["add", "ask", "find.it", "f-1"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, values, max_size=3)
links = st.sampled_from(["https://example.com/a", "https://example.com/b?c=d&e=\u4f60"])
whole_parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("image"), "image_url": links}),
    st.fixed_dictionaries({"type": st.just("data"), "data": objects}),
    st.fixed_dictionaries({"type": st.just("audio"), "data": links, "format": st.just("mp3")}),
    st.fixed_dictionaries({"type": st.just("file"), "file_url": links, "filename": texts}),
    st.fixed_dictionaries({"type": st.just("video"), "video_url": links}),
    st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts}),
)
# A list of strings is a text that comes in these pieces.
parts = st.lists(pieces | whole_parts, min_size=1, max_size=4)
results = texts | objects.map(lambda value: orjson.dumps(value).decode())
calls = st.lists(st.tuples(names, objects, results), min_size=1, max_size=3)
steps = st.one_of(
    st.tuples(st.just("answer"), parts),
    st.tuples(st.just("thought"), pieces),
    st.tuples(st.sampled_from(["plugin_call", "function_call", "mcp_call"]), calls),
    st.tuples(st.just("approval"), st.tuples(names, objects, results)),
    st.tuples(st.just("sub-agents"), st.lists(st.lists(pieces | calls, max_size=3), min_size=1, max_size=3)),
    st.tuples(st.just("critics"), texts),
)
ends = st.sampled_from(["completed", "failed", "canceled"])
turns = st.tuples(st.lists(steps, max_size=5), ends, st.none() | parts)


class Session:
    """Writes turns as a worker would, and remembers what each kind of client must have heard in the end."""

    def __init__(self, random: Random) -> None:
        self.entries: list[Entry] = []
        self.kept: list[Entry] = []
        # What Agent API clients hear: in the order in which it was begun.
        self.said: list[Said] = []
        # What LiteAgent clients hear: in the order in which it was finished.
        self.told: list[Said] = []
        self._random = random

    @property
    def recording(self) -> Recording:
        """The session as the capture helpers take it."""
        entries, kept = tuple(self.entries), tuple(self.kept)
        return Recording(Feature("random", ()), SESSION, EPOCH, entries, kept, history(SESSION, self.kept))

    def turn(self, told: Iterable[Any], end: str, cut: list[Any] | None) -> None:
        """One turn: its steps, and how it ends; ``cut`` is an answer that is not finished then."""
        self._task, self._number = str(uuid.uuid4()), 0
        self._responses = ResponseBuilder(SESSION, f"response_{self._task}", EPOCH // 1000, numbered=False)
        self._add(RESPONSE, self._responses.queued())
        content = [{"type": "text", "text": "go on", "status": "completed", "index": 0}]
        asked = Message.model_validate({"role": "user", "status": "completed", "content": content})
        self._add("message", asked, numbered=False, kept=True)
        self.told.append(("user", "contentList", [{"type": "text", "message": "go on"}]))
        self._add(RESPONSE, self._responses.created())
        self._add(RESPONSE, self._responses.in_progress())
        for kind, what in told:
            self._together([self._step(kind, what)])
        if cut is not None and end != "completed":
            self._cut_off(cut)
        match end:
            case "completed":
                event = self._responses.completed(USAGE)
            case "failed":
                event = self._responses.failed("broken", "It broke.", USAGE)
            case _:
                event = self._responses.canceled(USAGE)
        self._add(END, event, kept=True)

    def _step(self, kind: str, what: Any) -> Saying:
        match kind:
            case "answer":
                yield from self._answer(what)
            case "thought":
                yield from self._thought(what)
            case "approval":
                yield from self._approval(*what)
            case "sub-agents":
                yield from self._sub_agents(what)
            case "critics":
                yield from self._critics(what)
            case _:
                yield from self._tools(kind, what)

    def _together(self, sayings: Sequence[Saying]) -> None:
        """Let all of them speak, in turns that chance decides."""
        speaking = list(sayings)
        while speaking:
            one = self._random.choice(speaking)
            if next(one, self) is self:
                speaking.remove(one)

    # ── steps ──

    def _answer(self, given: list[Any], path: str = "") -> Saying:
        text = "".join("".join(part) if isinstance(part, list) else part.get("refusal", "") for part in given)
        role = "subagent" if path else "assistant"
        shown = [
            (role, *_shown(part)) for part in given if isinstance(part, dict) and part["type"] != "refusal"
        ]
        extra = {"completions": COMPLETIONS} if self._random.random() < 0.5 else None
        yield from self._message("message", "assistant", given, path=path, extra=extra)
        self.told += shown + ([(role, "text", text)] if text else [])

    def _thought(self, given: list[str]) -> Saying:
        yield from self._message("reasoning", "assistant", [given])
        self.told.append(("assistant", "reasoningContent", "".join(given)))

    def _tools(self, kind: str, given: list[Any], path: str = "") -> Saying:
        ids = [f"call_{uuid.uuid4().hex}" for _ in given]
        role = "subagent" if path else "assistant"
        for place, (call, (name, arguments, _)) in enumerate(zip(ids, given, strict=True)):
            group = {"ids": ids} | ({"first": True} if place == 0 else {})
            data = {"call_id": call, "name": name, "arguments": json.dumps(arguments)}
            yield from self._data(kind, "assistant", data, path=path, extra={"group": group})
            self.told.append((role, "toolCalls", [(call, name, arguments)]))
        answers = list(zip(ids, given, strict=True))
        self._random.shuffle(answers)
        for place, (call, (name, _, result)) in enumerate(answers, 1):
            group = {"ids": ids} | ({"last": True} if place == len(ids) else {})
            data = {"call_id": call, "name": name, "output": result}
            yield from self._data(f"{kind}_output", "tool", data, path=path, extra={"group": group})
            self.told.append(("tool", "toolReturn", {"id": call, "result": _object(result)}))

    def _approval(self, name: str, arguments: Json, result: str) -> Saying:
        """Asked for and given; then the tool runs."""
        call = f"call_{uuid.uuid4().hex}"
        data: Json = {"id": call, "name": name, "arguments": json.dumps(arguments)}
        yield from self._data("mcp_approval_request", "assistant", data)
        data = {"approve": True, "approval_request_id": call, "id": f"approval_{uuid.uuid4()}"}
        yield from self._data("mcp_approval_response", "user", data)
        yield from self._tools("plugin_call", [(name, arguments, result)])

    def _sub_agents(self, given: list[list[Any]]) -> Saying:
        """Several at once: each speaks and calls tools of its own."""
        ids = [f"call_{uuid.uuid4().hex}" for _ in given]
        for place, call in enumerate(ids):
            group = {"ids": ids} | ({"first": True} if place == 0 else {})
            yield from self._dispatch("component_call", "assistant", call, place, group)
        self._together([self._sub_agent(f"agent-{place}", said) for place, said in enumerate(given)])
        for place, call in enumerate(ids, 1):
            group = {"ids": ids} | ({"last": True} if place == len(ids) else {})
            yield from self._dispatch("component_call_output", "tool", call, place - 1, group)

    def _sub_agent(self, path: str, given: list[Any]) -> Saying:
        for said in given:
            if isinstance(said[0], str):
                yield from self._answer([said], path)
            else:
                yield from self._tools("plugin_call", said, path)

    def _dispatch(self, kind: str, role: str, call: str, place: int, group: Json) -> Saying:
        content = [{"type": "text", "message": "look into it"}]
        data = {"dispatchId": call, "agentId": f"agent-{place}", "name": f"agent-{place}", "content": content}
        yield from self._data(kind, role, data, extra={"group": group})
        self.told.append(("subagent", "dispatch", data))

    def _critics(self, answer: str) -> Saying:
        content = [{"type": "text", "message": "go on"}]
        score = {"content": content, "contentList": content, "messageType": "text", "message": answer}
        score["reflectScoreList"] = [{"score": 9, "description": "Good."}]
        verdict = {"isPass": True, "agentId": "demo", "name": "demo", "messageScore": score}
        verdict |= {"passScore": 8, "count": 1, "maxCount": 10}
        yield from self._data("component_call_output", "tool", {"name": "reflection", "output": verdict})
        self.told.append(("reflection", "reflection", verdict))

    def _cut_off(self, given: list[Any]) -> None:
        """An answer that is being said when the turn ends: its last text is open, what follows was not said yet."""
        before = [part for part in given if isinstance(part, dict)]
        last = next((part for part in given if isinstance(part, list)), ["so "])
        message = self._open("message", "assistant")
        for part in before:
            self._add("message", message.add_content(part))
        text = message.create_content_builder("text")
        for piece in last:
            self._add("message", text.add_text_delta(piece))
        self._add("message", message.incomplete(), kept=True)
        self.said.append(("assistant", "message", [_told(part) for part in [*before, last]]))
        self.told += [("assistant", *_shown(part)) for part in before if part["type"] != "refusal"]
        refusals = "".join(part.get("refusal", "") for part in before)
        self.told.append(("assistant", "text", refusals + "".join(last)))

    # ── events ──

    def _data(self, kind: str, role: str, data: Json, *, path: str = "", extra: Json | None = None) -> Saying:
        yield from self._message(kind, role, [{"type": "data", "data": data}], path=path, extra=extra)

    def _message(
        self, kind: str, role: str, given: list[Any], *, path: str = "", extra: Json | None = None
    ) -> Saying:
        """One message, an event at a time."""
        self.said.append((role, kind, [_told(part) for part in given]))
        message = self._open(kind, role, path)
        yield
        for part in given:
            if isinstance(part, dict):
                self._add(kind, message.add_content(part), path)
            else:
                text = message.create_content_builder("text")
                for piece in part:
                    self._add(kind, text.add_text_delta(piece), path)
                    yield
                self._add(kind, text.complete(), path)
            yield
        self._add(kind, message.complete(), path, extra, kept=True)

    def _open(self, kind: str, role: str, path: str = "") -> MessageBuilder:
        message = self._responses.create_message_builder(role, kind)
        self._add(kind, message.created(), path)
        self._add(kind, message.in_progress(), path)
        return message

    def _add(
        self,
        kind: str,
        event: Event,
        path: str = "",
        extra: Json | None = None,
        *,
        numbered: bool = True,
        kept: bool = False,
    ) -> None:
        """What the log's script does: a place, a number."""
        body = canonical(event)
        if numbered:
            body = b'{"sequence_number":%d,%b' % (self._number, body[1:])
            self._number += 1
        beside = ({"agent": {"id": path, "name": path}} if path else {}) | (extra or {})
        seq = len(self.entries) + 1
        bare = orjson.dumps(beside) if beside and b'"delta":true' not in body else b""
        # No two entries are of the same time: what is told twice must be told with the same one.
        entry = Entry(seq, self._task, path, kind, EPOCH + seq, body, bare)
        self.entries.append(entry)
        if kept:
            self.kept.append(entry)


def _told(part: Any) -> Json:
    """A part as the Agent API reducers show it."""
    if isinstance(part, list):
        return {"text": "".join(part)}
    return {key: value for key, value in part.items() if key != "type"}


def _shown(part: Json) -> tuple[str, str]:
    """Type and content of a part that is no text, for LiteAgent clients."""
    match part["type"]:
        case "image":
            return "imageUrl", part["image_url"]
        case "data":
            return "text", orjson.dumps(part["data"]).decode()
        case "audio":
            return "text", part["data"]
        case "file":
            return "text", part["file_url"]
        case _:
            return "text", part["video_url"]


def _object(result: str) -> Json:
    try:
        value = json.loads(result, parse_constant=no_json)
    except ValueError:
        return {"result": result}
    return value if isinstance(value, dict) else {"result": value}


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """One or two turns."""
    session = Session(draw(st.randoms(use_true_random=False)))
    for told, end, cut in draw(st.lists(turns, min_size=1, max_size=2)):
        session.turn(told, end, cut)
    return session


# ── properties ──


@QUICK
@given(sessions())
def test_every_wire_keeps_its_rules(session: Session) -> None:
    """The checker of each wire finds nothing in any session that the builders can make."""
    for wire, stream in WAYS:
        capture = from_entries(session.recording, wire, stream=stream, pings=True)
        assert [str(violation) for violation in check(capture)] == [], (wire, stream)


@QUICK
@given(sessions())
def test_agent_api_clients_rebuild_any_session(session: Session) -> None:
    """Each client, by its own means, ends up with what was said, in the order in which it was begun."""
    capture = from_entries(session.recording, "agentscope")
    for name, rebuild in AGENT_API_CLIENTS.items():
        assert rebuild(capture) == session.said, name
    assert output_of(capture) == session.said
    assert java_edition(from_entries(session.recording, "java")) == session.said


@QUICK
@given(sessions())
def test_liteagent_clients_rebuild_any_session(session: Session) -> None:
    """With chunks and without, and from the history, clients hear the same, in the order in which it was finished."""
    for stream in (True, False):
        capture = from_entries(session.recording, "liteagent", stream=stream)
        assert history_of(capture) == session.told
        for name, rebuild in LITEAGENT_CLIENTS.items():
            assert without_requests(rebuild(capture)) == session.told, (name, stream)


@QUICK
@given(sessions(), st.data())
def test_any_session_is_whole_when_it_is_resumed(session: Session, data: st.DataObject) -> None:
    """What comes after any place of the log, behind what came before it, is the whole, on every wire."""
    recording = session.recording
    after = data.draw(st.sampled_from(recording.cursors))
    for wire, stream in WAYS:
        whole = from_entries(recording, wire, stream=stream)
        resumed = from_entries(recording, wire, stream=stream, after=after)
        before = [frame.raw for frame in whole.frames if 0 <= frame.seq <= after]
        assert whole.body.endswith(resumed.body)
        shown = {frame.seq for frame in resumed.frames if frame.id}
        assert shown == {frame.seq for frame in whole.frames if frame.seq > after}
        assert len(before) + len(shown) == sum(1 for frame in whole.frames if frame.id)


# Calls of a content builder: what it is for, and what it is given, one after the other.
builds = st.one_of(
    st.tuples(st.just("text"), st.just("add_text_delta"), st.lists(texts, min_size=1, max_size=5)),
    st.tuples(st.just("text"), st.just("set_text"), st.lists(texts, min_size=1, max_size=2)),
    st.tuples(st.just("data"), st.just("add_data_delta"), st.lists(objects, min_size=1, max_size=3)),
    st.tuples(st.just("data"), st.just("set_data"), st.lists(objects, min_size=1, max_size=2)),
    st.tuples(st.just("image"), st.just("set_image_url"), st.lists(links, min_size=1, max_size=2)),
    st.tuples(st.just("audio"), st.just("set_audio"), st.lists(links, min_size=1, max_size=2)),
    st.tuples(st.just("file"), st.just("set_file"), st.lists(links, min_size=1, max_size=2)),
    st.tuples(st.just("video"), st.just("set_video"), st.lists(links, min_size=1, max_size=2)),
    st.tuples(st.just("refusal"), st.just("set_refusal"), st.lists(texts, min_size=1, max_size=2)),
)


@QUICK
@given(st.lists(st.lists(builds, max_size=3), max_size=3), ends, st.booleans())
def test_builder_to_wire_to_fold(messages: list[list[Any]], end: str, leave_open: bool) -> None:
    """What a response builder says, read back off the wire, is its output: from the pieces, and from the end."""
    events: list[Event] = []
    responses = ResponseBuilder(
        SESSION, numbered=True, on_event=lambda event: events.append(event.model_copy(deep=True))
    )
    responses.created()
    responses.in_progress()
    for told in messages:
        message = responses.create_message_builder()
        message.created()
        for kind, call, given_ in told:
            part = message.create_content_builder(kind)
            for value in given_:
                getattr(part, call)(value)
            part.complete()
        message.complete()
    if leave_open and end != "completed":
        responses.create_message_builder().create_content_builder("text").add_text_delta("so ")
    closed = {"completed": responses.completed, "canceled": responses.canceled}
    closed.get(end, lambda: responses.failed("broken", "It broke."))()
    frames = b"".join(
        AGENTSCOPE.frames(SESSION, EPOCH, Entry(seq, "t", "", "message", EPOCH, _numbered(event)))
        for seq, event in enumerate(events, 1)
    )
    heard = [frame.json for frame in read(frames)]
    assert [event["sequence_number"] for event in heard] == list(range(len(events)))
    expected = [json.loads(canonical(message)) for message in responses.output]
    for told_ in (heard[:-1], heard, heard[-1:]):
        fold = Fold()
        for event in told_:
            fold.feed(event)
        assert [json.loads(canonical(message)) for message in fold.messages.values()] == expected


def _numbered(event: Event) -> bytes:
    return b'{"sequence_number":%d,%b' % (event.sequence_number or 0, canonical(event)[1:])
