"""What users and agents said, on an operator's terminal."""

from __future__ import annotations

import re

# What a terminal would obey instead of show: control characters, and marks that turn the direction of text around.
# In JSON they occur within strings only, and their escapes mean the same there.
_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""The text in one line, with ``\u001b`` and its like for what a terminal would obey."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
