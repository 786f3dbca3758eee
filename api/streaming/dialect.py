"""What every dialect is: how one entry of a log is written to one kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry

# The charset is said although SSE is always UTF-8: clients built on `requests` take Latin-1 otherwise.
EVENT_STREAM = "text/event-stream; charset=utf-8"

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
        """Whether its clients take a stream that just ends for a whole one: without the end of what it tells, it is cut."""
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
