"""Keeps a terminal's library out of processes that have no terminal: to be imported before structlog is.

structlog loads rich on the chance that somebody wants it to draw. Nobody does here, and front ends must stay small.
"""

from __future__ import annotations

import importlib
import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
