"""Turnstream serves chat agents from a pool of workers. What agent authors and clients import is here."""

from __future__ import annotations

from shared.protocol import ResponseBuilder
from shared.version import VERSION

__all__ = ["ResponseBuilder"]
__version__ = VERSION
