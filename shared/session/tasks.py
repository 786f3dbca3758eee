"""A task's life: each script of this state diagram as one typed function with typed outcomes.

                submit                 begin(launch)               finish
      (none) ──────────► queued ────────────────────► running ─────────────► completed | failed | canceled
                           │ ▲                          │  │
                           │ │  release, or sweep       │  │ park
                           │ └──(lease over)────────────┘  ▼
                           │                            parked ──callback (last one in)──► queued
                           └───────────── take ───────────┴──► running (an ender) ──finish──► canceled | failed

Every function is one round trip (more where it brings or gives large data, see shared/files.py) and touches one session, and may be repeated when its reply was lost: those that take
an operation id give their first outcome again and write nothing, the others (create, renew, callback, clear) find that
what they ask for was done.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import DUE
from turnstream.shared.broker.scripts import Script
from turnstream.shared.offload import Aside
from turnstream.shared.session.batch import Argument, Batch
from turnstream.shared.session.files import PIECE_BYTES, fetch, fill
from turnstream.shared.session.queue import BACKLOG_LOOK_MS, LAUNCH_GRACE_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from redis.asyncio import Redis

    from turnstream.shared.broker.keys import SessionKeys, TaskRef
    from turnstream.shared.settings import Settings

QUEUED = "queued"
RUNNING = "running"
PARKED = "parked"
TERMINAL = frozenset({"completed", "failed", "canceled"})

# How often a rescuer looks at a task that another release wrote and this one does not understand.
STRANGE_LOOK_MS = 15_000

# How long a session lives in which nobody has spoken.
EMPTY_MS = 15 * 60_000

# How long large data is kept for the script that refers to it, where its session has none yet.
STAGED_MS = 60_000

# A task that took so many workers with it is not tried again.
MAX_CRASHES = 3


# Where this process's operation ids begin: random, so that two processes never share one; below 2^53 for Lua.
_operations = itertools.count(secrets.randbits(52))


def operation() -> str:
    """A new operation id: unlike any other process's, and greater than all that this process made before.

    An attempt is held by the process that took it, so the last id kept for it tells of any write whether it
    came in already, also of one that the network delayed past later ones.
    """
    return str(next(_operations))


# ── outcomes ────────────────────────────────────────────────────────────────────────────────────────


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
    """What an attempt's holder shows with each write: the attempt, and how far it has seen the log.

    A log that ends before that lost its end. By ``holder``, the operation that took the attempt, two processes are
    told apart that a broker gave the same number, because it went back to an earlier state in between.
    """

    number: int
    holder: str
    epoch: int
    seq: int

    def saw(self, epoch: int, seq: int) -> None:
        """Something was written, and has this place."""
        self.epoch, self.seq = max((self.epoch, self.seq), (epoch, seq))


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
        memory: one JSON element per turn that ended before, the newest ones; see `Turn.earlier`.
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
        """Whether nobody wrote for this task before."""
        return self.number == 1


@dataclass(frozen=True, slots=True)
class Turn:
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


# ── the scripts ─────────────────────────────────────────────────────────────────────────────────────

_create = Script("create", session=True)
_submit = Script("submit", session=True)
_begin = Script("begin", session=True, large=True)
_append = Script("append", session=True)
_renew = Script("renew", session=True)
_park = Script("park", session=True)
_release = Script("release", session=True)
_take = Script("take", session=True, large=True)
_finish = Script("finish", session=True)
_callback = Script("callback", session=True)
_sweep = Script("sweep", session=True)
_clear = Script("clear", session=True)
_stage = Script("stage", large=True)
_unstage = Script("unstage")

# Replies of scripts that took the files which came with them.
_TOOK = frozenset({b"ok", b"launch", b"waits", b"parked", b"superseded", b"stored"})

_REFUSALS: dict[bytes, Fenced | Ended | Gone] = {b"fenced": Fenced(), b"ended": Ended(), b"gone": Gone()}

Refusal = Fenced | Ended | Gone | Behind

# Who writes for an attempt shows a claim; the number alone is that of somebody who has seen nothing of the log.
Writer = Claim | int


class Tasks:
    """The scripts, bound to a server and its limits."""

    def __init__(
        self, redis: Redis, settings: Settings, *, notes: bool = False, aside: Aside | None = None
    ) -> None:
        """With ``notes`` the hints are on the same server: what must be launched is noted with what says so.

        ``aside`` is where large turns are read.
        """
        self.redis = redis
        self.aside = aside or Aside()
        self.notes = notes
        self._due = (DUE,) if notes else ()
        self._settings = settings
        self._grace_ms = int(settings.log_grace_seconds * 1000)
        self._limits = (settings.ttl_ms, settings.lease_ms, settings.log_max_events, settings.log_max_bytes)

    async def create(self, keys: SessionKeys, agent: str, user: str) -> bool:
        """Make a session, which lives for `EMPTY_MS` unless a turn comes; False when it was there already."""
        life = min(self._settings.ttl_ms, EMPTY_MS)
        reply = await self._run(_create, keys, "", "", (agent, user, life))
        return bool(reply[0] == b"created")

    async def submit(
        self, ref: TaskRef, turn: Turn, op: str
    ) -> Launch | Waits | Same | Missing | Foreign | Busy | Interrupt | Full:
        """Accept a turn: creates the task with the user's message and ``response`` queued in the log."""
        reply = await self._run(
            _submit,
            ref.keys,
            ref.task,
            op,
            (
                turn.agent,
                turn.user,
                "1" if turn.create else "0",
                turn.busy,
                turn.parked,
                self._settings.max_waiting,
                turn.request,
                turn.response,
                turn.deadline_ms,
                turn.digest,
                turn.trace,
                turn.memory_turns,
                LAUNCH_GRACE_MS,
                str(ref),
                turn.metadata,
                self._settings.max_live,
                "1" if turn.idempotency else "0",
                *turn.batch.arguments(),
            ),
            ref.keys.idempotency(turn.idempotency or "-"),
            *self._due,
            batch=turn.batch,
        )
        match reply:
            case [b"launch", launch, epoch, first]:
                return Launch(int(launch), int(epoch), int(first))
            case [b"waits", epoch, first]:
                return Waits(int(epoch), int(first))
            case [b"same", task, digest]:
                return Same(task.decode(), digest.decode())
            case [b"missing"]:
                return Missing()
            case [b"foreign"]:
                return Foreign()
            case [b"busy", task, status]:
                return Busy(task.decode(), status.decode())
            case [b"interrupt", task]:
                return Interrupt(task.decode())
        return Full()

    async def begin(
        self, ref: TaskRef, launch: int, worker: str, op: str, *, room: int = 2**53
    ) -> Attempt | Heavy | Superseded | Ended | Gone:
        """Take the attempt that runs a launch; needs the task queued and ``launch`` to be its newest.

        Only if what the turn is given (request, memory, calls, checkpoints) has no more than ``room`` bytes.
        """
        limits = (self._settings.memory_max_bytes, room)
        reply = await self._run(_begin, ref.keys, ref.task, op, (launch, worker, *limits))
        match reply:
            case [b"heavy", size]:
                return Heavy(int(size))
            case [b"begun", number, snapshot, memory]:
                return await self._attempt(ref, number, snapshot, memory)
            case [b"superseded", status]:
                return Superseded(status.decode())
            case [b"ended"]:
                return Ended()
        return Gone()

    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Write a batch and what it checkpoints; extends the lease."""
        reply = await self._run(
            _append,
            ref.keys,
            ref.task,
            op,
            (*_shown(attempt), *batch.all_arguments()),
            ref.keys.call(""),
            batch=batch,
            size=batch.weight,
        )
        return Appended(int(reply[1]), int(reply[2])) if reply[0] == b"ok" else _refusal(reply)

    async def answered(self, ref: TaskRef, calls: Sequence[str]) -> set[str]:
        """Which of these calls the client has answered."""
        fields = [f"{call}:result" for call in calls]
        found: list[bytes | None] = await command(self.redis, "HMGET", ref.keys.calls(ref.task), *fields)
        return {call for call, result in zip(calls, found, strict=True) if result is not None}

    async def renew(self, ref: TaskRef, attempt: Writer) -> Renewed | Refusal:
        """Extend the lease."""
        reply = await self._run(_renew, ref.keys, ref.task, "", _shown(attempt))
        return Renewed() if reply[0] == b"ok" else _refusal(reply)

    async def park(
        self, ref: TaskRef, attempt: Writer, batch: Batch, op: str, *, wait_ms: int, policy: str
    ) -> Parked | Launch | GivesWay | Refusal:
        """Write a batch, then wait for the client without a worker, ``wait_ms`` at most.

        ``policy`` is the agent's ``parked``: with ``supersede`` the task gives way to one that waits.
        """
        arguments = (*_shown(attempt), wait_ms, policy, *batch.all_arguments())
        reply = await self._run(_park, ref.keys, ref.task, op, arguments, ref.keys.call(""), batch=batch)
        if reply[0] == b"parked":
            return Parked()
        if reply[0] == b"superseded":
            return GivesWay()
        return Launch(int(reply[1])) if reply[0] == b"launch" else _refusal(reply)

    async def release(self, ref: TaskRef, attempt: Writer, op: str) -> Launch | Refusal:
        """Give a running task back to the queue; not counted as a crash."""
        reply = await self._run(_release, ref.keys, ref.task, op, _shown(attempt))
        return Launch(int(reply[1])) if reply[0] == b"launch" else _refusal(reply)

    async def take(
        self, ref: TaskRef, who: str, ending: str, op: str, seen: str = "", *, look: bool = False
    ) -> Attempt | Moved | Ended | Gone:
        """Take the attempt that ends a task from outside; its former holder is fenced from here on.

        ``ending`` is ``<status> <why>``. With ``seen`` (from `MustEnd`) only if nothing moved since. With ``look`` a
        rescuer is to look soon whether the end was written, where hints are on this server (`notes`).
        """
        due = self._due if look else ()
        arguments = (who, ending, seen, str(ref), LAUNCH_GRACE_MS)
        reply = await self._run(_take, ref.keys, ref.task, op, arguments, *due)
        match reply:
            case [b"taken", number, snapshot]:
                return await self._attempt(ref, number, snapshot, [])
            case [b"moved"]:
                return Moved()
            case [b"ended", status]:
                return Ended(status.decode())
        return Gone()

    async def finish(
        self, ref: TaskRef, attempt: Writer, batch: Batch, op: str, *, status: str, why: str, memory: bytes
    ) -> Finished | Refusal:
        """Write the end: the batch closes what is open and ends with the terminal event."""
        reply = await self._run(
            _finish,
            ref.keys,
            ref.task,
            op,
            (
                *_shown(attempt),
                status,
                why,
                batch.cut(memory),
                self._settings.memory_max_bytes,
                *batch.arguments(),
            ),
            batch=batch,
        )
        if reply[0] == b"ok":
            return Finished(int(reply[1]), reply[2].decode(), int(reply[3]))
        return _refusal(reply)

    async def callback(
        self, ref: TaskRef, call: str, result: bytes, batch: Batch, op: str
    ) -> Stored | Launch | Repeated | Unknown | Withdrawn | Expired | Ended:
        """Take a client's answer to ``call``; the batch is its ``…_output`` message."""
        reply = await self._run(
            _callback,
            ref.keys,
            ref.task,
            op,
            (call, batch.cut(result), LAUNCH_GRACE_MS, str(ref), *batch.arguments()),
            ref.keys.call(call),
            *self._due,
            batch=batch,
        )
        match reply:
            case [b"stored", pending]:
                return Stored(int(pending))
            case [b"launch", launch]:
                return Launch(int(launch))
            case [b"repeat", status, launch]:
                return Repeated(status.decode(), int(launch or 0))
            case [b"withdrawn"]:
                return Withdrawn()
            case [b"expired"]:
                return Expired()
            case [b"ended"]:
                return Ended()
        return Unknown()

    async def sweep(self, ref: TaskRef, op: str) -> Launch | Passed | MustEnd | Redate | Drop:
        """Look at one due task, and say what must be done about it."""
        reply = await self._run(
            _sweep,
            ref.keys,
            ref.task,
            op,
            (LAUNCH_GRACE_MS, MAX_CRASHES, STRANGE_LOOK_MS, self._grace_ms, BACKLOG_LOOK_MS),
        )
        match reply:
            case [b"launch", launch, look]:
                return Launch(int(launch), look_ms=int(look))
            case [b"passed", task, launch]:
                return Passed(task.decode(), int(launch))
            case [b"end", attempt, launch, ending]:
                status, _, why = ending.decode().partition(" ")
                return MustEnd(f"{attempt.decode()} {launch.decode()}", status, why)
            case [b"redate", ms]:
                return Redate(int(ms))
        return Drop(reply[1].decode() if reply[1:] else "")

    async def clear(self, keys: SessionKeys, epoch: int | None) -> Cleared | Live | Missing:
        """Drop log, memory and history of a session without live tasks, and begin a new epoch after ``epoch``.

        Where that has ended already nothing is done: `Cleared` then has the present one. None: in whatever epoch it is,
        the session itself is deleted, but for what its turns left under names of their own.
        """
        reply = await self._run(_clear, keys, "", "", ("" if epoch is None else epoch,))
        match reply:
            case [b"cleared", epoch]:
                return Cleared(int(epoch))
            case [b"live", *tasks]:
                return Live(tuple(task.decode() for task in tasks))
        return Missing()

    async def _run(
        self,
        script: Script,
        keys: SessionKeys,
        task: str,
        op: str,
        arguments: tuple[Argument, ...],
        *more: str,
        batch: Batch | None = None,
        size: int | None = None,
    ) -> Any:
        names = (
            keys.meta,
            keys.log,
            keys.history,
            keys.memory,
            keys.waiting,
            keys.task(task),
            keys.calls(task),
            keys.state(task),
            keys.tail,
            *more,
        )
        given = (task, op, *self._limits, *arguments)
        if batch is None or not batch.files:
            return await script(self.redis, names, (*given, 0), size=size)
        new = batch.new_files()
        staged = sum(map(len, new.values()))
        if staged > PIECE_BYTES:
            # Said to be as large as they are, it goes the same way, behind them.
            running = script(self.redis, names, (*given, *batch.file_arguments({})), size=staged)
            reply = await self._staged(keys, new, running)
        else:
            staged = 0
            reply = await script(self.redis, names, (*given, *batch.file_arguments(new)), size=size)
        if reply[0] == b"lacking":
            reply = await script(self.redis, names, (*given, *batch.file_arguments(batch.files)))
        if staged and reply[0] not in _TOOK:
            # A client may be refused as often as it likes: what it sent must not stay, which counts for nobody.
            await _unstage(self.redis, (keys.files,), tuple(new))
        return reply

    async def _staged(self, keys: SessionKeys, files: Mapping[str, bytes], running: Awaitable[Any]) -> Any:
        """What a script replies that refers to the files, which go to the broker before it, one by one."""
        staging = [
            _stage(self.redis, (keys.files,), (digest, data, STAGED_MS)) for digest, data in files.items()
        ]
        # Whatever became of these: the script says what it lacks.
        *_, reply = await asyncio.gather(*staging, running, return_exceptions=True)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def _attempt(
        self, ref: TaskRef, number: bytes, snapshot: list[Any], memory: list[bytes]
    ) -> Attempt:
        files = await fetch(self.redis, ref.keys.files, snapshot[-1])
        size = sum(map(len, files.values()))
        return await self.aside.run_large(ref.owner, size, _attempt, ref, number, snapshot, memory, files)


def _shown(writer: Writer) -> tuple[Argument, ...]:
    if isinstance(writer, Claim):
        return writer.number, writer.holder, writer.epoch, writer.seq
    return writer, "", 0, 0


def _refusal(reply: list[bytes]) -> Refusal:
    return Behind(int(reply[1])) if reply[0] == b"behind" else _REFUSALS[reply[0]]


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """A hash as the broker returns it from a script."""
    return {flat[index].decode(): flat[index + 1] for index in range(0, len(flat), 2)}


def _attempt(
    ref: TaskRef, number: bytes, snapshot: list[Any], memory: list[bytes], files: dict[str, bytes]
) -> Attempt:
    epoch, task_flat, calls_flat, state_flat, seq, _ = snapshot
    task = pairs(task_flat)
    if "request" in task:
        task["request"] = fill(task["request"], files)
    calls = pairs(calls_flat)
    return Attempt(
        ref=ref,
        claim=Claim(int(number), task["holder"].decode(), int(epoch), int(seq)),
        task=task,
        open={name[5:]: int(seq) for name, seq in task.items() if name.startswith("open:")},
        calls={call: record for call, record in calls.items() if not call.endswith(":result")},
        results={
            call[:-7]: fill(result, files) for call, result in calls.items() if call.endswith(":result")
        },
        state={name: fill(kept, files) for name, kept in pairs(state_flat).items()},
        memory=[fill(element, files) for element in memory],
        files=set(files),
    )
