"""The end of a task: one way to write it, for a worker that is done and for whoever ends a turn from outside.

Stop, clear, expiry and a crash too many all do the same: take an attempt (which fences the worker),
close what is open with what was said so far, write the terminal event, pass the session's turn on.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import structlog
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command, connected, reconnect
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.broker.retry import (
    FIRST_DELAY_SECONDS,
    LONGEST_DELAY_SECONDS,
    Retrying,
    is_transient,
)
from turnstream.shared.errors import BrokerAway
from turnstream.shared.protocol import Fold, incomplete_events
from turnstream.shared.session.batch import BACKGROUND, MODEL_CALLS, Batch
from turnstream.shared.session.cancellation import Reason
from turnstream.shared.session.entry import END, Cursor, Entry
from turnstream.shared.session.event_log import Lacking
from turnstream.shared.session.outcomes import (
    Attempt,
    Ended,
    Finished,
    Gone,
    HintUsed,
    Moved,
    Renewed,
)
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.storage import Storage
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from turnstream.shared.offload import ThreadOffload
    from turnstream.shared.session.event_log import Log
    from turnstream.shared.session.outcomes import Refusal
    from turnstream.shared.session.queue import LaunchQueue
    from turnstream.shared.session.tasks import Tasks

log = structlog.get_logger(__name__)

T = TypeVar("T")

# What the client is told when nobody else says it better. Codes are stable; texts may be reworded.
TEXTS = {
    "worker_lost": "The turn was lost with its worker, more than once. Send it again.",
    "deadline": "The turn took longer than its agent allows.",
    "call_expired": "The client did not answer a call in time.",
}

# How often an ender tries again that lost its attempt to another ender. Each of them writes the same
# end, so the first to finish settles it for all.
MOST_TRIES = 20

# Turns of a session that are ended in one go; each brings its request.
ENDED_AT_ONCE = 32

# Checkpoint: the model that answered last, where there is a choice; the terminal event names it.
ANSWERED_BY = "answered_by"
# A checkpoint as well: why the model did not finish its answer, `length` or `content_filter`.
CUT_SHORT = "cut_short"

NO_USAGE = b'{"input_tokens":0,"output_tokens":0,"total_tokens":0}'

# A terminal event around its output, as `_terminal` makes it. In a JSON text the quotes would not stand so.
_OUTPUT, _BEHIND = b',"output":[', b'],"usage":'

# How long the end of a turn is retried by who has others to see to: a request whose client waits, a rescuer to which the
# turn is due again soon.
END_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Ender(Retrying):
    """What is needed to end a task: the scripts, the log, the queue for the session's next turn."""

    tasks: Tasks
    log: Log
    launches: LaunchQueue
    primary: Redis

    @property
    def offload(self) -> ThreadOffload:
        """Where large turns are written."""
        return self.tasks.offload

    @property
    def storage(self) -> Storage:
        """Where to report what a session holds."""
        return Storage(self.once.primary, self.once.tasks.redis)


@dataclass(frozen=True, slots=True)
class End:
    """How a turn ends.

    Attributes:
        status: completed, failed or canceled.
        why: a code for operators and, when it failed, for the client; empty when completed.
        text: the error's public text.
        usage: tokens of the turn; None: what was checkpointed.
        memory: what the model has seen, JSON; None: what can be known from outside.
        traceback: of what the agent raised, for operators; empty unless debugging.
    """

    status: str
    why: str = ""
    text: str = ""
    usage: dict[str, Any] | None = None
    memory: bytes | None = None
    traceback: str = ""


class AttemptRefused(Exception):  # noqa: N818 - it is not an error to lose an attempt
    """The log refuses an attempt that something was to be read for."""

    def __init__(self, outcome: Refusal) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Open:
    """An open message: the entry that began it, and what was said of it so far."""

    first: Entry
    fold: Fold


async def write_end(
    ender: Ender,
    attempt: Attempt,
    end: End,
    *,
    output: list[bytes] | None = None,
    begun: dict[str, Open] | None = None,
    more: Batch | None = None,
) -> Finished | Refusal:
    """Close what is open, write the terminal event with the whole output, pass the turn on.

    ``output`` is the task's closed messages as canonical JSON, in the order in which they were begun, when
    the holder knows that it has seen them all; else they are read from the history. ``begun`` is its open messages, where
    they were read already. ``more`` goes before the end.

    Raises:
        BrokerAway: the broker did not answer.
    """
    try:
        begun = await open_messages(ender, attempt) if begun is None else begun
        output = await completed_messages(ender, attempt) if output is None else output
    except AttemptRefused as refused:
        return refused.outcome
    batch = more or Batch(known=attempt.files)
    messages, said = close_open(begun, batch)
    extra = orjson.dumps({"traceback": end.traceback}) if end.traceback else b""
    usage = end.usage if end.usage is not None else orjson.loads(attempt.state.get("usage", NO_USAGE))
    batch.end(_terminal(attempt, end, usage, [*output, *messages]), extra=extra)
    size = sum(map(len, (*output, end.memory or attempt.task.get("request", b""))))
    memory = await ender.offload.run_large(
        attempt.ref.owner, size, _remembered, attempt, end, batch, said, [*output, *messages]
    )
    op = operation()
    outcome = await ender.tasks.finish(
        attempt.ref,
        attempt.claim,
        batch,
        op,
        status=end.status,
        why=end.why,
        memory=memory,
        text=end.text if end.status == TaskStatus.FAILED else "",
        usage=orjson.dumps(usage),
        model_calls=attempt.state.get(MODEL_CALLS, b""),
    )
    if isinstance(outcome, Finished):
        if outcome.next:
            following = TaskRef(attempt.ref.owner, attempt.ref.session, outcome.next)
            launching = ender.launches.launch(following, outcome.launch)
            # The turn is passed on in the broker; a cancellation that comes now must not drop the launch.
            await asyncio.shield(launching)
        _note_end(attempt, end, usage)
        await _unlist(ender, attempt)
    return outcome


def _note_end(attempt: Attempt, end: End, usage: dict[str, Any]) -> None:
    """Count the end, and log it."""
    seconds = max(0.0, time.time() - attempt.submitted / 1000)
    owner = metrics.owners.label(attempt.ref.owner)
    metrics.turns_ended.add(end.status)
    metrics.turn_seconds.add(seconds, attempt.agent, end.status)
    metrics.owner_turns.add(owner, end.status)
    metrics.owner_tokens.add(owner, n=usage["total_tokens"])
    if end.status == TaskStatus.FAILED:
        metrics.turns_failed.add(attempt.agent, metrics.code_label(end.why))
    spent = {"tokens": usage["total_tokens"]}
    if (cost := usage.get("cost_usd")) is not None:
        metrics.owner_cost.add(owner, n=cost)
        spent["cost_usd"] = cost
    log.info(
        "task.ended",
        ref=str(attempt.ref),
        agent=attempt.agent,
        attempt=attempt.number,
        status=end.status,
        why=end.why,
        seconds=round(seconds, 3),
        **spent,
    )


async def _unlist(ender: Ender, attempt: Attempt) -> None:
    """Take an ended task off the list of live ones; should that fail, a worker finds it there later."""
    try:
        await asyncio.gather(
            ender.once.launches.ended(attempt.ref, attempt.task["submit_op"].decode()),
            ender.storage.try_report(attempt.ref.keys),
        )
    except Exception as error:
        if not (is_transient(error) or isinstance(error, ResponseError)):
            raise
        log.info("task.still_listed", ref=str(attempt.ref), error=str(error))


async def end_from_outside(
    ender: Ender, ref: TaskRef, status: str, why: str, *, who: str, seen: str = ""
) -> Finished | Moved | Ended | Gone:
    """End a task that a worker may be running.

    After `Finished` and `Ended`, the terminal event is in the log. `Gone`: there is no such task. With ``seen`` (what the
    rescuer saw) nothing is done if the task went on since: `Moved`.

    Raises:
        BrokerAway: the broker did not answer; the rescuer ends the task if an attempt was taken.
        RuntimeError: other enders took the task away each time; they write its end.
    """
    # A rescuer that saw it has its hint in hand.
    look = not seen
    since = connected(ender.tasks.redis)
    for number in range(1, MOST_TRIES + 1):
        taken = await _take(ender, ref, f"{status} {why}", who, seen, look=look)
        if not isinstance(taken, Attempt):
            return taken
        reason = Reason.STOP if status == TaskStatus.CANCELED else Reason.LEASE_LOST
        end = End(status, why, TEXTS.get(why, ""))
        outcome: Finished | Refusal
        try:
            begun, outputs = await _tell_and_read(ender, [taken], reason)
        except AttemptRefused as refused:
            outcome = refused.outcome
        else:
            outcome = await write_end(ender, taken, end, output=outputs[ref.task], begun=begun[ref.task])
        if isinstance(outcome, Finished | Ended | Gone):
            return outcome
        # Another ender took the next attempt. Its end serves as well; wait a moment, differently long, and longer each
        # time: where the broker is slow, all of them take the attempt from each other within one end.
        seen = ""
        await asyncio.sleep(random.uniform(0.005, 0.05 * number))  # noqa: S311
    # Or the connection on which it is taken leads elsewhere than the one on which ends are written.
    reconnect(ender.tasks.redis, since)
    raise RuntimeError(f"{MOST_TRIES} enders in a row took {ref} from each other")


async def end_all(ender: Ender, refs: Sequence[TaskRef], status: str, why: str, *, who: str) -> None:
    """End tasks of one session as `end_from_outside` does, many at once: what they said is read together.

    Given the newest first, none of those that wait is launched before its own end.

    Raises:
        BrokerAway: the broker did not answer; some may have ended.
    """
    for place in range(0, len(refs), ENDED_AT_ONCE):
        page = refs[place : place + ENDED_AT_ONCE]
        took = await asyncio.gather(
            *(_take(ender, ref, f"{status} {why}", who, "", look=True) for ref in page)
        )
        attempts = [each for each in took if isinstance(each, Attempt)]
        if not attempts:
            continue
        end = End(status, why, TEXTS.get(why, ""))
        outcomes: Sequence[Finished | Refusal | None]
        try:
            begun, outputs = await _tell_and_read(ender, attempts, Reason.STOP)
        except AttemptRefused:
            # One of them is another's by now; each is seen to by itself.
            outcomes = [None] * len(attempts)
        else:
            outcomes = await asyncio.gather(
                *(
                    write_end(ender, each, end, output=outputs[each.ref.task], begun=begun[each.ref.task])
                    for each in attempts
                )
            )
        for each, outcome in zip(attempts, outcomes, strict=True):
            if not isinstance(outcome, Finished | Ended | Gone):
                await end_from_outside(ender, each.ref, status, why, who=who)


async def _take(
    ender: Ender, ref: TaskRef, ending: str, who: str, seen: str, *, look: bool
) -> Attempt | Moved | Ended | Gone:
    """Take the attempt that ends a task; with ``look`` a rescuer looks soon whether it has ended.

    This process may die before it has written the end and passed the turn on, and what stands still (parked, waiting
    for a worker) is looked at rarely.
    """
    op = operation()

    def take(known_look: str) -> Awaitable[Attempt | Moved | HintUsed | Ended | Gone]:
        return ender.tasks.take(ref, who, ending, op, seen, look=look, known_look=known_look)

    return await ender.launches.hinted(ref, take, here=not look or ender.tasks.notes)


async def _tell_and_read(
    ender: Ender, attempts: Sequence[Attempt], reason: Reason
) -> tuple[dict[str, dict[str, Open]], dict[str, list[bytes]]]:
    """Tell former holders that their attempts were taken; meanwhile read what these left open, and what they closed.

    They are fenced already; telling them saves their work. They are not waited for.

    Raises:
        AttemptRefused: the log refuses one of the attempts.
    """
    # One that only waited has said nothing but that it is queued.
    spoke = [each for each in attempts if int(each.task["number"]) > 1]

    async def read() -> tuple[dict[str, dict[str, Open]], dict[str, list[bytes]]]:
        return await _begun(ender, attempts), await _outputs(ender, spoke)

    telling = asyncio.create_task(_tell(ender, attempts, reason))
    try:
        begun, outputs = await _known(ender, attempts, read)
    except BaseException:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        raise
    await telling
    return begun, {each.ref.task: outputs.get(each.ref.task, []) for each in attempts}


async def _tell(ender: Ender, attempts: Sequence[Attempt], reason: Reason) -> None:
    said = [f"{each.ref} {each.number} {reason}{_unread(each)}" for each in attempts]
    await asyncio.gather(*(command(ender.primary, "PUBLISH", keys.CONTROL, each) for each in said))


def _unread(attempt: Attempt) -> str:
    """The turn's background responses, which its model's provider need not go on with, behind a space."""
    kept = attempt.state.get(BACKGROUND, b"{}")
    return "" if kept == b"{}" else " " + kept.decode().replace(" ", "\\u0020")


async def open_messages(ender: Ender, attempt: Attempt) -> dict[str, Open]:
    """What an attempt, or the one before it, left open: message → what it said so far, in the order in which they were begun.

    Raises:
        AttemptRefused: the log refuses the attempt.
    """
    return (await _known(ender, [attempt], lambda: _begun(ender, [attempt])))[attempt.ref.task]


def close_open(begun: dict[str, Open], batch: Batch) -> tuple[list[bytes], str]:
    """Put into ``batch`` the events that close open messages, with what they said so far.

    Returns those messages as canonical JSON, and the text of the agent's own ones.
    """
    messages: list[bytes] = []
    said = ""
    for message, known in begun.items():
        first = known.first
        for body in incomplete_events(known.fold.messages[message]):
            batch.closing(message, first.kind, body, path=first.path, extra=first.extra)
            messages.append(body)
        if first.kind == "message" and not first.path:
            said += known.fold.text_so_far(message)
    return messages, said


async def _begun(ender: Ender, attempts: Sequence[Attempt]) -> dict[str, dict[str, Open]]:
    """Task → its open messages by their ids, in the order in which they were begun; all are of one session."""
    begun: dict[str, dict[str, Open]] = {each.ref.task: {} for each in attempts}
    places = [place for each in attempts for place in each.open.values()]
    if not places:
        return begun
    newest = max(attempts, key=lambda each: each.claim.seen)
    before = Cursor(newest.epoch, min(places) - 1)
    waiting = {each.ref.task: each.open for each in attempts if each.open}
    # Nothing of these tasks is appended any more: what is there now is all.
    async for entry in ender.log.all_after(newest.ref.keys, before, newest.claim.seen):
        if entry.task not in waiting or (message := message_of(entry.event)) not in waiting[entry.task]:
            continue
        opened = begun[entry.task]
        if message not in opened:
            opened[message] = Open(entry, Fold())
        opened[message].fold.feed(entry.event)
    return begun


async def completed_messages(ender: Ender, attempt: Attempt) -> list[bytes]:
    """The task's closed messages so far, in the order in which they were begun.

    Raises:
        AttemptRefused: the log refuses the attempt.
    """
    return (await _known(ender, [attempt], lambda: _outputs(ender, [attempt])))[attempt.ref.task]


async def _known(ender: Ender, attempts: Sequence[Attempt], read: Callable[[], Awaitable[T]]) -> T:
    """What is read of a session that has all that these attempts know of it.

    Where it has not, it was lost or dropped: then the log refuses one of them. Or the reading was done elsewhere, as while a failover
    goes on: then it is repeated.

    Raises:
        AttemptRefused: the log refuses one of them.
        BrokerAway: the broker did not answer.
    """
    until = asyncio.get_running_loop().time() + ender.retry_seconds
    delay = FIRST_DELAY_SECONDS
    while True:
        since = connected(ender.tasks.redis)
        try:
            return await read()
        except Lacking:
            for each in attempts:
                outcome = await ender.tasks.renew(each.ref, each.claim)
                if not isinstance(outcome, Renewed):
                    raise AttemptRefused(outcome) from None
        if asyncio.get_running_loop().time() > until:
            raise BrokerAway
        # What answered is not where it was written: other connections lead there.
        reconnect(ender.tasks.redis, since)
        await asyncio.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY_SECONDS)


async def _outputs(ender: Ender, attempts: Sequence[Attempt]) -> dict[str, list[bytes]]:
    """Task → its closed messages so far, in the order in which they were begun; all are of one session."""
    outputs: dict[str, list[bytes]] = {each.ref.task: [] for each in attempts}
    if not attempts:
        return outputs
    oldest = min(attempts, key=lambda each: each.first)
    before_it = Cursor(oldest.epoch, oldest.first - 1)
    seen = max(each.claim.seen for each in attempts)
    entries = [
        entry
        async for entry in ender.log.all_kept(oldest.ref.keys, before_it, seen)
        if entry.task in outputs and entry.kind != END and numbered(entry.event)
    ]
    for entry in sorted(entries, key=lambda entry: entry.opened):
        outputs[entry.task].append(without_number(entry.event))
    return outputs


def numbered(event: bytes) -> bool:
    """Whether the event is part of the response; the user's own message is not."""
    return event.startswith(b'{"sequence_number":')


def without_number(event: bytes) -> bytes:
    """The event as it was before the log numbered it."""
    return b"{" + event[event.index(b",") + 1 :] if numbered(event) else event


def message_of(event: bytes) -> str:
    """The id of the message that a message or content event belongs to; empty for a response."""
    parsed = orjson.loads(event)
    if parsed.get("object") == "message":
        return str(parsed.get("id", ""))
    return str(parsed.get("msg_id", ""))


def response_event(attempt: Attempt, status: str) -> bytes:
    """A ``response`` event of a turn that goes on."""
    return orjson.dumps(_response(attempt, status))


def _response(attempt: Attempt, status: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "object": "response",
        "status": status,
        "id": attempt.response,
        "session_id": attempt.ref.session,
        "created_at": attempt.submitted // 1000,
    }
    if attempt.metadata:
        event["metadata"] = orjson.Fragment(attempt.metadata)
    return event


def _terminal(attempt: Attempt, end: End, usage: dict[str, Any], output: list[bytes]) -> bytes:
    event = _response(attempt, end.status)
    event["completed_at"] = max(int(time.time()), attempt.submitted // 1000)
    event["output"] = [orjson.Fragment(message) for message in output]
    event["usage"] = usage
    notes = {"model": ANSWERED_BY, "cut_short": CUT_SHORT}
    if told := {key: note.decode() for key, name in notes.items() if (note := attempt.state.get(name))}:
        event["metadata"] = {**orjson.loads(attempt.metadata or b"{}"), **told}
    if end.status == TaskStatus.FAILED:
        event["error"] = {"code": end.why, "message": end.text}
    return orjson.dumps(event)


def split_end(event: bytes) -> tuple[dict[str, Any], bytes]:
    """A terminal event, read but for its output (None in its place), and the messages of that as they stand there.

    The output may be large, and nothing of it is to be changed.
    """
    at, behind = event.index(_OUTPUT), event.rindex(_BEHIND)
    said = orjson.loads(b'%b,"output":null,%b' % (event[:at], event[behind + 2 :]))
    return said, event[at + len(_OUTPUT) : behind]


def _remembered(attempt: Attempt, end: End, batch: Batch, said: str, output: list[bytes]) -> bytes:
    """What the session remembers of the turn; it and the batch without their large data."""
    batch.cut_all()
    element = end.memory if end.memory is not None else _memory(attempt, end, said, output)
    return batch.cut(named(attempt.ref.task, element))


def named(task: str, element: bytes) -> bytes:
    """An element of the memory, a JSON object, with the turn that it is of."""
    return b'{"task":"%b",%b' % (task.encode(), element[1:]) if element.startswith(b'{"') else element


def _memory(attempt: Attempt, end: End, said: str, output: list[bytes]) -> bytes:
    """What the next turn's model should know of one that was ended from outside or failed."""
    request = orjson.loads(attempt.task.get("request", b"{}"))
    element: dict[str, Any] = {"input": request.get("input", []), "status": end.status}
    if (messages := attempt.state.get("messages")) is not None:
        element["messages"] = orjson.Fragment(messages)
    if said:
        element["said"] = said
    elif (
        end.status == TaskStatus.CANCELED and messages is None and (attempt.fresh or _spoke(attempt, output))
    ):
        # Its model was never asked, or had begun: it did not hang on this input.
        element["whole"] = True
    return orjson.dumps(element)


def _spoke(attempt: Attempt, output: list[bytes]) -> bool:
    """Whether a model thought, or finished a draft that nobody heard, which was counted."""
    return "usage" in attempt.state or any(
        orjson.loads(message).get("type") in {"message", "reasoning"} for message in output
    )


__all__ = [
    "End",
    "Ender",
    "close_open",
    "completed_messages",
    "end_all",
    "end_from_outside",
    "open_messages",
    "response_event",
    "split_end",
    "write_end",
]
