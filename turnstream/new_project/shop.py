"""The tools of the shop's agent. `turnstream dev` takes edits over at once."""

from __future__ import annotations


async def discount(a: float, b: float) -> float:
    """The price a, lowered by b percent."""
    return a * (100 - b) / 100
