"""Messages that a hole in the log tore: their beginning was trimmed, or fell before what a client can be told.

A client that never saw a message begin cannot make sense of its pieces. It gets none of them, and the
message whole when it closes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import orjson

from turnstream.shared.session.entry import END, RESPONSE

if TYPE_CHECKING:
    from turnstream.shared.session.entry import Entry


class Telling(Enum):
    """How to tell an entry."""

    AS_IT_IS = "as it is"
    WHOLE = "whole"
    NOT_AT_ALL = "not at all"


class Torn:
    """Follows the messages after a hole; one per stream, made when it meets its first hole."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def telling(self, entry: Entry) -> Telling:
        """How this entry, the next after the hole, is to be told."""
        if entry.kind in (RESPONSE, END):
            return Telling.AS_IT_IS
        event = orjson.loads(entry.event)
        if event.get("object") == "content":
            return Telling.AS_IT_IS if event.get("msg_id") in self._begun else Telling.NOT_AT_ALL
        message = event.get("id", "")
        if event.get("status") in ("created", "in_progress"):
            if event["status"] == "created":
                self._begun.add(message)
            return Telling.AS_IT_IS if message in self._begun else Telling.NOT_AT_ALL
        if message in self._begun:
            self._begun.discard(message)
            return Telling.AS_IT_IS
        return Telling.WHOLE
