"""Foreign text on an operator's terminal: shown, never obeyed."""

from __future__ import annotations

import json

import pytest

from turnstream.escaping import escaped


@pytest.mark.parametrize(
    "mark", ["\x1b", "\x00", "\x07", "\r", "\n", "\x7f", "\x9b", "\u200f", "\u202e", "\u2028", "\u2066"]
)
def test_what_a_terminal_would_obey_is_spelled(mark: str) -> None:
    """Control characters, line ends and marks of direction become escapes; in JSON these mean the same."""
    assert escaped(f"a{mark}b") == f"a\\u{ord(mark):04x}b"
    assert json.loads(escaped(json.dumps(f"a{mark}b", ensure_ascii=False))) == f"a{mark}b"


@pytest.mark.parametrize("text", ["", "plain", "naïve 日本語 🙂", "a\\u001b"])
def test_other_text_stays(text: str) -> None:
    """People read their own languages."""
    assert escaped(text) == text
