"""The newest entries of one log, kept once for all who follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.dialects.base import Dialect
    from shared.entry import Entry

# Bounds of one ring. A follower further behind reads from the broker; smaller, and a short stall of a
# client costs a round trip; larger, and a process with many sessions pays for it in memory.
MOST_ENTRIES = 512
MOST_BYTES = 512 * 1024

# What one entry costs beside its event's text, about.
_ENTRY_BYTES = 256


class Shown:
    """An entry, with the frames that were made of it: each dialect renders it once for all followers."""

    __slots__ = ("_dialect", "_frames", "_others", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        # Most sessions have one kind of client; a dictionary for each entry would be felt.
        self._dialect: Dialect | None = None
        self._frames = b""
        self._others: dict[Dialect, bytes] | None = None

    def frames(self, dialect: Dialect, session: str, epoch: int) -> bytes:
        """The entry's frames in this dialect; empty when its clients do not see it."""
        if self._dialect is dialect:
            return self._frames
        if self._dialect is None:
            self._dialect = dialect
            self._frames = dialect.frames(session, epoch, self.entry)
            return self._frames
        if self._others is None:
            self._others = {}
        frames = self._others.get(dialect)
        if frames is None:
            frames = self._others[dialect] = dialect.frames(session, epoch, self.entry)
        return frames


class Ring:
    """A dense run of entries that ends with the log's last known one.

    ``last`` is that one's seq, also when the ring is empty.
    """

    __slots__ = ("_bytes", "_shown", "epoch", "last")

    def __init__(self, epoch: int, last: int) -> None:
        self.epoch = epoch
        self.last = last
        self._shown: list[Shown] = []
        self._bytes = 0

    @property
    def entry_bytes(self) -> int:
        """What one of the entries costs, about; 0 when there is none."""
        return self._bytes // len(self._shown) if self._shown else 0

    def after(self, seq: int) -> list[Shown] | None:
        """The entries after ``seq``; None when the first of them is no longer (or was never) here."""
        index = seq + len(self._shown) - self.last
        return self._shown[index:] if index >= 0 else None

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow `last` without a hole."""
        shown, size = self._shown, self._bytes
        for entry in entries:
            shown.append(Shown(entry))
            size += len(entry.event) + len(entry.extra) + _ENTRY_BYTES
        self._bytes = size
        self.last = entry.seq
        if len(shown) > MOST_ENTRIES or size > MOST_BYTES:
            self._cut()

    def restart(self, last: int) -> None:
        """Forget the entries: those up to ``last`` are only in the broker."""
        self.last = last
        self._shown.clear()
        self._bytes = 0

    def _cut(self) -> None:
        """Drop the oldest; more than needed, so that it is not done for each entry."""
        cut = 0
        while len(self._shown) - cut > MOST_ENTRIES * 3 // 4 or self._bytes > MOST_BYTES * 3 // 4:
            entry = self._shown[cut].entry
            self._bytes -= len(entry.event) + len(entry.extra) + _ENTRY_BYTES
            cut += 1
        del self._shown[:cut]
