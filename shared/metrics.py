"""In-process metrics; `turnstream.shared.prometheus` exports them. The list for operators: docs/operations.md.

Counting is a plain addition, since some of it is done for every write to a client. Nothing here belongs to
an instance: what is counted is the process's, as its memory and its time are.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

# The value of a label for all that have no value of their own.
OTHER = "other"

# Combinations of labels of one metric: agents, models, tools and codes are few, but nothing here sees to that.
MOST_COMBINED = 1000

# What a code looks like. Authors of agents make their own, and one with a user's words in it is neither for metrics nor for traces.
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


@dataclass(slots=True)
class Count:
    """How often something happened, or how much of it there was; add to ``n``."""

    name: str
    help: str
    n: int = 0


@dataclass(slots=True)
class Counts:
    """The same, told apart by one label."""

    name: str
    help: str
    label: str
    by: Counter[str] = field(default_factory=Counter)

    def add(self, value: str) -> None:
        """One more with this value of the label."""
        self.by[value] += 1


@dataclass(slots=True)
class Times:
    """How long something took: a histogram in seconds."""

    name: str
    help: str
    bounds: tuple[float, ...]
    buckets: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """One more that took so long."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Sums:
    """How much of something there was, for each combination of labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    by: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, *values: str, n: float = 1) -> None:
        """So much more with these values of the labels."""
        at = _combined(self.by, values)
        self.by[at] = self.by.get(at, 0) + n


@dataclass(slots=True)
class TimesBy:
    """How long something took: a histogram in seconds for each combination of labels."""

    name: str
    help: str
    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    by: dict[tuple[str, ...], Times] = field(default_factory=dict)

    def add(self, seconds: float, *values: str) -> None:
        """One more that took so long, with these values of the labels."""
        at = _combined(self.by, values)
        if (times := self.by.get(at)) is None:
            times = self.by[at] = Times(self.name, self.help, self.bounds)
        times.add(seconds)

    @contextmanager
    def timing(self, *values: str) -> Iterator[None]:
        """Add what the block takes, however it ends."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.add(time.monotonic() - begun, *values)


def _combined(
    known: dict[tuple[str, ...], float] | dict[tuple[str, ...], Times], values: tuple[str, ...]
) -> tuple[str, ...]:
    return values if values in known or len(known) < MOST_COMBINED else (OTHER,) * len(values)


def code_label(code: str) -> str:
    """What metrics and traces call the code of a failure."""
    return code if _CODE.fullmatch(code) else OTHER


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is so at the moment; read when somebody asks. With ``label``, one value for each of its values.

    ``shared``: each process says it of the whole deployment, so that it is not added up over processes.
    """

    name: str
    help: str
    label: str = ""
    shared: bool = False


Counted: TypeAlias = Count | Counts | Sums | Times | TimesBy

_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

turns_submitted = Count("turnstream_turns_submitted", "Turns that this front end took.")
turns_ended = Counts(
    "turnstream_turns_ended", "Turns whose end this process wrote, by how they ended.", "status"
)
turns_parked = Count("turnstream_turns_parked", "Turns that this worker left to wait for their client.")
turns_waited = Counts(
    "turnstream_turns_waited",
    "Attempts that this worker gave up until a time, by what they wait for: `agent_version`, or the code of a model's failure "
    "that passes.",
    "reason",
)
turns_refused = Counts(
    "turnstream_turns_refused",
    "Turns and followers that this front end refused for a limit, by which one.",
    "limit",
)
callbacks = Counts(
    "turnstream_callbacks",
    "Answers to client calls that this front end took: first ones and repeats.",
    "kind",
)
attempts = Counts(
    "turnstream_attempts",
    "Attempts that this worker began: first ones, and further ones after parking, a shutdown or a crash.",
    "kind",
)
agents_left = Count(
    "turnstream_agents_left",
    "Agents of this worker that went on after their turn was cancelled, and were left behind: its log says where.",
)
calls_lost = Counts(
    "turnstream_calls_lost",
    "Calls of tools whose worker was lost before their outcome was kept, by what was done: rerun, tell, ask, function.",
    "by",
)
leases_lost = Count(
    "turnstream_leases_lost",
    "Attempts that this worker lost while it ran them, for it was frozen, starved or cut off for a lease.",
)
rescues = Counts(
    "turnstream_rescues",
    "What this worker's rescuer did to turns that nobody took care of: launched or ended them, or had taken_over what a killed "
    "worker held.",
    "action",
)
webhooks = Counts(
    "turnstream_webhooks",
    "Messages to webhooks by this worker: told, failed (they are tried again), given_up.",
    "outcome",
)
unreadable = Counts(
    "turnstream_unreadable",
    "Entries at the broker that this process could not read or act on, by kind: its log names each.",
    "kind",
)
turn_seconds = TimesBy(
    "turnstream_turn_seconds",
    "Time of a turn whose end this process wrote, from its submit, parks included.",
    _LONG,
    ("agent", "status"),
)
turns_failed = Sums(
    "turnstream_turns_failed",
    "Turns whose failure this process wrote, by the code that clients are told.",
    ("agent", "code"),
)
first_token_seconds = TimesBy(
    "turnstream_first_token_seconds",
    "Time from a request to a model to the first piece of its answer.",
    _LONG,
    ("agent", "model"),
)
answer_seconds = TimesBy(
    "turnstream_answer_seconds",
    "Time from a request to a model to the end of its answer, or to its failure.",
    _LONG,
    ("agent", "model"),
)
models_failed = Sums(
    "turnstream_models_failed",
    "Requests to a model that failed, retries included, by the code of the failure.",
    ("model", "code"),
)
tokens = Sums(
    "turnstream_tokens",
    "Tokens that models counted, by kind: input, output.",
    ("agent", "model", "kind"),
)
cost = Sums(
    "turnstream_cost_usd",
    "Cost of models' answers in USD, by list prices, where these are known.",
    ("agent", "model"),
)
tool_seconds = TimesBy(
    "turnstream_tool_seconds",
    "Time of one call of a tool that this worker runs, failed ones included.",
    _LONG,
    ("agent", "tool"),
)
owner_turns = Sums(
    "turnstream_owner_turns",
    "Turns whose end this process wrote, by owner.",
    ("owner", "status"),
)
owner_tokens = Sums(
    "turnstream_owner_tokens",
    "Tokens of the turns whose end this process wrote, by owner.",
    ("owner",),
)
owner_cost = Sums(
    "turnstream_owner_cost_usd",
    "Cost of the turns whose end this process wrote in USD, where it is known, by owner.",
    ("owner",),
)
events_appended = Count("turnstream_events_appended", "Events that this worker wrote into logs.")
append_seconds = Times(
    "turnstream_append_seconds",
    "Time of one append of gathered events, retries while the broker was away included.",
    _SHORT,
)
queue_wait_seconds = Times(
    "turnstream_queue_wait_seconds",
    "Time from a turn's launch to its attempt's begin, by the broker's clock.",
    _LONG,
)
stop_seconds = Times(
    "turnstream_stop_seconds",
    "Time of a stop through this front end, from the request to the terminal event in the log.",
    _SHORT,
)
streams_opened = Count("turnstream_streams_opened", "Streams of events that this front end began.")
bytes_out = Count("turnstream_stream_bytes", "Bytes of events and heartbeats that this front end sent.")
cut_readers = Count(
    "turnstream_cut_readers",
    "Followers that were cut off since they did not take what they were sent in time.",
)
tail_losses = Count(
    "turnstream_tail_losses",
    "Times that this front end lost a connection on which it hears of new events, or that slots of a cluster moved to another node.",
)
broker_away = Count(
    "turnstream_broker_away", "Commands that were given up because the broker did not answer in time."
)

followers = Gauge("turnstream_followers", "Streams that this front end holds open.")
sessions_followed = Gauge(
    "turnstream_sessions_followed", "Sessions that somebody follows, or just did, through this front end."
)
turns_held = Gauge("turnstream_turns_held", "Turns that this worker runs.")
slots = Gauge("turnstream_slots", "Turns that this worker may run at once; 0 while it drains.")
queue_depth = Gauge(
    "turnstream_queue_depth", "Launches that wait for a worker, in the whole deployment.", shared=True
)
queue_age = Gauge(
    "turnstream_queue_age_seconds",
    "How long the oldest launch has waited for a worker, in the whole deployment: scale workers on this.",
    shared=True,
)
tasks = Gauge(
    "turnstream_tasks",
    "Turns that have not ended, in the whole deployment, by status.",
    "status",
    shared=True,
)
turns_waiting = Gauge(
    "turnstream_turns_waiting",
    "Turns that wait until a time, without a worker, in the whole deployment, by what they wait for.",
    "reason",
    shared=True,
)
model_states = Gauge(
    "turnstream_model_state",
    "Whether a model may be asked: 0 closed, 1 probing, 2 open, 3 held by an operator.",
    "model",
    shared=True,
)
model_requests = Gauge(
    "turnstream_model_requests",
    "Requests that are being made to a model, over all workers, where their number is limited.",
    "model",
    shared=True,
)
workers = Gauge("turnstream_workers", "Workers that showed a sign of life in the last 15 s.", shared=True)
front_ends = Gauge(
    "turnstream_front_ends", "Front ends that showed a sign of life in the last 15 s.", shared=True
)

COUNTED: tuple[Counted, ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Count | Counts | Sums | Times | TimesBy)
)
GAUGES: tuple[Gauge, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Gauge))


class Owners:
    """Which owners metrics name: those for whom this process ended most turns; the others are one.

    An owner takes another one's place, and its series, only with twice as many turns: series must not come and go.
    """

    def __init__(self) -> None:
        # How many are named.
        self.most = 0
        self._turns: Counter[str] = Counter()
        self._named: set[str] = set()

    def label(self, owner: str) -> str:
        """Count one more turn of the owner; what it is called."""
        if not self.most or owner == OTHER:
            return OTHER
        self._turns[owner] += 1
        if owner not in self._named and not self._place(owner):
            return OTHER
        return owner

    def _place(self, owner: str) -> bool:
        if len(self._named) >= self.most:
            least = min(self._named, key=self._turns.__getitem__)
            if self._turns[owner] < 2 * self._turns[least]:
                self._forget_small()
                return False
            self._named.remove(least)
            for each in (owner_turns, owner_tokens, owner_cost):
                each.by = {values: n for values, n in each.by.items() if values[0] != least}
        self._named.add(owner)
        return True

    def _forget_small(self) -> None:
        if len(self._turns) > MOST_COMBINED:
            kept = {*self._named, *(name for name, _ in self._turns.most_common(MOST_COMBINED // 2))}
            self._turns = Counter({name: self._turns[name] for name in kept})


owners = Owners()


def totals() -> dict[str, int]:
    """What is added up over all processes for operators who have no Prometheus."""
    return {
        "submitted": turns_submitted.n,
        "completed": turns_ended.by["completed"],
        "failed": turns_ended.by["failed"],
        "canceled": turns_ended.by["canceled"],
        "parked": turns_parked.n,
        "callbacks": callbacks.by["first"],
        "refused": turns_refused.by.total(),
        "attempts": attempts.by.total(),
        "leases_lost": leases_lost.n,
        "rescues": rescues.by.total(),
        "events": events_appended.n,
        "bytes_out": bytes_out.n,
        "cut_readers": cut_readers.n,
    }
