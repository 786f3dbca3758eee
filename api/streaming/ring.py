"""The ring: the newest entries of one log, in memory once for all of its followers, until all have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.streaming.dialect import Dialect
    from turnstream.shared.session.entry import Entry

# Bounds of one ring. A follower further behind reads from the broker; smaller, and a short stall of a
# client costs a round trip; larger, and a process with many sessions pays for it in memory.
MOST_ENTRIES = 512
MOST_BYTES = 512 * 1024

# What one entry costs beside its texts and its frames, about.
ENTRY_BYTES = 512


class RenderedEntry:
    """An entry, with the frames that were made of it: each dialect renders it once for all followers."""

    __slots__ = ("__weakref__", "_dialect", "_frames", "_others", "entry")

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


class ReplayedEntry(RenderedEntry):
    """An entry as those are shown it who missed what came before it: see `Dialect.replay`."""

    __slots__ = ()

    def frames(self, dialect: Dialect, session: str, epoch: int) -> bytes:
        """As `RenderedEntry.frames`; of one dialect, the one that was asked for last."""
        if self._dialect is not dialect:
            self._dialect, self._frames = dialect, dialect.replay(session, epoch, self.entry)
        return self._frames


class Ring:
    """A dense run of entries that ends with the log's last known one.

    ``last`` is that one's seq, also when the ring is empty; ``written`` is when it was written, 0 if that is not known.
    """

    __slots__ = ("_bytes", "_entries", "epoch", "last", "written")

    def __init__(self, epoch: int, last: int) -> None:
        self.epoch = epoch
        self.last = last
        self.written = 0
        self._entries: list[RenderedEntry] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def after(self, seq: int) -> list[RenderedEntry] | None:
        """The entries after ``seq``; None when the first of them is not here, or ``seq`` is ahead of all."""
        index = seq + len(self._entries) - self.last
        return self._entries[index:] if 0 <= index <= len(self._entries) else None

    def add(self, news: Sequence[RenderedEntry]) -> None:
        """Add entries that follow `last` without a gap."""
        entries, size = self._entries, self._bytes
        for each in news:
            entries.append(each)
            size += 2 * len(each.entry.event) + len(each.entry.extra) + ENTRY_BYTES
        self._bytes = size
        self.last, self.written = each.entry.seq, each.entry.created
        if len(entries) > MOST_ENTRIES or size > MOST_BYTES:
            self._cut()

    def has(self, seq: int, written: int) -> bool:
        """Whether the entry at ``seq`` is known, and was written then."""
        if seq == self.last:
            return written == self.written != 0
        index = seq + len(self._entries) - self.last - 1
        return 0 <= index < len(self._entries) and self._entries[index].entry.created == written

    def restart(self, last: int, written: int = 0) -> None:
        """Forget the entries: those up to ``last``, which was ``written`` then, are only in the broker."""
        self.last, self.written = last, written
        self._entries.clear()
        self._bytes = 0

    def forget(self, seq: int) -> None:
        """Drop the entries up to ``seq``."""
        if seq >= self.last:
            self._entries.clear()
            self._bytes = 0
        elif (count := seq + len(self._entries) - self.last) > 0:
            self._drop(count)

    def _cut(self) -> None:
        """Drop the oldest; more than needed, so that it is not done for each entry."""
        cut, size = 0, self._bytes
        while len(self._entries) - cut > MOST_ENTRIES * 3 // 4 or size > MOST_BYTES * 3 // 4:
            size -= _cost(self._entries[cut].entry)
            cut += 1
        self._drop(cut)

    def _drop(self, count: int) -> None:
        self._bytes -= sum(_cost(each.entry) for each in self._entries[:count])
        del self._entries[:count]


def _cost(entry: Entry) -> int:
    """What an entry costs in memory: its texts, the frames that are made of them, the objects that hold these."""
    return 2 * len(entry.event) + len(entry.extra) + ENTRY_BYTES
