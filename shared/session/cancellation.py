"""Why a turn was cancelled in its worker. A cancellation of ours always carries one of these."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason travels as the message of ``Task.cancel``, and over ``ts:control``."""

    STOP = "stop"  # its user or an operator stopped it; the end is in the log already, or about to be
    DEADLINE = "deadline"  # the turn took longer than its agent allows; this worker writes the end
    SHUTDOWN = "shutdown"  # this worker is leaving; the task goes back to the queue
    LEASE_LOST = "lease_lost"  # another attempt has the task; nothing more may be said
