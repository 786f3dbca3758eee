"""How OpenAI's clients are sent events: named frames without ids, and a cut where nothing else would tell that more was to come.

No frame has an ``id:``: the Python client never forgets one, and then takes the blank line behind a comment for an event. Where
a client is, it says by ``starting_after``, and each stream numbers its events by itself: see `response_stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from turnstream.api.streaming.dialect import EVENT_STREAM, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.api.streaming.dialect import Encoder
    from turnstream.shared.session.entry import Entry

# What the last frame has in place of an event.
LAST = "[DONE]"
DONE = b"data: %b\n\n" % LAST.encode()


class OpenAiDialect:
    """The wire of one of OpenAI's streams; what is written of an entry is its encoder's."""

    content_type = EVENT_STREAM
    ping = b": ping\n\n"
    # A stream that just ends is a whole one to some of these clients.
    cuts = True

    def __init__(self, name: str, opened: Callable[[str, Entry], Encoder]) -> None:
        """``opened`` makes an encoder for an entry by itself: what a stream of it alone would be."""
        self.name = name
        self._opened = opened

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:
        """What a stream would be that begins with this entry."""
        return self._opened(session, entry).feed(epoch, entry)

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """The same as `frames`: a closed message holds its whole content."""
        return self.frames(session, epoch, entry)


def named(event: dict[str, object]) -> bytes:
    """A frame whose name is its event's type."""
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), one_line(orjson.dumps(event)))


def unnamed(event: dict[str, object]) -> bytes:
    """A frame without a name."""
    return b"data: %b\n\n" % one_line(orjson.dumps(event))
