"""The Agent API wire: the canonical events as they are, or with the names of its Java edition.

The space after each colon is required by the Python client; there is no ``event:`` line, since the web
UI reads the ``object`` field instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.streaming.dialect import EVENT_STREAM, NUMBERED, one_line

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

_FRAME = b"id: %d-%d\ndata: %b\n\n"


class Agentscope:
    """Passes events through byte for byte; the user's own message is not part of the response's stream."""

    name = "agentscope"
    content_type = EVENT_STREAM
    ping = b": ping\n\n"

    def document(self, event: bytes) -> bytes:
        """An event that is an answer of its own."""
        return event

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:  # noqa: ARG002 - events name it
        """One frame with the entry's event."""
        event = entry.event
        if not event.startswith(NUMBERED):
            return b""
        return _FRAME % (epoch, entry.seq, one_line(event))

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """The same as `frames`: a closed message holds its whole content."""
        return self.frames(session, epoch, entry)


class AgentscopeJava:
    """As `Agentscope`, in the Java edition's spelling: camelCase, upper-case types, milliseconds."""

    content_type = EVENT_STREAM
    ping = b": ping\n\n"

    def __init__(self, *, strict: bool = False) -> None:
        """With ``strict`` only words that the published edition has."""
        self.name = "java-001" if strict else "java"
        self._strict = strict

    def document(self, event: bytes) -> bytes:
        """An event that is an answer of its own, respelled."""
        from turnstream.shared.protocol.wire import java

        return java(event, strict=self._strict)

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:  # noqa: ARG002 - events name it
        """One frame with the entry's event, respelled."""
        # Imported here because the models behind it are slow to load and few clients want them.
        from turnstream.shared.protocol.wire import java

        event = entry.event
        if not event.startswith(NUMBERED):
            return b""
        return _FRAME % (epoch, entry.seq, one_line(java(event, strict=self._strict)))

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """The same as `frames`: a closed message holds its whole content."""
        return self.frames(session, epoch, entry)


AGENTSCOPE = Agentscope()
AGENTSCOPE_JAVA = AgentscopeJava()
AGENTSCOPE_JAVA_001 = AgentscopeJava(strict=True)

AgentApi = Agentscope | AgentscopeJava
"""A dialect of the Agent API protocol."""
