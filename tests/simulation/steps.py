"""What every single script must hold to, looked at right before and behind it: in a simulation nothing comes in between.

What a task's hash may become is the state diagram of docs/reference.md. A script that is carried out twice, as after a
lost reply, has one effect: now and then one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.chaos.records import ENDS
from tests.conftest import LASTING
from turnstream.shared.broker.keys import DUE, FOR_SCRIPTS
from turnstream.shared.broker.scripts import LUA
from turnstream.shared.session.queue import LAUNCH_GRACE_MS
from turnstream.shared.session.tasks import NOT_APART
from turnstream.worker.agent_versions import GONE, WAITS_FOR

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.broker import SimulatedBroker, Store

Fields = dict[str, str]

# Status → those that may follow it, and which scripts make it so. A task may stay what it is.
FOLLOWING = {
    "": {"queued": {"submit"}},
    "queued": {"running": {"begin", "take"}},
    "running": {
        "queued": {"release", "sweep", "park", "append", "renew", "finish"},
        "parked": {"park"},
        "running": {"take"},
        **{end: {"finish"} for end in sorted(ENDS)},
    },
    "parked": {"queued": {"callback"}, "running": {"take"}},
}

# Where a script on a session has the task's id and the operation's in its arguments, and its keys by their names.
_TASK, _OPERATION = 2, 3
# A broker's clock is set back by less, between two looks at it.
SET_BACK_MS = 1000

# A turn that has taken so many workers with it is not tried again.
_MOST_LOST = 3

# What those that write for an attempt show of it, and where an append's batch begins.
_ATTEMPT, _HOLDER = 8, 9
BATCH = 13
_WRITERS = frozenset(("append", "renew", "park", "release", "finish"))
# The checkpoint that marks that a call with an effect begins.
_MARK = b"started:"
# Why a turn has failed whose version no worker serves.
_GONE = GONE.why.encode()
_REFUSED = frozenset((b"fenced", b"ended", b"gone", b"files_missing"))
_AT = {name: place for place, name in enumerate(FOR_SCRIPTS)}

# Scripts after which a rescuer is to look at the task soon, whoever dies, by the first word of what they return.
_HINTED = {"submit": (b"launch", b"waits"), "callback": (b"launch",), "take": (b"taken",)}

# What a repeat may return instead of the first reply: it found that what is asked was done.
_REPEATED = {
    ("callback", b"stored"): b"repeat",
    ("callback", b"launch"): b"repeat",
    # What was queued again has no holder any more. A rescuer launches it.
    ("append", b"behind"): b"fenced",
    ("park", b"behind"): b"fenced",
    ("release", b"behind"): b"fenced",
    ("finish", b"behind"): b"fenced",
}


class Steps:
    """Looks on at one broker, or at all that stand in for each other.

    Attributes:
        lives: whether a worker, by its id, is one that others must not take for dead.
        before: called with each script on a session, before it is carried out: where, its name, and its arguments.
        hints: where hints are, if not where the sessions are.
        on_script: called with each script's name, who asked for it, and the reply, which is not sent yet.
        on_key: called with the name of each script on a session, and its first key, behind it.
        repeated: the share of operations that are carried out twice; who asked gets the second reply.
        waited: ref and attempt of each that was released to wait.
        wrote: ref and attempt of each that wrote into its log.
        written: ref and holder → the last operation by which it wrote something.
        marked: ref, attempt and call of each mark that a call begins.
        ended: each task's key → when it ended the first time, by the broker's clock, Unix milliseconds. What the broker loses
            has to end again.
        on_parked: called with the ref and the attempt that has parked it.
        on_gone: called with the ref of a turn that ends since no worker serves its version.
        admitted: each admission that was let in.
        sent: process and slot → how it was sent to and fro between two nodes, which should not go on.
        wrong: what did not hold.
    """

    # The one that carries out what is looked at.
    _broker: SimulatedBroker

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.lives: Callable[[str], bool] = bool
        self.before: Callable[[SimulatedBroker, str, Sequence[bytes]], None] | None = None
        self.hints: Store | None = None
        self.on_script: Callable[[str, str, Any], None] | None = None
        self.on_key: list[Callable[[str, bytes], None]] = []
        self._names: dict[bytes, str] = {}
        self._bodies = {path.stem: _body(path.read_text()) for path in LUA.glob("*.lua")}
        # Operations that had their effect.
        self._done: set[tuple[bytes, bytes]] = set()
        self.losses = 0
        self.repeated = 0.0
        self.waited: set[tuple[str, int]] = set()
        self.wrote: set[tuple[str, int]] = set()
        self.written: dict[tuple[str, str], int] = {}
        self.marked: set[tuple[str, int, str]] = set()
        self.ended: dict[bytes, int] = {}
        self.on_parked: Callable[[str, int], None] | None = None
        self.on_gone: Callable[[str], None] | None = None
        self.admitted: list[str] = []
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.wrong: list[str] = []

    def learn(self, digest: bytes, text: bytes) -> None:
        """A script that is asked for by its hash from now on."""
        written = text.decode()
        self._names[digest] = next(
            (name for name, body in self._bodies.items() if written.endswith(body)), "unknown"
        )

    def name(self, digest: bytes) -> str:
        """What the script is called."""
        return self._names.get(digest, "unknown")

    def forget(self) -> None:
        """The broker has lost writes: what was done may have to be done again."""
        self.losses += 1
        self._done.clear()

    def carry_out(
        self,
        broker: SimulatedBroker,
        digest: bytes,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        run: Callable[[], Any],
    ) -> Any:
        """What a script returns, which is carried out, and looked at."""
        self._broker = broker
        name = self.name(digest)
        if len(keys) < len(FOR_SCRIPTS) or not keys[0].endswith(b":meta"):
            counts = self._counts(keys) if name == "admit" else None
            reply = run()
            self._wrong(name, keys, b"", self._kept_for_ever(keys))
            if counts is not None:
                if reply[0] == b"ok":
                    self.admitted.append(args[0].decode())
                self._wrong(name, keys, args[0], self._admitted(counts, self._counts(keys), args, reply))
            if name == "dismiss" and any(args[0] in each for each in self._counts(keys)[:2]):
                self._wrong(name, keys, args[0], ["who_is_dismissed_counts_no_more: "])
            if name == "claim":
                self._wrong(name, keys, b"", self._claimed(keys[0], reply[::2]))
            return reply
        if self.before is not None:
            self.before(broker, name, args)
        step, before = _Step(self._broker, name, keys, args), self._log(keys)
        reply = run()
        self._note(name, step.ref, keys, args, reply)
        for each in tuple(self.on_key):
            each(name, keys[0])
        self._wrong(name, keys, args[_TASK], step.wrong(reply))
        self._wrong(name, keys, args[_TASK], self._twice(args, before, self._log(keys)))
        self._wrong(name, keys, args[_TASK], self._kept_for_ever(keys))
        if (args[_OPERATION] or name == "clear") and self.repeated and self._rng.random() < self.repeated:
            reply = self._again(name, keys, args, reply, run)
        return reply

    def _note(self, name: str, ref: str, keys: Sequence[bytes], args: Sequence[bytes], reply: Any) -> None:
        """Remember what tells those who are asked for an attempt whether they may be, and when a task ended."""
        if name == "finish" and reply[0] == b"ok":
            self.ended.setdefault(keys[_AT["task"]], self._broker.now_ms())
            if self.on_gone is not None and _GONE in args:
                self.on_gone(ref)
        if name == "release" and reply[0] == b"waits":
            self.waited.add((ref, int(args[_ATTEMPT])))
        if name == "park" and reply[0] == b"parked" and self.on_parked is not None:
            self.on_parked(ref, int(args[_ATTEMPT]))
        if name == "append" and reply[0] == b"ok":
            self.wrote.add((ref, int(args[_ATTEMPT])))
            calls = [each[len(_MARK) :].decode() for each in args if each.startswith(_MARK)]
            self.marked.update((ref, int(args[_ATTEMPT]), call) for call in calls)

    def _twice(self, args: Sequence[bytes], before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[str]:
        operation = (args[_TASK], args[_OPERATION])
        # A repeat may be the first to reach another server than the one that had the effect: the epoch ends there, and
        # nothing is said again.
        if before[1] != after[1] and args[_OPERATION]:
            if operation in self._done:
                yield f"an_operation_has_one_effect: {before}, then {after}"
            if self._broker.on_lost_write is None:
                self._done.add(operation)

    def _again(
        self, name: str, keys: Sequence[bytes], args: Sequence[bytes], reply: Any, run: Callable[[], Any]
    ) -> Any:
        before = self._log(keys)
        again = run()
        if self._log(keys) != before:
            self._wrong(
                name, keys, args[_TASK], [f"a_repeat_writes_nothing: {before}, then {self._log(keys)}"]
            )
        expected = _REPEATED.get((name, reply[0]), reply[0])
        if again[0] != expected or (expected == reply[0] and again[1:2] != reply[1:2]):
            shown = [[each[0], *map(_short, each[1:2])] for each in (reply, again)]
            self._wrong(name, keys, args[_TASK], [f"a_repeat_returns_the_same: {shown[0]}, then {shown[1]}"])
        return again

    def _log(self, keys: Sequence[bytes]) -> tuple[str, ...]:
        """What tells whether something was written into a session's log."""
        meta = keys[_AT["meta"]].decode()
        return tuple(self._broker.field(meta, field) for field in ("epoch", "seq"))

    def _claimed(self, queue: bytes, jobs: Sequence[bytes]) -> Iterator[str]:
        left = self._broker.item(queue)
        for job in jobs:
            if left is not None and job in left.value:
                yield f"a_launch_is_claimed_once: {job.decode()}"
            yield from _looked_at_soon(self._broker, job.rpartition(b":")[0], self._broker.now_ms())

    def _counts(self, keys: Sequence[bytes]) -> tuple[dict[bytes, float], dict[bytes, float], int]:
        """An owner's turns that count, those of the last minute, and the bytes of its sessions."""
        turns, last_minute, held = (self._broker.item(key) for key in keys[:3])
        since = self._broker.now_ms() - 60_000
        known, lately = (
            {each: item.value[each] for each in item.value} if item else {} for item in (turns, last_minute)
        )
        sums = dict(held.value.items()) if held else {}
        lately = {each: at for each, at in lately.items() if at > since}
        return known, lately, int(sums.get(b"", 0))

    def _admitted(
        self,
        before: tuple[dict[bytes, float], dict[bytes, float], int],
        after: tuple[dict[bytes, float], dict[bytes, float], int],
        args: Sequence[bytes],
        reply: Any,
    ) -> Iterator[str]:
        """Who is let in is counted, and within the limits; who is refused would not be."""
        most_turns, most_rate, most_bytes, cost = (int(args[at]) for at in (1, 2, 4, 6))
        turns, lately, _ = before
        if args[0] in turns or args[0] in lately:
            return
        # Sessions that have expired are taken out first.
        held = after[2] - (cost if reply[0] == b"ok" and most_bytes else 0)
        meets = {
            b"turns": 0 < most_turns <= len(turns),
            b"rate": 0 < most_rate <= len(lately),
            b"bytes": 0 < most_bytes < held + cost,
        }
        if reply[0] == b"ok":
            if any(meets.values()):
                yield f"limits_are_held: {len(turns)} turns, {len(lately)} lately, {held} + {cost} bytes: {args[1:5]}"
            if not any(args[0] in each for each in after[:2]):
                yield "who_is_let_in_is_counted: "
        elif not meets[reply[0]]:
            yield f"who_is_refused_meets_a_limit: {reply}: {len(turns)} turns, {len(lately)} lately, {held} bytes: {args[1:5]}"

    def _wrong(self, name: str, keys: Sequence[bytes], task: bytes, found: Any) -> None:
        for each in found:
            rule, _, what = each.partition(": ")
            self.wrong.append(f"{rule}: {name} of {keys[0].decode()} {task.decode()}: {what}")

    def _kept_for_ever(self, keys: Sequence[bytes]) -> Iterator[str]:
        for key in keys:
            item = self._broker.item(key)
            if item is not None and item.expireat is None and key not in LASTING:
                yield f"no_key_lives_for_ever: {key.decode()}"


class _Step:
    """One script on a session."""

    def __init__(
        self, broker: SimulatedBroker, name: str, keys: Sequence[bytes], args: Sequence[bytes]
    ) -> None:
        self._broker = broker
        self._name = name
        self._keys = keys
        self._args = args
        self.ref = keys[_AT["meta"]].decode()[4:-6] + "/" + args[_TASK].decode()
        self._now = broker.now_ms()
        # A server that was replaced takes, after its time, what was sent to it before, and what its replacement has begun: that
        # is lost.
        self._kept = broker.on_lost_write is None
        self._before = self._task()

    def wrong(self, reply: Any) -> Iterator[str]:
        """What does not hold behind it."""
        if not self._args[_TASK]:
            return
        after = self._task()
        yield from self._move(after)
        yield from self._superseded(reply)
        yield from self._parked(after, reply)
        if after.get("status") in ENDS and "lease" in after:
            yield f"who_does_not_run_has_no_lease: {after['status']}"
        if after and after.get("status") not in ENDS:
            yield from self._counts(after)
            yield from self._open(after)
        yield from self._hint(after, reply)
        yield from self._launched(after, reply)
        yield from self._crashed(after, reply)
        if reply[0] == b"ok" and self._name == "finish":
            yield from self._passed()

    def _move(self, after: Fields) -> Iterator[str]:
        before = self._before
        one, other = before.get("status", ""), after.get("status", "")
        taken = before.get("holder") != after.get("holder")
        if (one != other and other) or (one == other == "running" and taken):
            if self._name not in FOLLOWING.get(one, {}).get(other, ()):
                yield f"statuses_follow_the_diagram: {one} → {other}"
            if (
                self._name == "sweep"
                and int(before.get("lease", "0")) > self._now
                and self._broker.steps.lives(before.get("worker", ""))
            ):
                yield f"a_living_holder_keeps_its_turn: its lease has {int(before['lease']) - self._now} ms"
        if taken and after.get("holder") and int(after["attempt"]) != int(before.get("attempt", "0")) + 1:
            yield f"each_holder_has_its_number: {before.get('attempt')} → {after['attempt']}"
        if int(after.get("number", "0")) < int(before.get("number", "0")):
            yield f"numbers_grow: {before['number']} → {after.get('number')}"

    def _superseded(self, reply: Any) -> Iterator[str]:
        if self._name not in _WRITERS or reply[0] in _REFUSED:
            return
        before, attempt, holder = self._before, self._args[_ATTEMPT].decode(), self._args[_HOLDER].decode()
        if before.get("attempt") != attempt or (holder and before.get("holder") != holder):
            now = f"{before.get('attempt')} of {before.get('holder')}"
            yield f"a_superseded_attempt_writes_nothing: attempt {attempt} of {holder}, now is {now}"
        if (operation := int(self._args[_OPERATION] or 0)) and reply[0] != b"behind" and self._kept:
            # Who writes the next has heard of the last, and goes on from it.
            written, kept = self._broker.steps.written, int(before.get("op", "0"))
            last = written.get((self.ref, holder), operation)
            if kept < last != operation:
                yield f"who_goes_on_has_lost_nothing: {operation} behind {kept}, which lacks {last}"
            written[self.ref, holder] = operation

    def _parked(self, after: Fields, reply: Any) -> Iterator[str]:
        """Who parks leaves an entry, whose place it remembers; nobody else does."""
        before, now = self._before.get("parks", "").split(), after.get("parks", "").split()
        if self._name == "park" and reply[0] == b"parked" and self._before.get("status") == "running":
            before.append(f"{self._hash('meta')['seq']}-{len(before) + 1}")
        if after and now != before:
            yield f"each_park_has_its_entry: {now}, not {before}"

    def _counts(self, after: Fields) -> Iterator[str]:
        calls = self._hash("calls")
        unanswered = sum(f"{call}:result" not in calls for call in calls if not call.endswith(":result"))
        if int(after.get("pending", "0")) != unanswered:
            yield f"pending_calls_are_counted: {after.get('pending')}, not {unanswered}"
        if after["status"] == "parked" and (not unanswered or "parked_until" not in after):
            yield f"who_is_parked_waits_for_an_answer: {unanswered} until {after.get('parked_until')}"
        if after["status"] != "running" and "lease" in after:
            yield f"who_does_not_run_has_no_lease: {after['status']}"

    def _open(self, after: Fields) -> Iterator[str]:
        """A message that stands whole in the history is open no more: what ends the task would say it again."""
        opened = {int(place): name for name, place in after.items() if name.startswith("open:")}
        history: Any = self._broker.item(self._keys[_AT["history"]])
        if not opened or history is None:
            return
        for key in reversed(history.value._ids):
            if key.seq < min(opened):
                return
            words = history.value._values_dict[key]
            if (place := int(words[words.index(b"o") + 1])) in opened:
                yield f"what_is_said_is_not_open: {opened[place]}"

    def _hint(self, after: Fields, reply: Any) -> Iterator[str]:
        if reply[0] not in _HINTED.get(self._name, ()):
            return
        if DUE.encode() not in self._keys:
            yield from self._hint_apart(after)
            return
        if self._name == "submit" and self._before:
            # Repeated after a rescuer has launched the turn: it is looked at again when its deadline has passed.
            return
        yield from _looked_at_soon(self._broker, self.ref.encode(), self._now)

    def _hint_apart(self, after: Fields) -> Iterator[str]:
        """Where hints are on another server, one was there before; it may be in a rescuer's hands, who looks soon."""
        hints = self._broker.steps.hints
        unchanged = all(self._before.get(name) == after.get(name) for name in ("status", "attempt"))
        # A rescuer that takes a turn has its hint in hand.
        in_hand = self._name == "take" and self._args[-1] == NOT_APART.encode()
        if hints is None or hints.losses or not self._kept or unchanged or in_hand:
            return
        # Hints were dated by another clock, which may have been set back since.
        yield from _looked_at_soon(hints, self.ref.encode(), hints.clock_ms() + SET_BACK_MS)

    def _launched(self, after: Fields, reply: Any) -> Iterator[str]:
        """A turn that waits is launched when its time has come, and waits no more then."""
        if (self._name, reply[0]) not in (("sweep", b"launch"), ("begin", b"begun")):
            return
        # One that waits for its agent's version is offered to workers that serve it, to be begun at once.
        offered = self._name == "begin" and self._before.get("waits_for") == WAITS_FOR
        left = int(self._before.get("not_before", "0")) - self._now
        if left > SET_BACK_MS and not offered and self._kept:
            yield f"nothing_is_launched_before_its_time: {left} ms"
        if "not_before" in after or "waits_for" in after:
            yield f"who_is_launched_waits_no_more: for {after.get('waits_for')}"

    def _crashed(self, after: Fields, reply: Any) -> Iterator[str]:
        """A worker that is lost with a turn counts, and the last one that may be ends it; who ends it does it for that reason."""
        before = self._before
        lost, known = (int(each.get("crashes", "0")) for each in (after, before))
        if self._name == "sweep" and (before.get("status"), after.get("status")) == ("running", "queued"):
            known += 1
        if after and lost < known:
            yield f"lost_workers_are_counted: {lost}, not {known}"
        if self._name == "sweep" and lost > int(before.get("crashes", "0")):
            ends = reply[0] == b"end" and reply[3] == b"failed worker_lost"
            if ends != (lost >= _MOST_LOST):
                yield f"as_many_lost_workers_end_a_turn: {lost} are lost: {_short(reply)}"
        if (self._name, reply[0]) == ("finish", b"ok") and "ending" in before:
            told = f"{after.get('status')} {after.get('why', '')}".strip()
            if told != before["ending"].strip():
                yield f"a_turn_ends_as_was_said: {told}, not {before['ending']}"

    def _passed(self) -> Iterator[str]:
        active = self._hash("meta").get("active", "")
        if not active:
            return
        task = self._fields(self._keys[_AT["task"]].decode().rpartition(":")[0] + ":" + active)
        if task.get("status") in ENDS or (task.get("status") == "queued" and task.get("launch") == "0"):
            yield f"the_turn_is_passed_on: to {active}, {task.get('status')}, launch {task.get('launch')}"

    def _task(self) -> Fields:
        fields = self._hash("task")
        # A look that found no task left its mark.
        return fields if "status" in fields else {}

    def _hash(self, name: str) -> Fields:
        return self._fields(self._keys[_AT[name]].decode())

    def _fields(self, key: str) -> Fields:
        item = self._broker.item(key.encode())
        if item is None:
            return {}
        return {
            name.decode(): bytes(value).decode(errors="replace")
            for name, value in dict(item.value.items()).items()
        }


def _looked_at_soon(broker: Store, ref: bytes, now: float) -> Iterator[str]:
    """A rescuer looks at the task, whoever dies with it in hand. ``now``: by the broker's clock, Unix milliseconds."""
    due = broker.item(DUE.encode())
    at = due.value[ref] if due is not None and ref in due.value else None
    # Clocks are read in whole milliseconds, here and there.
    if at is None or at > now + LAUNCH_GRACE_MS + 2:
        yield f"a_rescuer_looks_soon: {ref.decode()} at {at}, now is {now:.0f}"


def _body(text: str) -> str:
    """A script without its flags, as it stands at the end of what the broker gets."""
    return text.partition("\n")[2] if text.startswith("#!") else text


def _short(value: Any) -> str:
    return str(value)[:80]
