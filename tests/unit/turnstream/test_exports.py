"""What `import turnstream` offers."""

from __future__ import annotations

import pytest

import turnstream


@pytest.mark.parametrize(("name", "home"), turnstream._HOMES.items())
def test_every_name_comes_from_the_package(name: str, home: str) -> None:
    """Not from a folder of the same name that stands where Python was started, and nowhere else."""
    assert home.startswith("turnstream.")
    assert getattr(turnstream, name) is not None
