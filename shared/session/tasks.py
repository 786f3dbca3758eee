"""A task's life: one typed function for each script. The state diagram is in docs/reference.md, the outcomes are in `outcomes`.

Every function is one round trip (more where it brings or returns large data, see shared/session/files.py), touches one
session, and may be repeated when its reply was lost: those that take
an operation id give their first outcome again and write nothing, the others (create, note, renew, callback, clear) find that
what they ask for was done.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import DUE
from turnstream.shared.broker.retry import Retrying, whole
from turnstream.shared.broker.scripts import Script, limits_of
from turnstream.shared.offload import ThreadOffload
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.files import PIECE_BYTES, fetch, fill
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
    Foreign,
    Full,
    GivesWay,
    Gone,
    Heavy,
    HintUsed,
    Interrupt,
    Launch,
    Live,
    Lives,
    Missing,
    Moved,
    MustEnd,
    NotBefore,
    Parked,
    Passed,
    Redate,
    Refusal,
    Renewed,
    Repeated,
    Same,
    Spent,
    Stored,
    Superseded,
    TurnSubmission,
    Unknown,
    Unread,
    Waits,
    Withdrawn,
    Writer,
)
from turnstream.shared.session.queue import BACKLOG_LOOK_MS, LAUNCH_GRACE_MS, TOGETHER_GRACE_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from redis.asyncio import Redis

    from turnstream.shared.broker.cluster import Doubt
    from turnstream.shared.broker.keys import SessionKeys, TaskRef
    from turnstream.shared.broker.scripts import Given
    from turnstream.shared.session.event_log import SessionMeta
    from turnstream.shared.settings import Settings

# Characters of an error's text that lists of tasks tell.
MOST_TOLD = 200

# How often a rescuer looks at a task that another release wrote and this one does not understand.
STRANGE_LOOK_MS = 15_000

# For how long a turn must have been silent whose worker seems to have been killed.
QUIET_MS = 900

# For a look that is known: there is none to be known, since hints and sessions are on one server.
NOT_APART = "-"

# TTL of a session without a turn.
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


# ── the scripts ─────────────────────────────────────────────────────────────────────────────────────

# What a writer shows, in each of its scripts (`_shown`).
_WRITER = ("attempt", "holder", "seen_epoch", "seen_seq", "seen_op")

_create = Script("create", session=True, args=("agent", "user", "life_ms"))
_note = Script("note", session=True, args=("name", "value", "keep"))
_submit = Script(
    "submit",
    session=True,
    keys=("idempotency",),
    optional=("due",),
    args=(
        "agent",
        "user",
        "create",
        "busy",
        "parked_policy",
        "max_waiting",
        "request",
        "response",
        "deadline_ms",
        "digest",
        "trace",
        "memory_turns",
        "look_ms",
        "ref",
        "metadata",
        "max_live",
        "idempotent",
        "known_look",
    ),
    rest="entries",
)
_begin = Script("begin", session=True, args=("launch", "worker", "memory_bytes", "room"), large=True)
_append = Script("append", session=True, keys=("call_prefix",), args=_WRITER, rest="batch")
_renew = Script("renew", session=True, args=_WRITER)
_park = Script(
    "park", session=True, keys=("call_prefix",), args=(*_WRITER, "wait_ms", "policy"), rest="batch"
)
_release = Script("release", session=True, args=(*_WRITER, "wait_ms", "reason", "retry_ms", "retrying"))
_take = Script(
    "take",
    session=True,
    optional=("due",),
    args=("taker", "ending", "seen", "ref", "look_ms", "known_look"),
    large=True,
)
_finish = Script(
    "finish",
    session=True,
    args=(*_WRITER, "ended", "why", "told", "usage", "model_calls", "memory_element", "memory_bytes"),
    rest="entries",
)
_callback = Script(
    "callback",
    session=True,
    keys=("call_key",),
    optional=("due",),
    args=("call", "result", "look_ms", "ref", "known_look"),
    rest="entries",
)
_sweep = Script(
    "sweep",
    session=True,
    args=(
        "launch_ms",
        "max_crashes",
        "strange_ms",
        "stay_ms",
        "backlog_ms",
        "gone",
        "gone_launch",
        "quiet_ms",
        "as_of",
        "apart",
    ),
)
_webhook = Script("webhook", session=True, args=("id", "field", "value", "most"))
_clear = Script("clear", session=True, args=("ending_epoch", "idempotency"))
stage = Script("stage", keys=("files",), args=("digest", "data", "life_ms"), large=True)
_fork = Script(
    "fork",
    session=True,
    keys=("staged_history", "staged_memory"),
    args=(
        "agent",
        "user",
        "origin",
        "epoch",
        "seq",
        "entries",
        "elements",
        "kept",
        "memory_bytes",
        "history_lent",
        "memory_lent",
        "life_ms",
    ),
    rest="references",
)
_unstage = Script("unstage", keys=("files",), rest="digests")

# Replies of scripts that took the files which came with them.
_TOOK = frozenset({b"ok", b"launch", b"waits", b"parked", b"superseded", b"stored"})

_REFUSALS: dict[bytes, Fenced | Ended | Gone] = {b"fenced": Fenced(), b"ended": Ended(), b"gone": Gone()}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a session is to begin with, as it waits beside it: see shared/session/fork.py.

    Attributes:
        history, memory: the keys where it waits.
        epoch, seq: of the history's ids, and the last place that it covers.
        entries, elements, kept, memory_bytes: how many of both, and their bytes, with those of files as often as they are
            referred to: of these bytes so many are `history_lent` and `memory_lent`.
        files: digests of the files, which wait as a session's own do.
        references: by digest, how many times the memory refers to it.
    """

    history: str
    memory: str
    epoch: int
    seq: int
    entries: int
    elements: int
    kept: int
    memory_bytes: int
    history_lent: int
    memory_lent: int
    files: Sequence[str]
    references: Mapping[str, int]


class Tasks(Retrying):
    """The scripts, bound to a server and its limits."""

    def __init__(
        self, redis: Redis, settings: Settings, *, notes: bool = False, offload: ThreadOffload | None = None
    ) -> None:
        """With ``notes`` the hints are on the same server: what must be launched is noted with what says so.

        ``offload`` is where large turns are read.
        """
        self.redis = redis
        self.offload = offload or ThreadOffload()
        self.notes = notes
        self._due = DUE if notes else None
        self._settings = settings
        self._limits = limits_of(settings)
        self._grace_ms = int(settings.log_grace_seconds * 1000)
        # After which a launch that should have been sent is looked at. Where replicas are waited for, it comes later.
        together = settings.session_redis_url is None and not settings.wait_replicas
        self._launch_ms = TOGETHER_GRACE_MS if together else LAUNCH_GRACE_MS

    async def create(self, keys: SessionKeys, agent: str, user: str) -> bool:
        """Make a session, which lives for `EMPTY_MS` unless a turn comes; False when it was there already."""
        life = min(self._settings.ttl_ms, EMPTY_MS)
        reply = await self._run(_create, keys, "", "", agent=agent, user=user, life_ms=life)
        return bool(reply[0] == b"created")

    async def note(self, keys: SessionKeys, name: str, value: str, *, keep: bool = False) -> bool:
        """Keep what a protocol says of a session, as long as there is one; False: there is none.

        With ``keep`` the session has its time to live again.
        """
        reply = await self._run(_note, keys, "", "", name=name, value=value, keep="1" if keep else "")
        return bool(reply[0] == b"noted")

    async def webhook(self, ref: TaskRef, name: str, field: str, value: bytes, most: int) -> bytes:
        """Keep, replace or drop a webhook of a task (`turnstream.shared.session.webhooks`). What webhook.lua replies."""
        given: dict[str, Given] = {"id": name, "field": field, "value": value, "most": most}
        reply: list[bytes] = await self._run(_webhook, ref.keys, ref.task, "", **given)
        return reply[0]

    async def fork(
        self, keys: SessionKeys, source: SessionMeta, origin: str, waiting: Waiting
    ) -> list[bytes]:
        """Make a session of what waits; it lives for `EMPTY_MS` unless a turn comes. What fork.lua replies."""
        given: dict[str, Given] = {
            "staged_history": waiting.history,
            "staged_memory": waiting.memory,
            "agent": source.agent,
            "user": source.user,
            "origin": origin,
            "epoch": waiting.epoch,
            "seq": waiting.seq,
            "entries": waiting.entries,
            "elements": waiting.elements,
            "kept": waiting.kept,
            "memory_bytes": waiting.memory_bytes,
            "history_lent": waiting.history_lent,
            "memory_lent": waiting.memory_lent,
            "life_ms": min(self._settings.ttl_ms, EMPTY_MS),
            "references": [part for pair in waiting.references.items() for part in pair],
        }
        files = [part for digest in waiting.files for part in (digest, b"")]
        reply: list[bytes] = await _fork.on_session(
            self.redis, keys, "", "", self._limits, given, files=files
        )
        return reply

    @whole
    async def submit(
        self, ref: TaskRef, turn: TurnSubmission, op: str, known_look: str = ""
    ) -> Launch | Waits | Same | HintUsed | Missing | Foreign | Busy | Interrupt | Full:
        """Accept a turn: creates the task with the user's message and ``response`` queued in the log.

        ``known_look``: see `HintUsed`; where the hints are on this server (`notes`) it means nothing.
        """
        keys = ref.keys
        reply = await self._run(
            _submit,
            keys,
            ref.task,
            op,
            turn.batch,
            None,
            _is_absent,
            idempotency=keys.idempotency(turn.idempotency or "-"),
            due=self._due,
            agent=turn.agent,
            user=turn.user,
            create="1" if turn.create else "0",
            busy=turn.busy,
            parked_policy=turn.parked,
            max_waiting=self._settings.max_waiting,
            request=turn.request,
            response=turn.response,
            deadline_ms=turn.deadline_ms,
            digest=turn.digest,
            trace=turn.trace,
            memory_turns=turn.memory_turns,
            look_ms=self._launch_ms,
            ref=str(ref),
            metadata=turn.metadata,
            max_live=self._settings.max_live,
            idempotent="1" if turn.idempotency else "0",
            known_look=self._known(known_look),
            entries=turn.batch.arguments(),
        )
        match reply:
            case [b"launch", launch, epoch, first]:
                return Launch(int(launch), int(epoch), int(first))
            case [b"waits", epoch, first]:
                return Waits(int(epoch), int(first))
            case [b"same", task, digest]:
                return Same(task.decode(), digest.decode())
            case [b"looked", look]:
                return HintUsed(look.decode())
            case [b"missing"]:
                return Missing()
            case [b"foreign"]:
                return Foreign()
            case [b"busy", task, status]:
                return Busy(task.decode(), status.decode())
            case [b"interrupt", task]:
                return Interrupt(task.decode())
        return Full()

    @whole
    async def begin(
        self, ref: TaskRef, launch: int, worker: str, op: str, *, room: int = 2**53
    ) -> Attempt | Heavy | Superseded | Ended | Gone:
        """Take the attempt that runs a launch; needs the task queued and ``launch`` to be its newest.

        Only if what the turn is given (request, memory, calls, checkpoints) has no more than ``room`` bytes.
        """
        reply = await self._run(
            _begin,
            ref.keys,
            ref.task,
            op,
            launch=launch,
            worker=worker,
            memory_bytes=self._settings.memory_max_bytes,
            room=room,
        )
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

    @whole
    async def append(self, ref: TaskRef, attempt: Writer, batch: Batch, op: str) -> Appended | Refusal:
        """Write a batch and what it checkpoints; extends the lease. A claim has seen it then."""
        keys = ref.keys
        reply = await self._run(
            _append,
            keys,
            ref.task,
            op,
            batch,
            batch.weight,
            call_prefix=keys.call(""),
            **_shown(attempt),
            batch=batch.all_arguments(),
        )
        if reply[0] != b"ok":
            return _refusal(reply)
        appended = Appended(int(reply[1]), int(reply[2]))
        if isinstance(attempt, Claim):
            attempt.saw(appended.epoch, appended.seq, op)
        return appended

    async def answered(self, ref: TaskRef, calls: Sequence[str]) -> set[str]:
        """Which of these calls the client has answered."""
        fields = [f"{call}:result" for call in calls]
        found: list[bytes | None] = await command(self.redis, "HMGET", ref.keys.calls(ref.task), *fields)
        return {call for call, result in zip(calls, found, strict=True) if result is not None}

    async def renew(self, ref: TaskRef, attempt: Writer) -> Renewed | Refusal:
        """Extend the lease."""
        reply = await self._run(_renew, ref.keys, ref.task, "", **_shown(attempt))
        return Renewed() if reply[0] == b"ok" else _refusal(reply)

    @whole
    async def park(
        self, ref: TaskRef, attempt: Writer, batch: Batch, op: str, *, wait_ms: int, policy: str
    ) -> Parked | Launch | GivesWay | Refusal:
        """Write a batch, then wait for the client without a worker, ``wait_ms`` at most.

        ``policy`` is the agent's ``parked``: with ``supersede`` the task gives way to one that waits.
        """
        keys = ref.keys
        reply = await self._run(
            _park,
            keys,
            ref.task,
            op,
            batch,
            call_prefix=keys.call(""),
            **_shown(attempt),
            wait_ms=wait_ms,
            policy=policy,
            batch=batch.all_arguments(),
        )
        if reply[0] == b"parked":
            return Parked()
        if reply[0] == b"superseded":
            return GivesWay()
        return Launch(int(reply[1])) if reply[0] == b"launch" else _refusal(reply)

    async def release(
        self,
        ref: TaskRef,
        attempt: Writer,
        op: str,
        *,
        wait_ms: int = 0,
        reason: str = "",
        retry_ms: int = 0,
        retrying: str = "",
    ) -> Launch | NotBefore | Spent | Refusal:
        """Give a running task back to the queue; not counted as a crash.

        With ``wait_ms`` it is not launched before that, and ``reason``, a word, is shown meanwhile. With ``retry_ms`` it is
        a retry: refused (`Spent`) when, since the first one after the task's last checkpoint, that time would be over.
        ``retrying`` is what of: the first one after those of something else is a first one, too.
        """
        reply = await self._run(
            _release,
            ref.keys,
            ref.task,
            op,
            **_shown(attempt),
            wait_ms=wait_ms,
            reason=reason,
            retry_ms=retry_ms,
            retrying=retrying,
        )
        match reply:
            case [b"launch", launch]:
                return Launch(int(launch))
            case [b"waits", launch, look_ms]:
                return NotBefore(int(launch), int(look_ms))
            case [b"spent"]:
                return Spent()
        return _refusal(reply)

    @whole
    async def take(
        self,
        ref: TaskRef,
        who: str,
        ending: str,
        op: str,
        seen: str = "",
        *,
        look: bool = False,
        known_look: str = "",
    ) -> Attempt | Moved | HintUsed | Ended | Gone:
        """Take the attempt that ends a task from outside; its former holder is fenced from here on.

        ``ending`` is ``<status> <why>``. With ``seen`` (from `MustEnd`) only if nothing moved since. With ``look`` a
        rescuer is to look soon whether the end was written: where hints are on this server (`notes`) it is left one, where
        they are not, one was left before, and ``known_look`` is for `HintUsed`.
        """
        reply = await self._run(
            _take,
            ref.keys,
            ref.task,
            op,
            due=self._due if look else None,
            taker=who,
            ending=ending,
            seen=seen,
            ref=str(ref),
            look_ms=LAUNCH_GRACE_MS,
            known_look=self._known(known_look) if look else NOT_APART,
        )
        match reply:
            case [b"taken", number, snapshot]:
                return await self._attempt(ref, number, snapshot, [])
            case [b"looked", known]:
                return HintUsed(known.decode())
            case [b"moved"]:
                return Moved()
            case [b"ended", status]:
                return Ended(status.decode())
        return Gone()

    @whole
    async def finish(
        self,
        ref: TaskRef,
        attempt: Writer,
        batch: Batch,
        op: str,
        *,
        status: str,
        why: str,
        memory: bytes,
        text: str = "",
        usage: bytes = b"",
        model_calls: bytes = b"",
    ) -> Finished | Refusal:
        """Write the end: the batch closes what is open and ends with the terminal event.

        For operators, ``text`` of its error, ``usage``, a JSON object, and ``model_calls``, as they are kept.
        """
        reply = await self._run(
            _finish,
            ref.keys,
            ref.task,
            op,
            batch,
            **_shown(attempt),
            ended=status,
            why=why,
            told=text[:MOST_TOLD],
            usage=usage,
            model_calls=model_calls,
            memory_element=batch.cut(memory),
            memory_bytes=self._settings.memory_max_bytes,
            entries=batch.arguments(),
        )
        if reply[0] == b"ok":
            return Finished(int(reply[1]), reply[2].decode(), int(reply[3]))
        return _refusal(reply)

    @whole
    async def callback(
        self, ref: TaskRef, call: str, result: bytes, batch: Batch, op: str, known_look: str = ""
    ) -> Stored | Launch | Repeated | HintUsed | Unread | Unknown | Withdrawn | Expired | Ended:
        """Take a client's answer to ``call``; the batch is its ``…_output`` message. ``known_look``: as for `submit`."""
        keys = ref.keys
        reply = await self._run(
            _callback,
            keys,
            ref.task,
            op,
            batch,
            None,
            _is_absent,
            call_key=keys.call(call),
            due=self._due,
            call=call,
            result=batch.cut(result),
            look_ms=self._launch_ms,
            ref=str(ref),
            known_look=self._known(known_look),
            entries=batch.arguments(),
        )
        match reply:
            case [b"looked", look]:
                return HintUsed(look.decode())
            case [b"unread"]:
                return Unread()
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

    async def sweep(
        self, ref: TaskRef, op: str, gone: str = "", gone_launch: int = 0, *, as_of: int = 0
    ) -> Launch | Passed | MustEnd | Redate | Drop | Lives:
        """Look at one due task, and say what must be done about it.

        ``gone`` is a process that was killed while it held that launch of the task: its lease is not waited for, unless
        something was heard of it just now. ``as_of``: when the task's server last took a write, by its clock (Unix ms): a lease
        that ended later may be one that its holder could not renew. 0: now.
        """
        reply = await self._run(
            _sweep,
            ref.keys,
            ref.task,
            op,
            None,
            None,
            _is_far_off,
            launch_ms=self._launch_ms,
            max_crashes=MAX_CRASHES,
            strange_ms=STRANGE_LOOK_MS,
            stay_ms=self._grace_ms,
            backlog_ms=BACKLOG_LOOK_MS,
            gone=gone,
            gone_launch=gone_launch,
            quiet_ms=QUIET_MS,
            as_of=as_of or "",
            apart="0" if self.notes else "1",
        )
        match reply:
            case [b"launch", launch, look, *_]:
                return Launch(int(launch), look_ms=int(look))
            case [b"passed", task, launch]:
                return Passed(task.decode(), int(launch))
            case [b"end", attempt, launch, ending]:
                status, _, why = ending.decode().partition(" ")
                return MustEnd(f"{attempt.decode()} {launch.decode()}", status, why)
            case [b"redate", ms, *_]:
                return Redate(int(ms))
            case [b"lives"]:
                return Lives()
        return Drop(reply[1].decode())

    async def passed_on(self, ref: TaskRef) -> None:
        """The turn that `Passed` named was launched: nobody need look for that any more."""
        await command(self.redis, "HDEL", ref.keys.task(ref.task), "next")

    async def clear(
        self, keys: SessionKeys, epoch: int | None, idempotency: str = ""
    ) -> Cleared | Live | Missing:
        """Drop log, memory and history of a session without live tasks, and begin a new epoch after ``epoch``.

        Where that has ended already, or the latest clear had the same ``idempotency``, nothing is done: `Cleared` then has the present one. None: in whatever epoch it is,
        the session itself is deleted, but for what its turns left under names of their own.
        """
        ending = "" if epoch is None else epoch
        reply = await self._run(
            _clear, keys, "", "", None, None, _is_absent, ending_epoch=ending, idempotency=idempotency
        )
        match reply:
            case [b"cleared", epoch]:
                return Cleared(int(epoch))
            case [b"live", *tasks]:
                return Live(tuple(task.decode() for task in tasks))
        return Missing()

    def _known(self, look: str) -> str:
        return NOT_APART if self.notes else look

    async def _run(
        self,
        script: Script,
        keys: SessionKeys,
        task: str,
        op: str,
        batch: Batch | None = None,
        size: int | None = None,
        doubt: Doubt | None = None,
        /,
        **given: Given,
    ) -> Any:
        """Run a script with what it is declared to take; ``batch`` has the files that this refers to. ``doubt``: see `Script.sure`."""
        if batch is None or not batch.files:
            return await script.on_session(
                self.redis, keys, task, op, self._limits, given, size=size, doubt=doubt
            )
        run = partial(script.on_session, self.redis, keys, task, op, self._limits, given, doubt=doubt)
        new = batch.new_files()
        staged = sum(map(len, new.values()))
        if staged > PIECE_BYTES:
            # Said to be as large as they are, it goes the same way, behind them.
            running = run(files=batch.file_arguments({}), size=staged)
            reply = await self._staged(keys, new, running)
        else:
            staged = 0
            reply = await run(files=batch.file_arguments(new), size=size)
        if reply[0] == b"files_missing":
            reply = await run(files=batch.file_arguments(batch.files))
        if staged and reply[0] not in _TOOK:
            # Data of a refused turn is in no owner's count, so it must not stay: a client may be refused any number of times.
            await _unstage(self.redis, files=keys.files, digests=tuple(new))
        return reply

    async def _staged(self, keys: SessionKeys, files: Mapping[str, bytes], running: Awaitable[Any]) -> Any:
        """What a script replies that refers to the files, which go to the broker before it, one by one."""
        staging = [
            stage(self.redis, files=keys.files, digest=digest, data=data, life_ms=STAGED_MS)
            for digest, data in files.items()
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
        return await self.offload.run_large(ref.owner, size, _attempt, ref, number, snapshot, memory, files)


def _shown(writer: Writer) -> dict[str, str | int]:
    """`_WRITER`, of a writer."""
    if isinstance(writer, Claim):
        return {
            "attempt": writer.number,
            "holder": writer.holder,
            "seen_epoch": writer.epoch,
            "seen_seq": writer.seq,
            "seen_op": writer.op,
        }
    return {"attempt": writer, "holder": "", "seen_epoch": 0, "seen_seq": 0, "seen_op": ""}


def _is_absent(reply: list[bytes]) -> bool:
    """Whether there is no such session, or no such call: its client gives up then."""
    return reply[0] in {b"missing", b"unknown"}


def _is_far_off(reply: list[bytes]) -> bool:
    """Whether a hint goes, or is dated far off, by a look of which the mark must not be at a node that was replaced."""
    return reply[-1] == b"off"


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
        claim=Claim(int(number), task["holder"].decode(), int(epoch), int(seq), task["holder"].decode()),
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
