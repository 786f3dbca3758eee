"""docs/internals.md names every module and script, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODE = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "internals.md").read_text())
FOLDERS = ("api", "shared", "turnstream", "worker")


def test_every_module_and_script_is_named() -> None:
    """A module that is added or renamed has to be so in the page too."""
    named = {word for code in CODE for word in re.findall(r"\w+", code)}
    files = [
        path
        for folder in FOLDERS
        for suffix in ("py", "lua")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    missing = [
        str(path.relative_to(ROOT)) for path in files if path.stem not in {*named, "__init__", "__main__"}
    ]
    assert not missing


def test_every_file_that_is_named_is_there() -> None:
    """A path in the page leads somewhere."""
    paths = [
        code for code in CODE if re.fullmatch(rf"(?:{'|'.join(FOLDERS)}|tests|deploy|docs)/[\w./]+", code)
    ]
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).exists()]
