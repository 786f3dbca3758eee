"""The states of a task: the state diagram is in docs/reference.md."""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    """A task's state, as its hash has it."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


LIVE = frozenset({TaskStatus.QUEUED.value, TaskStatus.RUNNING.value, TaskStatus.PARKED.value})
TERMINAL = frozenset({TaskStatus.COMPLETED.value, TaskStatus.FAILED.value, TaskStatus.CANCELED.value})
