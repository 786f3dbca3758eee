"""How much a run measures: all of it, a quick look, or as little as shows that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of a run.

    Attributes:
        length: share of the full run's durations and counts.
        size: share of how much there is at once: sessions, followers, events a second.
        peers: whether to compare with AgentScope Runtime and Agno, which are installed for it.
    """

    length: float = 1.0
    size: float = 1.0
    peers: bool = True

    def count(self, full: int, least: int = 1) -> int:
        """How often something is done."""
        return max(least, round(full * self.length))

    def many(self, full: int, least: int = 2) -> int:
        """How many there are at once."""
        return max(least, round(full * self.size))


FULL = Scale()
QUICK = Scale(length=0.4)
TINY = Scale(length=0.02, size=0.02, peers=False)
