"""What every dialect is: how one entry of a log is written to one kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnstream.shared.session.entry import Entry

# The charset is given although SSE is always UTF-8: clients built on `requests` take Latin-1 otherwise.
EVENT_STREAM = "text/event-stream; charset=utf-8"

# What the last frame of some streams has in place of an event.
LAST = "[DONE]"
DONE = b"data: %b\n\n" % LAST.encode()

# Every event of a response begins so; what does not is the user's own message.
NUMBERED = b'{"sequence_number":'


class Dialect(Protocol):
    """A way to write entries to one kind of client. Stateless: any front end writes the same bytes."""

    @property
    def name(self) -> str:
        """How a route or a metric calls it."""
        ...

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of a stream in this dialect."""
        ...

    @property
    def ping(self) -> bytes:
        """A frame that keeps an idle connection open and that its clients ignore."""
        ...

    @property
    def cuts(self) -> bool:
        """Whether its clients take a stream that just ends for a whole one: before the end of its turn, it is cut."""
        ...

    def frames(self, session: str, epoch: int, entry: Entry) -> bytes:
        """Write one entry of the log as complete SSE frames, or ``b""`` when this client does not see it.

        Only the last frame carries the ``id:`` (``<epoch>-<seq>``), so that a connection cut between two
        of them repeats the whole entry and loses nothing.
        """
        ...

    def replay(self, session: str, epoch: int, entry: Entry) -> bytes:
        """Write a closed message or a terminal event whose content events are no longer in the log.

        Like `frames`, but what the client would have learnt from the lost content events is said too.
        """
        ...


class Encoder(Protocol):
    """One stream to one client, where what is written of an entry depends on those before it.

    It is fed with all entries of its task from a place on that does not depend on the client, each once; what the client has
    already is made, and dropped. So any front end writes the same bytes here, too.
    """

    @property
    def over(self) -> bool:
        """Whether the last frames were those of the end."""
        ...

    def feed(self, epoch: int, entry: Entry) -> bytes:
        """The entry as complete SSE frames, or ``b""`` when this client does not see it."""
        ...


class EncodedDialect:
    """The wire of streams whose frames are written by an `Encoder`. They have no ids; a stream that ends too early is cut."""

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


def data_frame(event: dict[str, Any]) -> bytes:
    """A frame without a name."""
    return b"data: %b\n\n" % one_line(orjson.dumps(event))


def one_line(json: bytes) -> bytes:
    """Escape the three characters that are legal in JSON strings but end a line for some clients.

    Python's ``splitlines`` (httpx) breaks at U+0085, U+2028 and U+2029, and the ``.`` of Dart's regular
    expressions stops at the last two. In JSON they stand only inside strings, so an escape is the same.
    """
    if json.isascii():
        return json
    if b"\xe2\x80" in json:
        json = json.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2\x85" in json:
        json = json.replace(b"\xc2\x85", b"\\u0085")
    return json
