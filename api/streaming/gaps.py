"""Gaps in the log: messages whose beginning was trimmed, or lies before what a client can be shown.

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


class Visibility(Enum):
    """How a client sees an entry."""

    UNCHANGED = "unchanged"
    WHOLE = "whole"
    HIDDEN = "hidden"


class GapFilter:
    """Follows the messages after a gap; one per stream, made when it meets its first gap."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def visibility(self, entry: Entry) -> Visibility:
        """How the client sees this entry, the next after the gap."""
        if entry.kind in (RESPONSE, END):
            return Visibility.UNCHANGED
        event = orjson.loads(entry.event)
        if event.get("object") == "content":
            return Visibility.UNCHANGED if event.get("msg_id") in self._begun else Visibility.HIDDEN
        message = event.get("id", "")
        if event.get("status") in ("created", "in_progress"):
            if event["status"] == "created":
                self._begun.add(message)
            return Visibility.UNCHANGED if message in self._begun else Visibility.HIDDEN
        if message in self._begun:
            self._begun.discard(message)
            return Visibility.UNCHANGED
        return Visibility.WHOLE
