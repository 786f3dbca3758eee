"""What the scripts of a task's life are given, and what they return: one type for each outcome.

The functions are in `turnstream.shared.session.tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.batch import Batch


@dataclass(frozen=True, slots=True)
class Launch:
    """The task is queued: somebody must put launch ``number`` into the queue.

    ``look_ms``: when a rescuer that did so is to look at it again.
    """

    number: int
    epoch: int = 0
    first: int = 0
    look_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class NotBefore:
    """The task is queued, but launch ``number`` is not to be put into the queue yet: it must be swept in ``look_ms``."""

    number: int
    look_ms: int


@dataclass(frozen=True, slots=True)
class Spent:
    """The task may be retried no longer; nothing was done."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The task is queued behind another one of its session."""

    epoch: int
    first: int


@dataclass(frozen=True, slots=True)
class Same:
    """The task is there already, or the idempotency key led to ``task``; ``digest`` is of what was asked of it."""

    task: str
    digest: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such session."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The session belongs to another agent or user."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The session takes one turn at a time, and rejects this one."""

    task: str
    status: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """``task`` must be ended first; then submit again."""

    task: str


@dataclass(frozen=True, slots=True)
class HintUsed:
    """Nothing was done: the hint that was left before may be used up, by this ``look`` of a rescuer (its operation).

    Leave another hint, then ask again and show that you know of the look; `LaunchQueue.hinted` does. Only where the hints are on
    another server than sessions: what comes there after the hint, however late, must not be overlooked.
    """

    look: str


@dataclass(frozen=True, slots=True)
class Full:
    """Too many turns of the session have not ended."""


@dataclass(frozen=True, slots=True)
class Heavy:
    """The turn is given ``bytes``, more than there is room for; nothing was taken."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The launch is not the task's newest one, or the task is not queued."""

    status: str


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such task (any more)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The task has ended; nothing of it may be written."""

    status: str = ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer attempt has the task; nothing may be written for this one."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The log lost what this attempt wrote, in a failover say.

    What the attempt knows holds no more. The task is queued again: ``launch`` must be put into the queue, and goes on
    from what is left.
    """

    launch: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch is in the log; ``seq`` is its last entry's. The epoch may be another one than at the attempt's begin."""

    seq: int
    epoch: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease was extended."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The task waits for its client."""


@dataclass(frozen=True, slots=True)
class GivesWay:
    """Another turn waits, and a parked one gives way to it: the holder must end the task as canceled."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The task went on since it was looked at."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end is in the log. ``next`` is the session's next task, to be launched, if there is one."""

    seq: int
    next: str
    launch: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer is kept; ``pending`` more are awaited, or the task is not parked yet."""

    pending: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """The call was answered before; the first answer stands."""

    status: str
    launch: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """The session never made that call."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The call waits for its answer here; where it was read it did not. Another server is the primary since: read it again."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Whoever made the call took it back."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The call's deadline has passed."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Nobody had the session's turn: ``task``, which waited longest, has it now and must be launched."""

    task: str
    launch: int


@dataclass(frozen=True, slots=True)
class MustEnd:
    """The task must be ended from outside, as ``status`` because of ``why``."""

    seen: str
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class Lives:
    """The process that was said to be gone was heard of just now: look again soon."""


@dataclass(frozen=True, slots=True)
class Redate:
    """Look again in ``ms``."""

    ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The task has ended, or is gone: never look again. ``waiting`` is one that may have waited for its turn."""

    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The session starts afresh."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Live:
    """These tasks must be ended first; the newest comes first."""

    tasks: tuple[str, ...]


@dataclass(slots=True)
class Claim:
    """What an attempt's holder presents with each write: the attempt, and what it has seen of its writes.

    A log that ends before the last place that it has seen has lost its end, and so has one that keeps an older operation than
    ``op``, the last one that it knows to be there: a batch without entries has no place. ``holder``, the operation that took the attempt, distinguishes two
    processes that got the same number from a broker that was restored to an earlier state in between.
    """

    number: int
    holder: str
    epoch: int
    seq: int
    op: str = ""

    @property
    def seen(self) -> Cursor:
        """The last place of the log that it has seen."""
        return Cursor(self.epoch, self.seq)

    def saw(self, epoch: int, seq: int, op: str = "") -> None:
        """Something was written by an operation, and the log ends at this place or behind it."""
        self.epoch, self.seq = max((self.epoch, self.seq), (epoch, seq))
        self.op = op or self.op


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to write a task, and what its holder needs to go on.

    Attributes:
        ref: the task.
        claim: the attempt's number, which is the fence, and how far it has seen the log.
        task: the task's hash (status, request, response, first, deadline, …).
        open: open messages → seq of their first event.
        calls: client calls → record.
        results: client calls → the client's answer, JSON.
        state: checkpoints by name.
        memory: one JSON element per turn that ended before, the newest ones; see `TurnSubmission.earlier`.
        files: digests of large data that the session has: it need not be sent again.
    """

    ref: TaskRef
    claim: Claim
    task: dict[str, bytes]
    open: dict[str, int] = field(default_factory=dict)
    calls: dict[str, bytes] = field(default_factory=dict)
    results: dict[str, bytes] = field(default_factory=dict)
    state: dict[str, bytes] = field(default_factory=dict)
    memory: list[bytes] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    @property
    def number(self) -> int:
        """The attempt's number."""
        return self.claim.number

    @property
    def epoch(self) -> int:
        """The session's epoch, as far as this attempt knows."""
        return self.claim.epoch

    @property
    def first(self) -> int:
        """Seq of the task's first entry."""
        return int(self.task["first"])

    @property
    def agent(self) -> str:
        """Name of the agent that answers."""
        return self.task["agent"].decode()

    @property
    def response(self) -> str:
        """The response's id."""
        return self.task["response"].decode()

    @property
    def metadata(self) -> bytes:
        """What each event of the response tells as its metadata, JSON; empty: nothing."""
        return self.task.get("metadata", b"")

    @property
    def submitted(self) -> int:
        """Unix milliseconds of the submit, by the broker's clock."""
        return int(self.task["submitted"])

    @property
    def deadline(self) -> int:
        """Unix milliseconds, by the broker's clock, at which the turn must have ended; 0: never."""
        return int(self.task["deadline"])

    def waited_ms(self, lease_ms: int) -> int:
        """Milliseconds from the launch to this attempt's begin, by the broker's clock; ``lease_ms`` is what it was given."""
        return max(0, int(self.task["lease"]) - lease_ms - int(self.task["launched"]))

    @property
    def fresh(self) -> bool:
        """Whether this is the task's first attempt."""
        return self.number == 1


@dataclass(frozen=True, slots=True)
class TurnSubmission:
    """A turn to submit.

    Attributes:
        agent, user: whom the session must belong to; an empty ``user`` matches any.
        create: whether the session may be made by this.
        busy: what happens when another turn is live: serial, parallel, reject or interrupt.
        parked: ``supersede`` when a parked turn gives way.
        request: what the worker gets to see, JSON.
        response: the response's id.
        metadata: what each event of the response tells as its metadata, JSON; empty: nothing.
        deadline_ms: from now; 0: none.
        idempotency: the client's key; empty: none.
        digest: of what is asked, to tell a repeat from another turn of the same name.
        batch: the user's message and ``response`` queued.
        memory_turns: turns that the session's memory keeps at most.
    """

    agent: str
    user: str
    create: bool
    busy: str
    parked: str
    request: bytes
    response: str
    deadline_ms: int
    idempotency: str
    digest: str
    trace: str
    batch: Batch
    memory_turns: int = 1000
    metadata: bytes = b""


Refusal = Fenced | Ended | Gone | Behind

# Who writes for an attempt shows a claim; the number alone is that of somebody who has seen nothing of the log.
Writer = Claim | int
