"""Tables for terminals and pipes: columns of text, aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def listed(
    rows: Sequence[dict[str, Any]],
    headings: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    *,
    as_json: bool,
) -> Iterator[str]:
    """What a command prints of rows: each as a line of JSON, or all aligned below their headings; safe for a terminal."""
    if as_json:
        yield from (escaped(orjson.dumps(row).decode()) for row in rows)
    else:
        yield aligned([headings, *([escaped(cell) for cell in cells(row)] for row in rows)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
