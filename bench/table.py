"""What a row of the result says, and the table of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    Attributes:
        what: what was measured.
        ours: the figure.
        unit: of both figures.
        theirs: the same of what it is compared with, from the same run.
        other: what it is compared with.
        reach: what is wanted, in words.
        reached: whether that is so; None where nothing is wanted.
        note: what else the reader should know.
    """

    what: str
    ours: float
    unit: str = ""
    theirs: float | None = None
    other: str = ""
    reach: str = ""
    reached: bool | None = None
    note: str = ""

    def at_most(self, most: float) -> Row:
        """Wanted: no more than so much."""
        return replace(self, reach=f"≤ {number(most)} {self.unit}".rstrip(), reached=self.ours <= most)

    def at_least(self, least: float) -> Row:
        """Wanted: no less than so much."""
        return replace(self, reach=f"≥ {number(least)} {self.unit}".rstrip(), reached=self.ours >= least)

    def ratio_at_most(self, most: float) -> Row:
        """Wanted: no more than so many times what it is compared with; not decided where that was not measured."""
        reached = None if self.ratio is None else self.ratio <= most
        return replace(self, reach=f"≤ {number(most)} × theirs", reached=reached)

    def ratio_at_least(self, least: float) -> Row:
        """Wanted: at least so many times what it is compared with; not decided where that was not measured."""
        reached = None if self.ratio is None else self.ratio >= least
        return replace(self, reach=f"≥ {number(least)} × theirs", reached=reached)

    @property
    def ratio(self) -> float | None:
        """Ours to theirs."""
        return self.ours / self.theirs if self.theirs else None

    def cells(self) -> tuple[str, ...]:
        """As text."""
        theirs = "" if self.theirs is None else f"{number(self.theirs)} ({self.other})"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        reached = {None: "", True: "yes", False: "no"}[self.reached]
        return (
            self.what,
            f"{number(self.ours)} {self.unit}".strip(),
            theirs,
            ratio,
            self.reach,
            reached,
            self.note,
        )


HEADINGS = ("what", "ours", "theirs", "ratio", "reach", "reached", "note")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def plain(rows: Iterable[Row]) -> str:
    """For a terminal; headings left out, notes below their rows."""
    lines = []
    for row in rows:
        what, ours, theirs, ratio, reach, reached, note = row.cells()
        lines.append(f"{what:62.62} {ours:>14} {theirs:>26} {ratio:>6} {reach:>16} {reached:>4}".rstrip())
        if note:
            lines.append(f"    {note}")
    return "\n".join(lines)


def markdown(rows: Iterable[Row]) -> str:
    """For RESULTS.md."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie; the largest when they are few."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
