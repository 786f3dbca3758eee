"""What all encoders share: pieces that are cut from their events instead of parsed are told as they were said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnstream.api.protocols.a2a.task_encoder import TaskEncoder, Wire
from turnstream.api.protocols.ag_ui.run_stream import RunStream
from turnstream.api.protocols.ai_sdk.chunks import ChunkStream
from turnstream.api.protocols.openai.chat_stream import ChatStream
from turnstream.api.protocols.openai.response_stream import ResponseStream
from turnstream.api.turns.ids import ResponseId, TaskId
from turnstream.shared.protocol import ResponseBuilder
from turnstream.shared.session.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnstream.api.streaming.segment_encoder import SegmentEncoder

Json = dict[str, Any]

NAME = ResponseId("s1", "t1", 0)

# Lines end for some clients where JSON strings go on.
TEXT = st.one_of(st.text(min_size=1), st.text('"\\,:}x\u2028\u0085\n\0é', min_size=1))


def entries(pieces: list[tuple[int, str]]) -> Iterator[Entry]:
    """Messages that grow at the same time, as workers write them: which one, and by what."""
    response = ResponseBuilder(numbered=False)
    messages: dict[int, Any] = {}
    for seq, (number, text) in enumerate(pieces, 1):
        if number not in messages:
            message = response.create_message_builder()
            messages[number] = message.create_content_builder()
        head, quoted = messages[number].text_delta_json(text)
        event = b'{"sequence_number":%d,%b%b}' % (seq, head[1:], quoted)
        yield Entry(seq, "t1", "", "message", 1_700_000_000_000, event)


def completions(event: Json) -> tuple[str, str] | None:
    """A completion has one text for all."""
    text = event["choices"][0]["delta"].get("content")
    return ("", text) if text else None


def responses(event: Json) -> tuple[str, str] | None:
    """Of a response's item."""
    return (event["item_id"], event["delta"]) if event["type"] == "response.output_text.delta" else None


def chunks(event: Json) -> tuple[str, str] | None:
    """Of a part."""
    return (event["id"], event["delta"]) if event["type"] == "text-delta" else None


def runs(event: Json) -> tuple[str, str] | None:
    """Of a message."""
    return (event["messageId"], event["delta"]) if event["type"] == "TEXT_MESSAGE_CONTENT" else None


def updates(event: Json) -> tuple[str, str] | None:
    """Of an artifact."""
    update = event["result"].get("artifactUpdate")
    return (update["artifact"]["artifactId"], update["artifact"]["parts"][0]["text"]) if update else None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: ChatStream(NAME, "agent"), completions),
        (lambda: ResponseStream(NAME, {}, "agent"), responses),
        (lambda: ChunkStream("t1"), chunks),
        (lambda: RunStream("s1", "t1"), runs),
        (lambda: TaskEncoder(TaskId("s1", "t1"), Wire(b"1", cursors=True)), updates),
    ],
)
@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(st.tuples(st.integers(0, 1), TEXT), min_size=1, max_size=12))
@example(pieces=[(0, "a"), (0, 'b"c'), (0, "d"), (1, "e"), (1, "\\"), (0, "f\u2028"), (0, "g")])
def test_pieces_are_told_as_they_were_said(
    made: Callable[[], SegmentEncoder],
    told: Callable[[Json], tuple[str, str] | None],
    pieces: list[tuple[int, str]],
) -> None:
    """In frames of one line, each piece once, to the message that it is of; each frame's cursor is its entry's."""
    encoder = made()
    said: dict[str, str] = {}
    for entry in entries(pieces):
        for frame in encoder.feed(7, entry).decode().split("\n\n")[:-1]:
            lines = frame.splitlines()
            event = orjson.loads(lines.pop().removeprefix("data: "))
            if lines and lines[0].startswith("id:"):
                assert lines == [f"id: 7-{entry.seq}"]
                assert f'"cursor":"7-{entry.seq}"' in frame
            if (text := told(event)) is not None:
                said[text[0]] = said.get(text[0], "") + text[1]
    numbers = list(dict.fromkeys(number for number, _ in pieces))
    if told is completions:
        first = next((at for at, (number, _) in enumerate(pieces) if number != numbers[0]), len(pieces))
        words = ["".join(text for _, text in part) for part in (pieces[:first], pieces[first:]) if part]
        assert said == {"": "\n\n".join(words)}
    else:
        assert list(said.values()) == [
            "".join(text for number, text in pieces if number == each) for each in numbers
        ]
