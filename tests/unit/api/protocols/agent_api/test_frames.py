"""The Agent API dialects, by their bytes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.unit.api.protocols.turn import EPOCH, SESSION, message, parked, part
from turnstream.api.protocols.agent_api.frames import AGENTSCOPE, AGENTSCOPE_JAVA
from turnstream.shared.session.entry import Entry

if TYPE_CHECKING:
    from turnstream.api.streaming.dialect import Dialect

DIALECTS: list[Dialect] = [AGENTSCOPE, AGENTSCOPE_JAVA]


def entry_of(event: bytes) -> Entry:
    """An entry with these bytes as its event."""
    return Entry(12, "t", "", "message", 1, event)


@pytest.fixture
def respelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the conversion to the Java edition, which has tests of its own."""
    wire = ModuleType("turnstream.shared.protocol.wire")
    wire.__dict__["java"] = lambda event, *, strict: event.replace(b"sequence_number", b"sequenceNumber")
    monkeypatch.setitem(sys.modules, "turnstream.shared.protocol.wire", wire)


def test_event_passes_through_byte_for_byte() -> None:
    """An event is framed with a space after each colon and not rewritten."""
    event = '{"sequence_number":3,"text":"é 1.0","n":1.0}'.encode()
    assert AGENTSCOPE.frames(SESSION, EPOCH, entry_of(event)) == (
        b"id: 1700000000000-12\ndata: " + event + b"\n\n"
    )


def test_java_respells_the_event(respelled: None) -> None:
    """The Java dialect frames what the conversion gives."""
    frames = AGENTSCOPE_JAVA.frames(SESSION, EPOCH, entry_of(b'{"sequence_number":3}'))
    assert frames == b'id: 1700000000000-12\ndata: {"sequenceNumber":3}\n\n'


@pytest.mark.parametrize("dialect", DIALECTS)
def test_users_own_message_is_hidden(dialect: Dialect, respelled: None) -> None:
    """The user's message has no number and is not part of the response's stream."""
    own = message("message", [{"type": "text", "text": "hi"}], role="user", numbered=False)
    assert dialect.frames(SESSION, EPOCH, own) == b""
    assert dialect.replay(SESSION, EPOCH, own) == b""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_replay_is_the_same_frame(dialect: Dialect, respelled: None) -> None:
    """A closed message holds its whole content, so a replay says nothing else."""
    closed = message("message", [{"type": "text", "text": "hi"}])
    assert dialect.replay(SESSION, EPOCH, closed) == dialect.frames(SESSION, EPOCH, closed) != b""


def test_line_ends_of_unicode_are_escaped() -> None:
    """Characters that httpx takes for the end of a line never stand raw in a data line."""
    frames = AGENTSCOPE.frames(SESSION, EPOCH, part(type="text", delta=True, text="a\u2028b\u2029c\x85d“"))
    assert "a\\u2028b\\u2029c\\u0085d“".encode() in frames
    assert len(frames.decode().splitlines()) == 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_parking_is_not_told(dialect: Dialect) -> None:
    """That a turn was parked is no event of its response."""
    assert dialect.frames(SESSION, EPOCH, parked()) == dialect.replay(SESSION, EPOCH, parked()) == b""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ping_is_a_comment(dialect: Dialect) -> None:
    """The heartbeat is a comment, which these clients skip."""
    assert dialect.ping == b": ping\n\n"
    assert dialect.content_type.startswith("text/event-stream")


def test_names_differ() -> None:
    """Each dialect has a name of its own."""
    assert [dialect.name for dialect in DIALECTS] == ["agentscope", "java"]
