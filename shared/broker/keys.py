"""Every Redis key, spelled here and nowhere else.

A session's keys share the hash tag ``{<owner>/<session>}``, so that all of a session lies in one
cluster slot and each script touches one slot only. The other keys stay on the primary; where that holds the
sessions too, a submit, a callback and its launch touch both.
Types, writers, readers and lifetimes: the table in docs/reference.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

DUE = "ts:due"
CLOCK = "ts:clock"
RECENT = "ts:recent"
LIVE = "ts:live"
DOORBELL = "ts:doorbell"
# Channels beside it, one for each worker to hear: with many workers a launch rings some of them.
BELLS = tuple(f"{DOORBELL}:{number}" for number in range(64))
CONTROL = "ts:control"
API_KEYS = "ts:keys"
KEYS_USED = "ts:keys:used"
WORKERS = "ts:workers"
FRONT_ENDS = "ts:frontends"
TOTALS = "ts:totals"
MODELS = "ts:models"
QUEUE = "ts:queue"
QUEUE_TAGS = "ts:queue:tags"
# Lifelines of worker processes: see shared/lifelines.py.
SUBSCRIBED = "ts:subscribed"
HELD = "ts:held"
WATCH = "ts:watch"
ALIVE = "ts:alive:"
# When to see whether somebody is to be told of a task: see shared/session/webhooks.py.
WEBHOOKS = "ts:webhooks"

# arq's own spelling (arq.constants): where it looks for what a job is.
JOB_PREFIX = "arq:job:"

# The queue that arq would use by itself; it must be one that a worker's user may touch.
ARQ_QUEUE = "arq:unused"


@dataclass(frozen=True, slots=True)
class TaskRef:
    """Names a task everywhere outside its session: ``<owner>/<session>/<task>``."""

    owner: str
    session: str
    task: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.session}/{self.task}"

    @classmethod
    def parse(cls, text: str | bytes) -> TaskRef:
        """Read a ref.

        Raises:
            ValueError: the text has not three parts.
        """
        owner, session, task = (text.decode() if isinstance(text, bytes) else text).split("/")
        return cls(owner, session, task)

    @property
    def keys(self) -> SessionKeys:
        """The keys of the task's session."""
        return SessionKeys(self.owner, self.session)


# What each script on a session gets: keys of the session, of one task, and the channel.
FOR_SCRIPTS = ("meta", "log", "history", "memory", "waiting", "tail", "task", "calls", "state")
_of_session = attrgetter(*FOR_SCRIPTS[:6])


class SessionKeys:
    """The keys of one session."""

    __slots__ = (
        "_prefix",
        "files",
        "history",
        "live",
        "log",
        "mark",
        "memory",
        "meta",
        "owner",
        "session",
        "tail",
        "waiting",
    )

    def __init__(self, owner: str, session: str) -> None:
        prefix = f"ts:{{{owner}/{session}}}:"
        self.owner = owner
        self.session = session
        self._prefix = prefix
        self.meta = prefix + "meta"
        self.log = prefix + "log"
        self.live = prefix + "live"
        self.waiting = prefix + "waiting"
        self.memory = prefix + "memory"
        self.history = prefix + "history"
        self.tail = prefix + "tail"
        self.files = prefix + "files"
        # Written for the sake of writing: see api/turns/durable_submit.py.
        self.mark = prefix + "mark"

    @property
    def prefix(self) -> str:
        """What all of the session's keys begin with; the scripts append ``task:<id>`` and the like."""
        return self._prefix

    def for_scripts(self, task: str) -> tuple[str, ...]:
        """`FOR_SCRIPTS` of one task."""
        return (*_of_session(self), self.task(task), self.calls(task), self.state(task))

    def task(self, task: str) -> str:
        """Hash of one task."""
        return f"{self._prefix}task:{task}"

    def calls(self, task: str) -> str:
        """Hash of one task's client calls."""
        return f"{self._prefix}calls:{task}"

    def state(self, task: str) -> str:
        """Hash of one task's checkpoints."""
        return f"{self._prefix}state:{task}"

    def call(self, call: str) -> str:
        """String that leads from a call's id to its task; outlives both by the session's TTL."""
        return f"{self._prefix}call:{call}"

    def staged(self, op: str, kind: str) -> str:
        """Where the history or the memory waits that a session is to begin with."""
        return f"{self._prefix}staged:{op}:{kind}"

    def idempotency(self, key: str) -> str:
        """String that leads from an idempotency key to the task it made."""
        return f"{self._prefix}idem:{key}"


def sessions_pattern(owner: str, session: str | None) -> str:
    """Pattern of the names of all keys of an owner's sessions, or of one."""
    return f"ts:{{{owner}/{session or '*'}}}:*"


# Pattern of the names of all sessions' live tasks. No other key of a session ends so: its name has no brace.
LIVE_SESSIONS = "ts:{*}:live"


def session_of_live(name: bytes) -> SessionKeys:
    """The session of a key that `LIVE_SESSIONS` matches.

    Raises:
        ValueError: the name is of no session.
    """
    owner, session = name.removeprefix(b"ts:{").removesuffix(b"}:live").decode().split("/")
    return SessionKeys(owner, session)


# How the name of a hash ends that is written where a session is copied to: see deploy/copy_sessions.py.
COPIED = "copied"


def owner_turns(owner: str) -> str:
    """Sorted set of an owner's turns that count against a limit."""
    return f"ts:caps:{owner}:turns"


def admission(ref: TaskRef, op: str) -> str:
    """Member of both sets: the submit ``op`` of a turn."""
    return f"{ref} {op}"


def parse_admission(text: str) -> tuple[TaskRef, str]:
    """Ref and operation id of an admission."""
    ref, _, op = text.partition(" ")
    return TaskRef.parse(ref), op


def owner_rate(owner: str) -> str:
    """Sorted set of the turns that an owner began in the last minute, where that is limited."""
    return f"ts:caps:{owner}:rate"


def owner_bytes(owner: str) -> str:
    """Hash of an owner's sessions: how many bytes each holds; their sum as ``''``."""
    return f"ts:caps:{owner}:bytes"


def owner_sessions(owner: str) -> str:
    """Sorted set of the same sessions by when they expire."""
    return f"ts:caps:{owner}:sessions"


def owner_lost(owner: str, request: str) -> str:
    """String that leads from a request whose client lost its connection to the turn that it made."""
    return f"ts:caps:{owner}:lost:{request}"


def owner_followers(owner: str) -> str:
    """Hash of an owner's followers by front end, where they are limited."""
    return f"ts:caps:{owner}:followers"


def agent_tasks(owner: str, agent: str) -> str:
    """Sorted set of an owner's newest tasks with an agent, by when they were submitted, until somebody lists them after their ends.

    Of protocols whose clients list them.
    """
    return f"ts:tasks:{owner}:{agent}"


def agent_tasks_ended(owner: str, agent: str) -> str:
    """Sorted set of those of them that have ended, by when and how they did."""
    return f"ts:tasks:{owner}:{agent}/ended"


def model_permits(model: str) -> str:
    """Sorted set of the requests that are made to a model right now, where their number is limited."""
    return f"{MODELS}:permits:{model}"


def model_waiting(model: str) -> str:
    """Sorted set of the turns that wait for such a permit."""
    return f"{MODELS}:waiting:{model}"


def cancelled(response: str) -> str:
    """Written by the worker that has a provider cancel this background response, for the others to leave it alone."""
    return f"ts:cancelled:{response}"


def nothing(slot_by: int = 0) -> str:
    """A key that nobody ever has, to see whether a server takes writes; of a cluster, the number decides which one has it."""
    return f"ts:{{{slot_by}}}:nothing"


def job(job_id: str) -> str:
    """Where arq finds the job of that id."""
    return JOB_PREFIX + job_id
