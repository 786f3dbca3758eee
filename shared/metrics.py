"""In-process metrics; `turnstream.shared.prometheus` exports them. The list for operators: docs/operations.md.

Counting is a plain addition, since some of it is done for every write to a client. Nothing here belongs to
an instance: what is counted is the process's, as its memory and its time are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is so at the moment; read when somebody asks. With ``label``, one value for each of its values.

    ``shared``: each process says it of the whole deployment, so that it is not added up over processes.
    """

    name: str
    help: str
    label: str = ""
    shared: bool = False


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

COUNTED: tuple[Count | Counts | Times, ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Count | Counts | Times)
)
GAUGES: tuple[Gauge, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Gauge))


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
