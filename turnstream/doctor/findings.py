"""What a check comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Level(StrEnum):
    """How much it matters."""

    OK = "ok"
    SKIPPED = "skipped"  # it could not be found out
    WARNING = "warning"  # it works, and will hurt some day
    WRONG = "wrong"  # what is promised does not hold


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them: what was looked at, what was seen, and what to do."""

    level: Level
    what: str
    seen: str
    todo: str = ""

    def of(self, what: str) -> Finding:
        """The same, where there are several that it may be of."""
        return replace(self, what=f"{what}, {self.what}")


def ok(what: str, seen: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, what, seen)


def skipped(what: str, seen: str, todo: str = "") -> Finding:
    """Could not be found out."""
    return Finding(Level.SKIPPED, what, seen, todo)


def warning(what: str, seen: str, todo: str) -> Finding:
    """Will hurt some day."""
    return Finding(Level.WARNING, what, seen, todo)


def wrong(what: str, seen: str, todo: str) -> Finding:
    """Must be mended."""
    return Finding(Level.WRONG, what, seen, todo)
