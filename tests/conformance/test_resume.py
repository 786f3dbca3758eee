"""A client that comes back with any cursor of a stream has, with what it got before, the whole of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.capture import Capture, Frame, Wire
from tests.conformance.captures import Recording, from_entries, from_trimmed, recorded
from tests.conformance.checker import WAYS, broken
from tests.conformance.features import FEATURES
from tests.conformance.reducers import (
    LITEAGENT_CLIENTS,
    dispatcher,
    history_of,
    java_edition,
    output_of,
    web_page_before_the_end,
    without_requests,
)
from tests.conformance.rules_framing import FRAMING

NAMES = [feature.name for feature in FEATURES]


@pytest.mark.parametrize(("wire", "stream"), WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere_and_resumed_it_is_whole(name: str, wire: Wire, stream: bool) -> None:
    """Cut after any frame: what came before and what a resume brings are the whole, byte by byte.

    On the LiteAgent wire the frames of one event that was cut apart are repeated, and no others.
    """
    recording = recorded(name)
    whole = from_entries(recording, wire, stream=stream)
    for received in range(len(whole.frames) + 1):
        before = whole.frames[:received]
        resumed = from_entries(recording, wire, stream=stream, after=_cursor(before))
        repeated = _without_id(before)
        assert wire == "liteagent" or not repeated
        assert b"".join(frame.raw for frame in before[: received - repeated]) + resumed.body == whole.body
        assert resumed.frames[:repeated] == before[received - repeated :]


@pytest.mark.parametrize(("wire", "stream"), WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_resumed_keeps_the_rules(name: str, wire: Wire, stream: bool) -> None:
    """From any place of the log on, shown to this client or not, the rest breaks no rule that the whole keeps."""
    recording = recorded(name)
    whole = from_entries(recording, wire, stream=stream)
    for cursor in recording.cursors:
        resumed = from_entries(recording, wire, stream=stream, after=cursor)
        assert whole.body.endswith(resumed.body)
        assert broken(resumed) <= broken(whole), f"after {cursor}"


@pytest.mark.parametrize("client", LITEAGENT_CLIENTS)
@pytest.mark.parametrize("name", NAMES)
def test_an_event_that_is_repeated_does_no_harm_when_read_once(name: str, client: str) -> None:
    """A client that drops the frames it has had rebuilds the conversation from two connections."""
    recording = recorded(name)
    whole = from_entries(recording, "liteagent")
    for received in range(0, len(whole.frames) + 1, 3):
        before = whole.frames[:received]
        resumed = from_entries(recording, "liteagent", after=_cursor(before))
        joined = whole.rewritten([*before, *resumed.frames[_without_id(before) :]])
        assert LITEAGENT_CLIENTS[client](joined) == LITEAGENT_CLIENTS[client](whole)


@pytest.mark.parametrize(("wire", "stream"), WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_log_cut_between_messages_tells_everything(name: str, wire: Wire, stream: bool) -> None:
    """Wherever between two messages the log was cut, history and log together tell the whole conversation."""
    recording = recorded(name)
    for head in _between_messages(recording):
        _tells_everything(from_trimmed(recording, wire, stream=stream, head=head))


@pytest.mark.parametrize(("wire", "stream"), [("agentscope", True), ("liteagent", True)])
@pytest.mark.parametrize("name", ["text", "tokens"])
def test_a_log_cut_within_a_message_tells_everything(name: str, wire: Wire, stream: bool) -> None:
    """A message whose beginning was cut off is told whole nevertheless."""
    recording = recorded(name)
    between = set(_between_messages(recording))
    for head in sorted(set(recording.cursors) - between - {recording.entries[0].seq - 1}):
        _tells_everything(from_trimmed(recording, wire, stream=stream, head=head))


def _tells_everything(capture: Capture) -> None:
    assert FRAMING.check(capture) == []
    if capture.wire == "liteagent":
        assert without_requests(dispatcher(capture)) == history_of(capture)
    elif capture.wire == "agentscope":
        assert web_page_before_the_end(capture) == output_of(capture)
    else:
        assert java_edition(capture) == output_of(capture)


def _between_messages(recording: Recording) -> Iterator[int]:
    """Places at which no message is open."""
    open_messages: set[bytes] = set()
    for entry in recording.entries:
        if not open_messages:
            yield entry.seq
        if b'"object":"message","status":"created"' in entry.event:
            open_messages.add(entry.event.partition(b'"id":')[2][:42])
        elif entry in recording.kept:
            open_messages.discard(entry.event.partition(b'"id":')[2][:42])


def _cursor(frames: tuple[Frame, ...]) -> int:
    """The place that a client has reached: the last id it received."""
    return next((frame.seq for frame in reversed(frames) if frame.id), 0)


def _without_id(frames: tuple[Frame, ...]) -> int:
    """How many frames came since the last id."""
    return next((place for place, frame in enumerate(reversed(frames)) if frame.id), len(frames))
