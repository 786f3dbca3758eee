"""Whatever a log holds, LiteAgent frames are well formed and their enums closed."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.protocols.turn import read
from turnstream.api.http.answers import Described
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, LiteAgent, history
from turnstream.api.protocols.liteagent.schemas import Chunk, Envelope, Remembered
from turnstream.shared.session.entry import Entry

ROLES = {"developer", "user", "agent", "assistant", "dispatcher", "subagent", "reflection", "tool", "client"}
TYPES = {
    "text",
    "imageUrl",
    "contentList",
    "toolCalls",
    "dispatch",
    "reflection",
    "toolReturn",
    "functionCall",
    "taskStatus",
    "reasoningContent",
    "planning",
}
KINDS = [
    *("message", "reasoning", "plugin_call", "plugin_call_output", "function_call", "function_call_output"),
    *("mcp_call", "mcp_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("component_call", "component_call_output", "heartbeat", "error", "unheard_of"),
]
STATUSES = ["created", "in_progress", "completed", "incomplete", "queued", "canceled", "failed", "rejected"]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\u2028\x85\r\n"]
)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
written = text | values.map(lambda value: orjson.dumps(value).decode()) | st.just('{\n"a":\r\n1}')
data = st.fixed_dictionaries(
    {},
    optional={
        "call_id": text,
        "name": text | st.just("reflection"),
        "arguments": written | values,
        "output": written
        | values
        | st.fixed_dictionaries(
            {},
            optional={
                "isPass": values,
                "passScore": values | st.floats(allow_nan=False, allow_infinity=False),
                "messageScore": values
                | st.fixed_dictionaries({"content": values, "reflectScoreList": values, "message": values}),
            },
        ),
        "content": values | st.lists(st.fixed_dictionaries({"type": text, "message": values})),
        "dispatchId": values,
        "agentId": values,
    },
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": text}, optional={"status": text}),
    st.fixed_dictionaries({"type": st.just("refusal")}, optional={"refusal": text}),
    st.fixed_dictionaries({"type": st.just("image")}, optional={"image_url": text}),
    st.fixed_dictionaries({"type": st.just("data")}, optional={"data": data}),
    st.fixed_dictionaries({"type": st.just("audio")}, optional={"data": text, "format": text}),
    st.fixed_dictionaries({"type": st.just("file")}, optional={"file_url": text, "filename": text}),
    st.fixed_dictionaries({"type": st.just("video")}, optional={"video_url": text}),
)
messages = st.fixed_dictionaries(
    {"object": st.just("message"), "status": st.sampled_from(STATUSES)},
    optional={"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.lists(parts)},
)
contents = st.builds(
    lambda part, more: {"object": "content"} | part | more,
    parts,
    st.fixed_dictionaries({"status": st.sampled_from(STATUSES), "delta": st.booleans()}),
)
responses = st.fixed_dictionaries(
    {"object": st.just("response"), "status": st.sampled_from(STATUSES)},
    optional={"error": st.none() | st.fixed_dictionaries({"code": text, "message": text})},
)
completions = st.fixed_dictionaries(
    {
        "usage": st.fixed_dictionaries(
            {name: st.integers(0, 10**6) for name in ("promptTokens", "completionTokens", "totalTokens")},
            optional={"cachedTokens": st.integers(0, 9)},
        ),
        "id": text,
    },
    optional={"model": text, "more": values},
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "completions": values | completions,
        "group": st.fixed_dictionaries({"ids": st.lists(text)}, optional={"first": st.booleans()}),
        "agent": st.fixed_dictionaries({"id": text, "name": text}),
    },
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Any entry that a worker could append, and some that none should."""
    kind = draw(st.sampled_from([*KINDS, "response", "end"]))
    body: dict[str, Any] = draw(responses if kind in ("response", "end") else messages | contents)
    if draw(st.booleans()):
        body = {"sequence_number": draw(st.integers(0, 10**6))} | body
    extra = draw(st.just(b"") | extras.map(orjson.dumps))
    seq, created = draw(st.integers(1, 10**9)), draw(st.integers(0, 4 * 10**12))
    return Entry(seq, draw(text), draw(st.just("") | text), kind, created, orjson.dumps(body), extra)


def assert_described(model: type[Described], body: dict[str, Any]) -> None:
    """The body has fields of the model only, of its types and in its order: what /openapi.json says of it is so."""
    model.model_validate(body, strict=True)
    assert list(body) == [name for name in model.model_fields if name in body]


@given(st.sampled_from([LITEAGENT_STREAM, LITEAGENT_WHOLE]), entries(), text, st.integers(1, 10**13))
def test_frames_are_well_formed(dialect: LiteAgent, entry: Entry, session: str, epoch: int) -> None:
    """Frames are LF only, one data line each, event directly before data, the id on the last, enums closed."""
    for frames in (dialect.frames(session, epoch, entry), dialect.replay(session, epoch, entry)):
        assert b"\r" not in frames
        assert frames.count(b"\nid:") == 0 or frames.count(b"\n\nid:") == 1
        assert len(frames.decode().splitlines()) == frames.count(b"\n")
        told = read(frames)
        if told:
            assert b"id:%d-%d\nevent:" % (epoch, entry.seq) in frames
        for name, body in told:
            assert name in {"message", "chunk", "functionCall"}
            assert_described(Chunk if name == "chunk" else Envelope, body)
            assert body["role"] in ROLES
            assert body["to"] in ROLES
            assert body["type"] in TYPES
            assert (body["sessionId"], body["taskId"]) == (session, entry.task)
            assert body["createTime"].endswith("+0800")
            assert ("part" in body) == (name == "chunk")
            assert ("content" in body) == (name != "chunk")
            assert ("parentTaskId" in body) == bool(entry.path)


@given(st.sampled_from([LITEAGENT_STREAM, LITEAGENT_WHOLE]), entries())
def test_frames_are_a_pure_function(dialect: LiteAgent, entry: Entry) -> None:
    """The same entry gives the same bytes, whatever was written before."""
    assert dialect.frames("s", 1, entry) == LiteAgent(dialect.stream).frames("s", 1, entry)


@given(st.lists(entries(), max_size=5))
def test_history_is_an_array_of_envelopes(log: list[Entry]) -> None:
    """Any log makes a JSON array without states and without requests to the client."""
    for body in orjson.loads(history("s", log)):
        assert body["type"] in TYPES - {"taskStatus", "functionCall"}
        assert body["message"] == body["content"]
        assert_described(Remembered, body)
