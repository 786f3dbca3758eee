"""What operators are answered: these models build the responses, and describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turnstream.api.http.answers import Described
from turnstream.shared import protocol

Status = Literal["queued", "running", "parked", "completed", "failed", "canceled"]


class Waiting(Described):
    """Why a queued task is not given to a worker yet."""

    reason: str = Field(description="The code of a model's failure that passes, say `model_rate_limited`.")
    until: float


class TaskRow(Described):
    """One task. Times are Unix seconds."""

    ref: str = Field(description="`<owner>/<session>/<task>`.")
    owner: str
    session: str
    task: str
    agent: str
    agent_version: str | None = Field(
        None,
        description="The version of the agent that writes it, or did so last; not before its first attempt.",
    )
    user: str | None = None
    status: Status
    waits_for_turn: bool = Field(description="Queued behind another task of its session.")
    waiting: Waiting | None = None
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
    error: str | None = Field(None, description="Of one that failed: how the error's text begins.")
    response: str
    age: float = Field(description="Seconds since the submit.")
    took: float | None = Field(None, description="Seconds from its first start to now, or to its end.")
    events: int
    input_tokens: int | None = Field(
        None, description="Of one that has ended: tokens that models were given."
    )
    output_tokens: int | None = Field(None, description="Of one that has ended: tokens of models' answers.")
    cost_usd: float | None = Field(
        None, description="Of one that has ended: what it cost by list prices, where all of these are known."
    )


class TaskPage(Described):
    """Tasks, newest first; ``next`` is the cursor to go on with, null on the last page."""

    tasks: list[TaskRow]
    next: str | None = Field(json_schema_extra={"type": ["string", "null"]})


class PendingCall(Described):
    """A call that the client has not answered."""

    call: str
    kind: Literal["function", "approval"]
    name: str
    path: str


class Attempt(Described):
    """One time that a worker began the task."""

    attempt: int
    began_at: float
    worker: str
    because: str | None = Field(
        None,
        description="Why there is another one: `worker_lost`, `answered` (its client answered), `released` (its worker went), "
        "or what it waited for, as in `waiting`.",
    )


class ModelCall(Described):
    """One request to a model, the retries of its provider's client within. Times are Unix milliseconds, by the clock of the worker that made it."""

    agent: str = Field(description="The agent that asked: the session's, a sub-agent or a critic.")
    path: str = Field(
        description="Where it stands in the turn, as in events; empty for the session's agent and its critics."
    )
    model: str = Field(description="As `agents.toml` names it, or the request that chose it.")
    asked_ms: int = Field(
        description="When it was asked; what the turn waited before for its leave to ask is not part of it."
    )
    first_token_ms: int | None = Field(
        None,
        description="When its answer began to come; absent before, and of a critic's, which comes as a whole.",
    )
    ended_ms: int | None = Field(
        None,
        description="When all of its answer had come, or it failed; absent while it is being made, and where it was lost with its "
        "attempt.",
    )
    input_tokens: int | None = Field(
        None, description="Tokens that it was given, where its provider tells them."
    )
    output_tokens: int | None = Field(
        None, description="Tokens of its answer, where its provider tells them."
    )
    error: str | None = Field(
        None,
        description="If it failed: the code, as of a turn that fails for it, say `model_timeout`; `canceled`: the turn was taken "
        "from it.",
    )


class ModelCallsLeftOut(Described):
    """Requests to models that are only counted."""

    calls: int
    ms: int = Field(description="How long all of them took together; one that had not ended counts as 0.")


class TaskShown(TaskRow):
    """One task with its open calls, its newest attempts, and its requests to models."""

    attempts: list[Attempt]
    calls: list[PendingCall]
    model_calls: list[ModelCall] = Field(
        description="The 50 longest, in the order in which they were made. Of a live task those that were kept with what it said; of "
        "a lost attempt, too. What a generator asks by itself is not known."
    )
    model_calls_left_out: ModelCallsLeftOut | None = Field(
        None, description="Of a task with more requests: the others."
    )
    traceback: str | None = Field(
        None,
        description="Of what the agent raised; only with `TURNSTREAM_DEBUG`, and while the session keeps it.",
    )


class ToldEvent(Described):
    """One event of a task's log."""

    cursor: str
    kind: str
    path: str
    at: float
    event: protocol.AgentResponse | protocol.Message | protocol.AnyContent


class EventPage(Described):
    """Events, oldest first; ``next`` is the cursor to go on with, null when the task has no more."""

    events: list[ToldEvent]
    next: str | None = Field(json_schema_extra={"type": ["string", "null"]})
    live: bool


class TaskStopped(Described):
    """What became of the task: ``ended`` if it had ended before."""

    ref: str
    outcome: Literal["stopped", "ended"]


class TaskReplayed(Described):
    """The new turn that says the same."""

    ref: str
    made: str = Field(description="The new task, as `<owner>/<session>/<task>`.")


class TasksStopped(Described):
    """What became of the tasks; ``more``: others fit, ask again."""

    stopped: list[str]
    ended: list[str]
    missing: list[str]
    more: bool


class _Process(Described):
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
    paused: bool = Field(description="Claims no turns, since an operator said so.")
    retiring: bool = Field(description="Takes only turns of its agents' versions that others offer it.")
    agents: dict[str, str] = Field(description="The agents that it serves, with their versions.")


class FrontEndRow(_Process):
    """A front end."""

    front_end: str
    followers: int


class Processes(Described):
    """Who showed signs of life."""

    workers: list[WorkerRow]
    front_ends: list[FrontEndRow]


class WorkerOrdered(Described):
    """What a worker was asked; its row tells when it does so."""

    worker: str
    order: Literal["pause", "resume", "drain"]


class QueueStats(Described):
    """The launch queue."""

    depth: int
    oldest_seconds: float


class TaskStats(Described):
    """Live tasks by status; ``waiting``: by reason, queued ones that wait; ``partial``: there are more than counted."""

    live: int
    queued: int
    running: int
    parked: int
    waiting: dict[str, int]
    partial: bool


class WorkerStats(Described):
    """All workers together."""

    count: int
    slots: int
    running: int
    draining: int


class FrontEndStats(Described):
    """All front ends together."""

    count: int
    followers: int


class Stats(Described):
    """The deployment in numbers; ``totals`` are counted since its beginning."""

    now: float
    version: str
    queue: QueueStats
    tasks: TaskStats
    workers: WorkerStats
    front_ends: FrontEndStats
    totals: dict[str, int]


class ModelRow(Described):
    """A model that agents have."""

    model: str = Field(
        description="As `agents.toml` names it; with `@HOST:PORT` where it has an address of its own."
    )
    state: Literal["closed", "open", "probing", "held"] = Field(
        description="`closed`: it may be asked. `open`: it failed again and again, and is left alone for a while. `probing`: "
        "one request finds out whether it answers. `held`: an operator holds it."
    )
    since: float | None = Field(
        None, description="Since when it is in this state; the breaker opened, or the hold began."
    )
    until: float | None = Field(None, description="When it is probed next, while `open`.")
    failures: int = Field(description="Failures in a row, as far as they were noted.")
    running: int | None = Field(
        None, description="Requests that are being made; where their number is limited."
    )
    limit: int | None = Field(None, description="Requests at once, `max_concurrent` in `agents.toml`.")


class ModelList(Described):
    """All models."""

    models: list[ModelRow]


class ModelHeld(Described):
    """What became of a model: ``changed`` is false if there was nothing to change."""

    model: str
    state: Literal["held", "closed"]
    changed: bool


class AgentHeld(Described):
    """What became of an agent: ``changed`` is false if there was nothing to change."""

    agent: str
    state: Literal["held", "open"]
    changed: bool


class AgentRow(Described):
    """An agent that keys can select."""

    agent: str
    model: str
    busy: str
    images: bool
    simple: bool
    description: str
    held_since: float | None = Field(None, description="Since when an operator holds it.")


class AgentList(Described):
    """All agents."""

    agents: list[AgentRow]


class KeyRow(Described):
    """An API key, without what only its holder knows."""

    id: str
    shown: str = Field(description="The key's first characters.")
    owner: str
    agent: str
    others: list[str] = Field([], description="Agents that a request of OpenAI's protocol may name instead.")
    scopes: list[Literal["chat", "admin"]]
    created_at: float
    used_at: float | None = Field(
        None, description="When it was used last, to half a minute; absent where it was not within 400 days."
    )
    expires_at: float | None = None
    replaced_by: str | None = None
    note: str | None = Field(None, description="Who the key is for; absent where nobody said.")
    rate: int | None = None
    concurrency: int | None = None
    followers: int | None = None
    storage: int | None = None


class KeyList(Described):
    """All keys."""

    keys: list[KeyRow]


class KeyMade(KeyRow):
    """A new key; ``token`` is not shown again."""

    token: str


class KeyRevoked(Described):
    """The key is known no more."""

    id: str
    revoked: Literal[True]


class SessionRow(Described):
    """What a session holds at the broker, and when it expires (Unix seconds)."""

    session: str
    bytes: int
    expires_at: float


class SessionList(Described):
    """An owner's sessions, the largest first; ``bytes`` and ``count`` are of all of them."""

    owner: str
    bytes: int
    count: int
    sessions: list[SessionRow]


class SessionsDeleted(Described):
    """The sessions that are gone; ``more``: others are left, ask again."""

    deleted: list[str]
    more: bool
