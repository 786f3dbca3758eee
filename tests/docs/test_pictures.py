"""The documentation's pictures are what `make pictures` makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs import pictures

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_dark_drawings_are_those_of_the_light_ones(tmp_path: Path) -> None:
    """A light drawing that was changed needs its dark one anew."""
    pictures.draw(tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn
    assert drawn == {path.name: path.read_text() for path in DOCS.glob("*-dark.svg")}


def test_the_console_can_be_photographed(tmp_path: Path) -> None:
    """The conversation comes as far as to its approval, and there is a picture of each that is committed."""
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        pytest.skip("no Chromium here: apt-get install chromium")
    pictures.photograph(tmp_path)
    taken = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in DOCS.glob("*.png")}
    assert set(taken) == set(committed)
    # A PNG's width and height.
    assert {name: data[16:24] for name, data in taken.items()} == {
        name: data[16:24] for name, data in committed.items()
    }
    assert len(set(taken.values())) == len(taken)
