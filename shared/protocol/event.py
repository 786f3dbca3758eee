"""What response, message and content have in common."""

from __future__ import annotations

from typing import Self

from turnstream.shared.protocol.base import ProtocolModel
from turnstream.shared.protocol.enums import RunStatus
from turnstream.shared.protocol.error import Error


class Event(ProtocolModel):
    """One object of the stream (Agent API protocol, Java edition §3)."""

    sequence_number: int | None = None
    """Place among the events of one response, dense from 0; None until it is numbered."""

    object: str
    """``response``, ``message`` or ``content``."""

    status: str | None = None
    """A `RunStatus` value."""

    error: Error | None = None
    """Set when ``status`` is failed or rejected."""

    def created(self) -> Self:
        """Set status created."""
        self.status = RunStatus.Created
        return self

    def in_progress(self) -> Self:
        """Set status in_progress."""
        self.status = RunStatus.InProgress
        return self

    def completed(self) -> Self:
        """Set status completed."""
        self.status = RunStatus.Completed
        return self

    def rejected(self) -> Self:
        """Set status rejected."""
        self.status = RunStatus.Rejected
        return self

    def canceled(self) -> Self:
        """Set status canceled."""
        self.status = RunStatus.Canceled
        return self

    def failed(self, error: Error | None = None) -> Self:
        """Set status failed, and why when it is known."""
        self.status = RunStatus.Failed
        self.error = error if error is not None else self.error
        return self
