"""The ring of a followed session."""

from __future__ import annotations

from turnstream.api.protocols.agent_api.frames import AGENTSCOPE
from turnstream.api.streaming import ring as ring_module
from turnstream.api.streaming.ring import MOST_BYTES, MOST_ENTRIES, RenderedEntry, Ring
from turnstream.shared.session.entry import Entry


def entries(first: int, last: int, size: int = 10) -> list[RenderedEntry]:
    """A dense run of entries."""
    return [RenderedEntry(Entry(seq, "t", "", "message", 1, b"x" * size)) for seq in range(first, last + 1)]


def seqs(shown: list[RenderedEntry] | None) -> list[int] | None:
    """What was given, in short."""
    return None if shown is None else [each.entry.seq for each in shown]


def test_after_gives_what_follows() -> None:
    """A follower gets the entries after its place, and nothing when it has seen them all."""
    ring = Ring(epoch=1, last=4)
    ring.add(entries(5, 8))
    assert seqs(ring.after(4)) == [5, 6, 7, 8]
    assert seqs(ring.after(7)) == [8]
    assert seqs(ring.after(8)) == []


def test_who_is_too_far_behind_is_told() -> None:
    """A follower whose next entry is not in the ring must read it elsewhere, also when the ring is empty."""
    ring = Ring(epoch=1, last=4)
    assert ring.after(3) is None
    assert seqs(ring.after(4)) == []
    ring.add(entries(5, 8))
    assert ring.after(3) is None


def test_bounded_by_count() -> None:
    """However many entries come, a bounded number of the newest stays, without a gap."""
    ring = Ring(epoch=1, last=0)
    for first in range(1, 3000, 7):
        ring.add(entries(first, first + 6))
        kept = [seq for seq in range(ring.last + 1) if ring.after(seq) is not None]
        assert len(kept) - 1 <= MOST_ENTRIES
        assert kept == list(range(kept[0], ring.last + 1))


def test_bounded_by_bytes() -> None:
    """Large entries are kept up to the bytes that one session may cost, not up to their count."""
    ring = Ring(epoch=1, last=0)
    for seq in range(1, 100):
        ring.add(entries(seq, seq, size=64 * 1024))
    oldest = min(seq for seq in range(ring.last + 1) if ring.after(seq) is not None)
    assert 0 < (ring.last - oldest) * 64 * 1024 <= MOST_BYTES


def test_an_entry_larger_than_the_ring_is_passed_over() -> None:
    """One huge entry leaves an empty ring that still knows where the log ends."""
    ring = Ring(epoch=1, last=0)
    ring.add(entries(1, 1, size=ring_module.MOST_BYTES * 2))
    assert ring.after(0) is None
    assert seqs(ring.after(1)) == []


def test_rendered_once() -> None:
    """All followers of a dialect share one rendering of an entry."""
    shown = RenderedEntry(Entry(3, "t", "", "message", 1, b'{"sequence_number":0}'))
    assert shown.frames(AGENTSCOPE, "s", 7) is shown.frames(AGENTSCOPE, "s", 7)
    assert shown.frames(AGENTSCOPE, "s", 7) == b'id: 7-3\ndata: {"sequence_number":0}\n\n'
