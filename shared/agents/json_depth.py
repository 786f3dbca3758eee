"""How deep JSON may be nested where it comes in: what is kept must be read again, by every library on its way."""

from __future__ import annotations

from typing import Any

# People nest less than ten deep. Readers give up at 200, writers at 254, each in its own way.
MOST_LEVELS = 64


def too_deep(value: Any, most: int = MOST_LEVELS) -> bool:
    """Whether a JSON value has more than ``most`` arrays and objects inside one another."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)
