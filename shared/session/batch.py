"""What goes into the log in one round trip: events on their way, and what is checkpointed with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnstream.shared.broker.scripts import size_of
from turnstream.shared.session.entry import END, RESPONSE
from turnstream.shared.session.files import LARGE_BYTES, cut

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Argument = str | bytes | int

# The checkpoint of the model's background responses. It alone is no progress: what is retried with it is not counted anew.
BACKGROUND = "background"
# That of requests to models (`model_calls.py`): they may have failed.
MODEL_CALLS = "model_calls"

# Deltas are joined up to this. Well below what is taken out as large data, and what a narrow connection takes at once.
JOINED_BYTES = 4096


class TooLarge(Exception):  # noqa: N818 - it says what the event is
    """One event is larger than a whole turn may be."""


@dataclass(slots=True)
class Batch:
    """Entries to append atomically, with the calls they announce and the checkpoints they complete.

    Duties:
        1. hold entries in the order in which they will stand in the log, neighbouring deltas of one part as one;
        2. hold what must become true with them: call groups, pending calls, checkpoints;
        3. take large data out, which goes beside it (`files`, by digest), no later than it is spelled; to do so before,
           beside the event loop, is for who may have much of it (`uncut`, `cut_all`);
        4. spell all of it as the scripts take it (lua/_session.lua, ``write`` and ``checkpoint``).

    Bodies are canonical JSON without ``sequence_number``: the log gives the number when it gives the
    place. ``largest`` is the most bytes that one event may have, an end excepted (0: any number); more raises
    `TooLarge`, and nothing is added. ``known`` are the files that the session has, as far as its caller knows. ``size`` is the bytes of the entries, about; ``opened`` tells which entry (from 0) opens a message; ``progress``, that a checkpoint brings the turn on.
    """

    largest: int = 0
    known: Collection[str] = ()
    count: int = 0
    size: int = 0
    entries: list[Argument] = field(default_factory=list)
    groups: list[Argument] = field(default_factory=list)
    calls: list[Argument] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    dropped: list[Argument] = field(default_factory=list)
    withdrawn: list[Argument] = field(default_factory=list)
    opened: dict[str, int] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    uncut: bool = False
    progress: bool = False
    # When a delta stands last: what begins each delta of its part, that delta, and the texts to be joined to it.
    _head: bytes | None = None
    _delta: bytes = b""
    _texts: list[bytes] = field(default_factory=list)
    _joined: int = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.calls or self.kept or self.dropped or self.groups or self.withdrawn)

    @property
    def weight(self) -> int:
        """Bytes of all that goes along, about."""
        beside = size_of(self.calls) + sum(map(len, self.kept.values()))
        return self.size + beside + sum(map(len, self.files.values()))

    def event(self, kind: str, body: bytes, *, path: str = "", extra: bytes = b"") -> None:
        """Add an event within a message, or a response's status."""
        self._add("d", path, kind, body[1:], extra)

    def delta(self, kind: str, head: bytes, text: bytes, *, path: str = "") -> None:
        """Add a text's delta: to the one before, if that is of the same part.

        ``head`` and ``text`` are the event in two pieces, as `ContentBuilder.text_delta_json` gives them.
        """
        content = text[1:-1]
        if head is self._head and self._joined + len(content) <= JOINED_BYTES:
            self._texts.append(content)
            self._joined += len(content)
            self.size += len(content)
            return
        body = b"%b%b}" % (head[1:], text)
        self._add("d", path, kind, body, b"")
        self._head, self._delta, self._joined = head, body, len(content)

    def opening(self, message: str, kind: str, body: bytes, *, path: str = "", extra: bytes = b"") -> None:
        """Add the event that opens a message; it counts as open until `closing`."""
        self._add("o", path, kind, body[1:], extra)
        self.opened[message] = self.count - 1
        self.entries.append(message)

    def closing(self, message: str, kind: str, body: bytes, *, path: str = "", extra: bytes = b"") -> None:
        """Add the event that closes a message, whole: it goes into the history too."""
        self._add("c", path, kind, body[1:], extra)
        self.closed.append(message)
        self.entries.append(message)

    def settling(
        self,
        message: str,
        kind: str,
        body: bytes,
        *,
        path: str = "",
        extra: bytes,
        group: str,
        last: bytes,
    ) -> None:
        """Add the event that closes a tool's result; ``last`` replaces ``extra`` on a group's last result."""
        self._add("s", path, kind, body[1:], extra)
        self.closed.append(message)
        self.entries += (message, group, last)
        self._note(len(last))

    def user_message(self, body: bytes, *, extra: bytes = b"") -> None:
        """Add the user's own message: whole, and not numbered."""
        self._add("h", "", "message", body, extra)

    def status(self, body: bytes) -> None:
        """Add a ``response`` event that is not the last one."""
        self._add("d", "", RESPONSE, body[1:], b"")

    def end(self, body: bytes, *, extra: bytes = b"") -> None:
        """Add the terminal ``response`` event."""
        self._add("h", "", END, body[1:], extra)

    def group(self, group: str, size: int) -> None:
        """Open a group of ``size`` calls, made by one answer of a model."""
        self.groups += (group, size)

    def call(self, call: str, record: bytes) -> None:
        """Register a call that the client must answer."""
        self.calls += (call, record)

    def withdraw(self, call: str) -> None:
        """Take back a call to the client: it takes no answer any more. One that came first stays."""
        self.withdrawn.append(call)

    def keep(self, name: str, value: bytes) -> None:
        """Checkpoint ``value`` under ``name``, in place of what this batch has there."""
        self.kept[name] = value
        self.progress |= name not in (BACKGROUND, MODEL_CALLS)
        self._note(len(value))

    def drop(self, name: str) -> None:
        """Drop the checkpoint ``name``."""
        self.dropped.append(name)

    def cut(self, text: bytes) -> bytes:
        """A JSON text that goes along, without its large data."""
        return cut(text, self.files)

    def cut_all(self) -> None:
        """Take the large data out of all that was added."""
        self._join()
        if self.uncut:
            self.uncut = False
            self.entries[:] = [self.cut(each) if isinstance(each, bytes) else each for each in self.entries]
            self.kept = {name: self.cut(value) for name, value in self.kept.items()}

    def new_files(self) -> dict[str, bytes]:
        """The files that the session may not have yet."""
        return {digest: data for digest, data in self.files.items() if digest not in self.known}

    def file_arguments(self, sent: Mapping[str, bytes]) -> list[Argument]:
        """The files, as ``store_files`` takes them: with their data those that are ``sent``."""
        return [part for digest in self.files for part in (digest, sent.get(digest, b""))]

    def arguments(self) -> list[Argument]:
        """The entries alone, as ``write`` takes them."""
        self.cut_all()
        return [self.count, *self.entries]

    def all_arguments(self) -> list[Argument]:
        """Groups, entries and checkpoints, as ``open_groups``, ``write`` and ``checkpoint`` take them."""
        self.cut_all()
        return [
            len(self.groups) // 2,
            *self.groups,
            self.count,
            *self.entries,
            len(self.calls) // 2,
            *self.calls,
            len(self.kept),
            *(part for pair in self.kept.items() for part in pair),
            len(self.dropped),
            *self.dropped,
            len(self.withdrawn),
            *self.withdrawn,
        ]

    def _add(self, op: str, path: str, kind: str, body: bytes, extra: bytes) -> None:
        if self.largest and len(body) > self.largest and kind != END:
            raise TooLarge
        self._join()
        size = len(body) + len(extra)
        self._note(size)
        self.entries += (op, path, kind, body, extra)
        self.count += 1
        self.size += size

    def _join(self) -> None:
        self._head = None
        if self._texts:
            # It is the last entry, whose quote and brace go to the end.
            self.entries[-2] = b'%b%b"}' % (self._delta[:-2], b"".join(self._texts))
            self._texts.clear()

    def _note(self, size: int) -> None:
        # Most batches have none.
        if size >= LARGE_BYTES:
            self.uncut = True
