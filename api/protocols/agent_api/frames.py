"""The Agent API wire: the canonical events as they are, or with the names of its Java edition.

The space after each colon is required by the Python client; there is no ``event:`` line, since the web
UI reads the ``object`` field instead.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from turnstream.api.streaming.dialect import EVENT_STREAM, NUMBERED, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.shared.session.entry import Entry

_FRAME = b"id: %d-%d\ndata: %b\n\n"
_WITHOUT_CURSOR = b"data: %b\n\n"


def framed(epoch: int, seq: int, events: list[bytes]) -> bytes:
    """Events of one entry; the last one carries the cursor, so that who was cut off between them gets all of them again."""
    *before, last = events
    frame = _FRAME % (epoch, seq, one_line(last))
    return b"".join([*(_WITHOUT_CURSOR % one_line(event) for event in before), frame]) if before else frame


class Agentscope:
    """Passes events through, byte for byte or respelled; the user's own message is not part of the response's stream."""

    content_type = EVENT_STREAM
    ping = b": ping\n\n"
    cuts = False

    def __init__(self, name: str, respell: Callable[[bytes], bytes] | None = None) -> None:
        """``respell`` writes an event in the words of another edition."""
        self.name = name
        self._respell = respell

    def document(self, event: bytes) -> bytes:
        """An event that is an answer of its own."""
        return event if self._respell is None else self._respell(event)

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:  # noqa: ARG002 - events name it
        """One frame with the entry's event."""
        event = entry.event
        if not event.startswith(NUMBERED):
            return b""
        return framed(epoch, entry.seq, [self.document(event)])

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """The same as `frames`: a closed message holds its whole content."""
        return self.frames(session, epoch, entry)


def _java(event: bytes, *, strict: bool) -> bytes:
    """The event in the Java edition's spelling: camelCase, upper-case types, milliseconds."""
    # Imported here because the models behind it are slow to load and few clients want them.
    from turnstream.shared.protocol.wire import java

    return java(event, strict=strict)


AGENTSCOPE = Agentscope("agentscope")
AGENTSCOPE_JAVA = Agentscope("java", partial(_java, strict=False))
# Only words that the published edition has.
AGENTSCOPE_JAVA_001 = Agentscope("java-001", partial(_java, strict=True))
