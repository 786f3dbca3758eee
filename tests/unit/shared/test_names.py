"""Names of owners, sessions, tasks and calls: no step in an address, nothing but the listed characters."""

from __future__ import annotations

import pytest

from turnstream.shared.names import IDENTIFIER


@pytest.mark.parametrize(
    "name", ["a", "...", ".a", "..a", "A_z-0.9:@", "x" * 128, "." + "x" * 127, "." * 128]
)
def test_a_name(name: str) -> None:
    """Points may stand anywhere in a name that is not made of one or two of them alone."""
    assert IDENTIFIER.fullmatch(name)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a/b", "a b", "a\n", "{a}", "é", "\uff11", "x" * 129, "." * 129, "a\x00"]
)
def test_no_name(text: str) -> None:
    """What proxies change, keys cannot hold or people confuse is refused; so is what is too long."""
    assert not IDENTIFIER.fullmatch(text)
