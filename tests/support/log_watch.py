"""A watch over everything that is logged while the suite runs: no key may be in it."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

# Every API key is of this form, and so are the providers' keys that the tests use.
SECRET = re.compile(r"\bsk-[A-Za-z0-9_-]{12,}")

# Lines that told one; the key itself is not repeated.
told: list[str] = []


def watch(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A processor of structlog's, to stand before the one that writes."""
    look(str(event))
    return event


def look(text: str) -> None:
    """Note a line that tells a key."""
    if SECRET.search(text):
        told.append(SECRET.sub("sk-…", text)[:500])


class Watch(logging.Handler):
    """The same for what libraries log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one line."""
        look(self.format(record))
