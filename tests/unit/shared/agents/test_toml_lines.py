"""Lines of a TOML text: an error names the line of the value, or of the nearest one that holds it."""

from __future__ import annotations

import pytest

from turnstream.shared.agents.toml_lines import Lines, Path

TEXT = '''\
top = 1
[agents.lead]
model = "m"          # a comment
settings.temperature = 1
note = """
key = "in the text, not a key"
[agents.other]
"""
"quoted name" = 2
last = { inner = 3 }

[[agents.lead.mcp]]
command = "a"
[agents.lead.mcp.env]
A = "1"
[[agents.lead.mcp]]
command = "b"

  [ agents . spaced ]  # a table too
  x = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1),
        (("agents", "lead"), 2),
        (("agents", "lead", "model"), 3),
        (("agents", "lead", "settings", "temperature"), 4),
        (("agents", "lead", "note"), 5),
        (("agents", "lead", "quoted name"), 9),
        (("agents", "lead", "mcp"), 12),
        (("agents", "lead", "mcp", 0, "command"), 13),
        (("agents", "lead", "mcp", 0, "env", "A"), 15),
        (("agents", "lead", "mcp", 1), 16),
        (("agents", "lead", "mcp", 1, "command"), 17),
        (("agents", "spaced", "x"), 20),
    ],
)
def test_a_value_has_its_line(path: Path, line: int) -> None:
    """Tables, arrays of tables, dotted and quoted keys; texts of several lines hold no keys."""
    assert Lines(TEXT).find(path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("agents", "lead", "missing"), 2),
        (("agents", "lead", "last", "inner"), 10),
        (("agents", "lead", "mcp", 1, "missing"), 16),
        (("agents", "lead", "key"), 2),
    ],
)
def test_what_has_none_is_found_where_it_is_held(path: Path, line: int) -> None:
    """A missing key has the line of its table, a key of an inline table that of the key which holds it."""
    assert Lines(TEXT).find(path) == line


def test_nothing_is_guessed() -> None:
    """Without any value that holds it there is no line."""
    assert Lines(TEXT).find(("nowhere", "x")) is None
    assert Lines("").find(("top",)) is None
