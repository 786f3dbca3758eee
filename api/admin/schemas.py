"""What operators are answered: models for the OpenAPI document only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from turnstream.shared import protocol

Status = Literal["queued", "running", "parked", "completed", "failed", "canceled"]


class TaskRow(BaseModel):
    """One task. Times are Unix seconds."""

    ref: str = Field(description="`<owner>/<session>/<task>`.")
    owner: str
    session: str
    task: str
    agent: str
    user: str | None = None
    status: Status
    waits_for_turn: bool = Field(description="Queued behind another task of its session.")
    attempt: int = Field(description="How often a worker began it.")
    launch: int
    crashes: int
    worker: str | None = Field(None, description="The worker that runs it, or did so last.")
    ended_by: str | None = Field(
        None, description="Who ended it in the worker's place: client, rescuer or the admin key."
    )
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    deadline_at: float | None = None
    parked_until: float | None = None
    pending_calls: int
    why: str | None = Field(None, description="Why it ended so, as a code.")
    response: str
    age: float = Field(description="Seconds since the submit.")
    took: float | None = Field(None, description="Seconds from its first start to now, or to its end.")
    events: int


class TaskPage(BaseModel):
    """Tasks, newest first; ``next`` is the cursor to go on with, null on the last page."""

    tasks: list[TaskRow]
    next: str | None = Field(json_schema_extra={"type": ["string", "null"]})


class PendingCall(BaseModel):
    """A call that the client has not answered."""

    call: str
    kind: Literal["function", "approval"]
    name: str
    path: str


class TaskShown(TaskRow):
    """One task with its open calls."""

    calls: list[PendingCall]
    traceback: str | None = Field(
        None,
        description="Of what the agent raised; only with `TURNSTREAM_DEBUG`, and while the session keeps it.",
    )


class ToldEvent(BaseModel):
    """One event of a task's log."""

    cursor: str
    kind: str
    path: str
    at: float
    event: protocol.AgentResponse | protocol.Message | protocol.AnyContent


class EventPage(BaseModel):
    """Events, oldest first; ``next`` is the cursor to go on with, null when the task has no more."""

    events: list[ToldEvent]
    next: str | None = Field(json_schema_extra={"type": ["string", "null"]})
    live: bool


class TaskStopped(BaseModel):
    """What became of the task: ``ended`` if it had ended before."""

    ref: str
    outcome: Literal["stopped", "ended"]


class TasksStopped(BaseModel):
    """What became of the tasks; ``more``: others fit, ask again."""

    stopped: list[str]
    ended: list[str]
    missing: list[str]
    more: bool


class _Process(BaseModel):
    host: str
    pid: int
    version: str
    started_at: float
    seen_at: float
    silent: bool


class WorkerRow(_Process):
    """A worker."""

    worker: str
    running: int
    max_jobs: int
    draining: bool


class FrontEndRow(_Process):
    """A front end."""

    front_end: str
    followers: int


class Processes(BaseModel):
    """Who showed signs of life."""

    workers: list[WorkerRow]
    front_ends: list[FrontEndRow]


class QueueStats(BaseModel):
    """The launch queue."""

    depth: int
    oldest_seconds: float


class TaskStats(BaseModel):
    """Live tasks by status; ``partial``: there are more than were counted."""

    live: int
    queued: int
    running: int
    parked: int
    partial: bool


class WorkerStats(BaseModel):
    """All workers together."""

    count: int
    slots: int
    running: int
    draining: int


class FrontEndStats(BaseModel):
    """All front ends together."""

    count: int
    followers: int


class Stats(BaseModel):
    """The deployment in numbers; ``totals`` are counted since its beginning."""

    now: float
    version: str
    queue: QueueStats
    tasks: TaskStats
    workers: WorkerStats
    front_ends: FrontEndStats
    totals: dict[str, int]


class AgentRow(BaseModel):
    """An agent that keys can select."""

    agent: str
    model: str
    busy: str
    images: bool
    simple: bool
    description: str


class AgentList(BaseModel):
    """All agents."""

    agents: list[AgentRow]


class KeyRow(BaseModel):
    """An API key, without what only its holder knows."""

    id: str
    shown: str = Field(description="The key's first characters.")
    owner: str
    agent: str
    scopes: list[Literal["chat", "admin"]]
    created_at: float
    expires_at: float | None = None
    replaced_by: str | None = None
    rate: int | None = None
    concurrency: int | None = None
    followers: int | None = None
    storage: int | None = None


class KeyList(BaseModel):
    """All keys."""

    keys: list[KeyRow]


class KeyMade(KeyRow):
    """A new key; ``token`` is not shown again."""

    token: str


class KeyRevoked(BaseModel):
    """The key is known no more."""

    id: str
    revoked: Literal[True]


class SessionRow(BaseModel):
    """What a session holds at the broker, and when it expires (Unix seconds)."""

    session: str
    bytes: int
    expires_at: float


class SessionList(BaseModel):
    """An owner's sessions, the largest first; ``bytes`` and ``count`` are of all of them."""

    owner: str
    bytes: int
    count: int
    sessions: list[SessionRow]


class SessionsDeleted(BaseModel):
    """The sessions that are gone; ``more``: others are left, ask again."""

    deleted: list[str]
    more: bool
