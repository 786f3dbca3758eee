"""LiteAgent frames of task states, the user's words, thinking and answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.protocols.turn import (
    COMPLETIONS,
    CREATE_TIME,
    EPOCH,
    SESSION,
    TASK,
    entry,
    envelope,
    message,
    part,
    read,
    response,
    status,
)
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, LiteAgent
from turnstream.shared.session.entry import Entry

BOTH = pytest.mark.parametrize("dialect", [LITEAGENT_STREAM, LITEAGENT_WHOLE], ids=["stream", "whole"])
TEXT = {"type": "text", "text": "Hello", "status": "completed"}
OTHER_PARTS = [
    ({"type": "image", "image_url": "https://x/i.png"}, "imageUrl", "https://x/i.png"),
    ({"type": "image", "image_url": "data:image/png;base64,AA"}, "imageUrl", "data:image/png;base64,AA"),
    ({"type": "data", "data": {"a": [1]}}, "text", '{"a":[1]}'),
    ({"type": "audio", "data": "https://x/a.mp3", "format": "mp3"}, "text", "https://x/a.mp3"),
    ({"type": "audio", "data": "UklGRg==", "format": "mp3"}, "text", "audio.mp3"),
    ({"type": "audio", "data": "UklGRg=="}, "text", "audio.wav"),
    ({"type": "file", "file_url": "https://x/f", "filename": "f.pdf"}, "text", "https://x/f"),
    ({"type": "file", "filename": "f.pdf", "file_data": "AA=="}, "text", "f.pdf"),
    ({"type": "file", "file_id": "file-1"}, "text", "file-1"),
    ({"type": "file", "file_data": "AA=="}, "text", "file"),
    ({"type": "video", "video_url": "https://x/v.mp4"}, "text", "https://x/v.mp4"),
    ({"type": "video"}, "text", "video"),
    ({"type": "video", "video_url": "data:video/mp4;base64,AA"}, "text", "video"),
    ({"type": "file", "file_url": "data:text/plain;base64,AA", "filename": "f.txt"}, "text", "f.txt"),
    ({"type": "audio", "data": "data:audio/mp3;base64,AA", "format": "mp3"}, "text", "audio.mp3"),
]


def told(dialect: LiteAgent, one: Entry) -> list[tuple[str, dict[str, Any]]]:
    """The frames of an entry in a live log."""
    return read(dialect.frames(SESSION, EPOCH, one))


def chunk(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A chunk frame of the session's own agent."""
    data = envelope("assistant", "agent", "text", None, part=text) | more
    del data["content"]
    return "chunk", data


def answer(content: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A message frame with text of the session's own agent."""
    return "message", envelope("assistant", "agent", "text", content) | more


def test_frame_has_exactly_these_bytes() -> None:
    """The line order, the missing spaces and the time format are what hand-written parsers match."""
    assert LITEAGENT_WHOLE.frames(SESSION, EPOCH, response("queued")) == (
        b"id:1700000000000-9\nevent:message\n"
        b'data:{"sessionId":"s-1","taskId":"t-1","role":"agent","to":"client","type":"taskStatus",'
        b'"content":{"status":"start","description":{},"taskId":"t-1"},'
        b'"createTime":"2023-11-15T06:13:20.123+0800"}\n\n'
    )


def test_chunk_has_exactly_these_bytes() -> None:
    """A chunk is built by joining, and looks as if it were not."""
    assert LITEAGENT_STREAM.frames(SESSION, EPOCH, part(type="text", delta=True, text='a"\n')) == (
        b"id:1700000000000-9\nevent:chunk\n"
        b'data:{"sessionId":"s-1","taskId":"t-1","role":"assistant","to":"agent","type":"text",'
        b'"part":"a\\"\\n","createTime":"2023-11-15T06:13:20.123+0800"}\n\n'
    )


@BOTH
def test_ping_is_an_event(dialect: LiteAgent) -> None:
    """The heartbeat has a name: the Java client dies on a frame without one."""
    assert dialect.ping == b"event:ping\ndata:{}\n\n"
    assert dialect.name == "liteagent"
    assert dialect.content_type.startswith("text/event-stream")


def test_milliseconds_are_padded() -> None:
    """A time at the start of a second keeps its three digits, in the zone +0800."""
    one = Entry(1, TASK, "", "response", 5, response("queued").event)
    assert told(LITEAGENT_WHOLE, one)[0][1]["createTime"] == "1970-01-01T08:00:00.005+0800"


# Task states


@BOTH
def test_queued_is_start(dialect: LiteAgent) -> None:
    """The task's first frame is its start."""
    assert told(dialect, response("queued")) == [("message", status("start"))]


@BOTH
@pytest.mark.parametrize("name", ["created", "in_progress"])
def test_running_is_not_told(dialect: LiteAgent, name: str) -> None:
    """The other states before the end are hidden."""
    assert told(dialect, response(name)) == []


@BOTH
@pytest.mark.parametrize(("name", "shown"), [("completed", "done"), ("canceled", "stop")])
def test_end_is_told(dialect: LiteAgent, name: str, shown: str) -> None:
    """A completed task is done, a canceled one stopped."""
    assert told(dialect, response(name, kind="end", output=[])) == [("message", status(shown))]


@BOTH
@pytest.mark.parametrize("name", ["failed", "rejected", "incomplete"])
def test_failure_is_an_exception(dialect: LiteAgent, name: str) -> None:
    """A task that went wrong ends with its code and error."""
    end = response(name, kind="end", error={"code": "worker_lost", "message": "Gone."})
    description = {"code": "worker_lost", "error": "Gone."}
    assert told(dialect, end) == [("message", status("exception", description))]


def test_failure_without_error_names_its_status() -> None:
    """Both fields of the description are there even when the event says nothing."""
    description = {"code": "incomplete", "error": ""}
    end = response("incomplete", kind="end")
    assert told(LITEAGENT_WHOLE, end) == [("message", status("exception", description))]


# The user's words


@BOTH
def test_echo_is_as_sent(dialect: LiteAgent) -> None:
    """A LiteAgent client gets its own content list back."""
    parts = [{"type": "text", "message": "你是谁？"}, {"type": "imageUrl", "message": "https://x/i"}]
    own = message("message", [TEXT], role="user", numbered=False, extra={"parts": parts})
    assert told(dialect, own) == [("message", envelope("user", "agent", "contentList", parts))]


@BOTH
@pytest.mark.parametrize(("given", "kind", "value"), [*OTHER_PARTS, (TEXT, "text", "Hello")])
def test_echo_is_made_from_canonical_parts(
    dialect: LiteAgent, given: dict[str, Any], kind: str, value: str
) -> None:
    """What another client sent is mapped part by part."""
    own = message("message", [given], role="user", numbered=False)
    items = [{"type": kind, "message": value}]
    assert told(dialect, own) == [("message", envelope("user", "agent", "contentList", items))]


@BOTH
def test_other_input_is_not_shown_as_the_users(dialect: LiteAgent) -> None:
    """A system message of a request is not put into the user's mouth."""
    assert told(dialect, message("message", [TEXT], role="system", numbered=False)) == []


# Thinking


@BOTH
@pytest.mark.parametrize("closed", ["completed", "incomplete"])
def test_thinking_is_told_when_closed(dialect: LiteAgent, closed: str) -> None:
    """A reasoning message comes whole."""
    thought = message("reasoning", [TEXT], status=closed)
    assert told(dialect, thought) == [
        ("message", envelope("assistant", "agent", "reasoningContent", "Hello"))
    ]


@BOTH
@pytest.mark.parametrize(
    "one",
    [
        part("reasoning", type="text", delta=True, text="H"),
        part("reasoning", type="text", text="Hello"),
        message("reasoning", status="created"),
        message("reasoning", status="in_progress"),
        message("reasoning", [], status="incomplete"),
    ],
)
def test_thinking_is_hidden_before(dialect: LiteAgent, one: Entry) -> None:
    """Its deltas, its opening and an empty thought are not told."""
    assert told(dialect, one) == []


# Answers, streamed


def test_delta_is_a_chunk() -> None:
    """A text delta is one chunk."""
    assert told(LITEAGENT_STREAM, part(type="text", delta=True, text="Hi")) == [chunk("Hi")]


def test_empty_delta_is_hidden() -> None:
    """An empty delta would look like the end of the part."""
    assert told(LITEAGENT_STREAM, part(type="text", delta=True, text="")) == []


def test_completed_text_closes_the_chunks() -> None:
    """The whole text, already told, becomes the closing chunk."""
    assert told(LITEAGENT_STREAM, part(type="text", text="Hello")) == [chunk("")]


@pytest.mark.parametrize("kind", ["text", "refusal"])
def test_an_empty_text_is_not_closed(kind: str) -> None:
    """A part that said nothing had no chunks, and its message tells nothing."""
    empty = {"type": kind, kind: ""}
    assert told(LITEAGENT_STREAM, part(**empty)) == []
    for state in ("completed", "incomplete"):
        end = message(
            "message", [empty | {"status": state}], status=state, extra={"completions": COMPLETIONS}
        )
        assert told(LITEAGENT_STREAM, end) == told(LITEAGENT_WHOLE, end) == []


def test_refusal_is_streamed_whole() -> None:
    """A refusal is told once, as a chunk and its close; its deltas are not."""
    assert told(LITEAGENT_STREAM, part(type="refusal", refusal="No.")) == [chunk("No."), chunk("")]
    assert told(LITEAGENT_STREAM, part(type="refusal", delta=True, refusal="No.")) == []


@pytest.mark.parametrize("closed", ["completed", "incomplete"])
def test_streamed_answer_ends_without_text(closed: str) -> None:
    """The closing message has the completions, and no text since the chunks held it."""
    end = message("message", [TEXT], status=closed, extra={"completions": COMPLETIONS})
    assert told(LITEAGENT_STREAM, end) == [answer("", completions=COMPLETIONS)]


@pytest.mark.parametrize("cut", [{}, {"status": "in_progress"}, {"status": "incomplete"}])
def test_part_that_was_cut_off_is_closed(cut: dict[str, str]) -> None:
    """An incomplete message whose text was still open gets the closing chunk first, without an id."""
    end = message("message", [{"type": "text", "text": "He"} | cut], status="incomplete")
    assert told(LITEAGENT_STREAM, end) == [chunk(""), answer("")]


def test_refusal_that_was_cut_off_is_told() -> None:
    """Its deltas were not told, so what there is of it comes with the closing chunk."""
    end = message(
        "message", [{"type": "refusal", "refusal": "N", "status": "incomplete"}], status="incomplete"
    )
    assert told(LITEAGENT_STREAM, end) == [chunk("N"), chunk(""), answer("")]


# Answers, whole


@pytest.mark.parametrize(
    "one", [part(type="text", delta=True, text="H"), part(type="text", text="Hello"), part(type="refusal")]
)
def test_pieces_are_hidden(one: Entry) -> None:
    """Without streaming, text is told by its message only."""
    assert told(LITEAGENT_WHOLE, one) == []


@pytest.mark.parametrize("closed", ["completed", "incomplete"])
def test_answer_is_told_whole(closed: str) -> None:
    """The text parts are joined, refusals among them; other parts come before it."""
    content = [TEXT, {"type": "image", "image_url": "u"}, {"type": "refusal", "refusal": " No."}]
    end = message("message", content, status=closed, extra={"completions": COMPLETIONS})
    image = ("message", envelope("assistant", "agent", "imageUrl", "u"))
    assert told(LITEAGENT_WHOLE, end) == [image, answer("Hello No.", completions=COMPLETIONS)]


# Answers, both


@BOTH
@pytest.mark.parametrize("closed", ["completed", "incomplete"])
@pytest.mark.parametrize(("given", "kind", "value"), OTHER_PARTS)
def test_other_parts_have_their_own_message(
    dialect: LiteAgent, given: dict[str, Any], kind: str, value: str, closed: str
) -> None:
    """A part that is no text is told when its message closes: images as such, the rest as text."""
    end = message("message", [given | {"status": "completed"}], status=closed)
    assert told(dialect, end) == [("message", envelope("assistant", "agent", kind, value))]


@BOTH
def test_an_answer_without_text_has_its_completions(dialect: LiteAgent) -> None:
    """Tokens are told with the last message of an answer, whatever it is made of."""
    images = [{"type": "image", "image_url": link, "status": "completed"} for link in ("u", "v")]
    end = message("message", images, extra={"completions": COMPLETIONS})
    assert told(dialect, end) == [
        ("message", envelope("assistant", "agent", "imageUrl", "u")),
        ("message", envelope("assistant", "agent", "imageUrl", "v", completions=COMPLETIONS)),
    ]


@BOTH
@pytest.mark.parametrize("state", ["in_progress", "incomplete"])
def test_half_a_part_is_not_told(dialect: LiteAgent, state: str) -> None:
    """A link or data that was cut off is of no use."""
    half = {"type": "data", "data": {"a": 1}, "status": state}
    assert told(dialect, message("message", [half], status="incomplete")) == []


@BOTH
@pytest.mark.parametrize(
    "one",
    [
        message("message", status="created"),
        message("message", status="in_progress"),
        part(type="data", delta=True, data={"a": 1}),
        part(type="image", image_url="u"),
        message("message", [{"type": "image"}, {"type": "data"}]),
        entry("message", {"object": "content", "type": "image", "status": "in_progress", "image_url": "u"}),
    ],
)
def test_what_is_not_finished_is_hidden(dialect: LiteAgent, one: Entry) -> None:
    """Openings, parts before their message closes, and empty ones are not told."""
    assert told(dialect, one) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "x", "model": "m"},
        {"usage": {"promptTokens": 1, "completionTokens": 2}, "id": "x", "model": "m"},
        {"usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": 3}, "id": "x"},
        {"usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": 3}, "model": "m"},
        {"usage": {"promptTokens": 1, "completionTokens": 2, "totalTokens": None}, "id": "x", "model": "m"},
    ],
)
def test_completions_are_whole_or_absent(broken: dict[str, Any]) -> None:
    """A strict client fails on completions that lack a field, so they are left out."""
    assert told(LITEAGENT_WHOLE, message("message", [TEXT], extra={"completions": broken})) == [
        answer("Hello")
    ]


@BOTH
@pytest.mark.parametrize(
    "kind", ["heartbeat", "error", "mcp_list_tools", "mcp_approval_response", "unheard_of"]
)
def test_kinds_without_a_word_are_hidden(dialect: LiteAgent, kind: str) -> None:
    """What these clients have no type for is not told."""
    assert told(dialect, message(kind, [{"type": "data", "data": {"a": 1}}])) == []
    assert told(dialect, part(kind, type="data", data={"a": 1})) == []


# Sub-agents


@pytest.mark.parametrize(
    ("extra", "agent"), [({"agent": {"id": "a-7", "name": "Reader"}}, "a-7"), (None, "reader")]
)
def test_sub_agent_speaks_as_itself(extra: dict[str, Any] | None, agent: str) -> None:
    """A sub-agent's text has its role, its id (or the path's last name) and the task it serves."""
    more = {"role": "subagent", "agentId": agent, "parentTaskId": TASK}
    where: dict[str, Any] = {"path": "researcher/reader", "extra": extra}
    delta = part(type="text", delta=True, text="Hi", **where)
    assert told(LITEAGENT_STREAM, delta) == [chunk("Hi", **more)]
    closed = message("message", [TEXT], **where)
    assert told(LITEAGENT_WHOLE, closed) == [answer("Hello", **more)]
    assert told(LITEAGENT_STREAM, closed) == [answer("", **more)]
    thought = message("reasoning", [TEXT], **where)
    expected = envelope("assistant", "agent", "reasoningContent", "Hello") | more
    assert told(LITEAGENT_WHOLE, thought) == [("message", expected)]


def test_agents_do_not_share_a_head() -> None:
    """Two agents of one task, interleaved, each keep their own names."""
    one, two = (part(type="text", delta=True, text="x", path=path) for path in ("a", "b"))
    agents = [told(LITEAGENT_STREAM, each)[0][1]["agentId"] for each in (one, two, one)]
    assert agents == ["a", "b", "a"]


# What hand-written parsers trip over


def test_line_ends_of_unicode_are_escaped() -> None:
    """U+2028 ends the data line for the Dart client's regular expression, so it never stands raw."""
    text = "a\u2028b\u2029c\x85d\r\ne"
    for frames in (
        LITEAGENT_STREAM.frames(SESSION, EPOCH, part(type="text", delta=True, text=text)),
        LITEAGENT_WHOLE.frames(SESSION, EPOCH, message("message", [{"type": "text", "text": text}])),
    ):
        data = read(frames)[0][1]
        assert data.get("part", data.get("content")) == text
        assert len(frames.decode().splitlines()) == 4
        assert data["createTime"] == CREATE_TIME
