"""``turnstream serve --reload``: an edit of the agents file, or of code beside it, takes effect without a restart."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from watchfiles import DefaultFilter, awatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# What an edit of has to be noticed. Editors' temporary files, caches and environments are the library's business.
_SUFFIXES = (".py", ".toml")

# Our own package, which is beside the agents file in a checkout of Turnstream itself.
_OURS = "turnstream"


class _Code(DefaultFilter):
    """Code and settings; not what `serve` keeps."""

    ignore_dirs = (*DefaultFilter.ignore_dirs, ".turnstream")

    def __call__(self, change: object, path: str) -> bool:
        return path.endswith(_SUFFIXES) and super().__call__(change, path)  # type: ignore[arg-type]


async def edits(folder: Path) -> AsyncIterator[list[str]]:
    """The names of files in and below the folder that were edited, each time some were; until cancelled."""
    async for changes in awatch(folder, watch_filter=_Code()):
        yield sorted({str(Path(path).relative_to(folder)) for _, path in changes})


def forget_modules(folder: Path) -> None:
    """Have the modules of the folder imported anew when they are next asked for."""
    # A cached byte code is told from a newer source by a time in seconds: two edits may come in one.
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] == _OURS:
            continue
        path = Path(file).resolve()
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            del sys.modules[name]
