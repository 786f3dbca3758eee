"""Taking a user's turn: the same for both protocols."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_core import PydanticSerializationError

from turnstream.api.access.session_access import visible_session
from turnstream.api.streaming import start_position
from turnstream.api.streaming.start_position import Start
from turnstream.api.turns import attachments
from turnstream.api.turns.durable_submit import accept, replica_headers
from turnstream.api.turns.overrides import NONE, Overrides
from turnstream.shared import metrics, tracing
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import (
    BadRequest,
    BodyTooLarge,
    IdempotencyMismatch,
    InvalidBody,
    NoSession,
    Overloaded,
    SessionBusy,
    TooMany,
)
from turnstream.shared.protocol import Message, MessageType, Role, RunStatus, canonical, new_message_id
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.endings import end_from_outside
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import (
    Busy,
    Foreign,
    Full,
    Interrupt,
    Launch,
    Missing,
    Same,
    TurnSubmission,
    Waits,
)
from turnstream.shared.session.status import TaskStatus
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.session.owner_limits import Room

# Turns that may get in the way of one that interrupts, one after the other.
MOST_INTERRUPTED = 20

# What lua/submit.lua calls it.
FIRST_LAUNCH = 1

RESPONSE_PREFIX = "response_"

_PRINTABLE = re.compile(r"[\x20-\x7e]{1,256}", re.ASCII)
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

# The Java edition says who speaks by the message's type.
_SPEAKERS: dict[str, str] = {
    MessageType.USER: Role.USER,
    MessageType.SYSTEM: Role.SYSTEM,
    MessageType.ASSISTANT: Role.ASSISTANT,
}


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn as a client sent it.

    Attributes:
        ref: the task it becomes.
        response: its response's id.
        user: whom the session belongs to, or empty.
        create: whether the session may be made by it.
        input: the turn's messages.
        idempotency: what `idempotency_of` gave.
        digest: what `digest_of` gave.
        trace: W3C trace parent, or empty.
        overrides: what is asked of the model.
        size: bytes of the request that brought it.
        approvals: tools for which its client can be asked for consent; None: for all.
        beside: what its protocol keeps beside the user's message, see ``extra`` of `Entry`.
    """

    ref: TaskRef
    response: str
    user: str
    create: bool
    input: list[Message]
    idempotency: str
    digest: str
    trace: str
    overrides: Overrides = NONE
    size: int = 0
    approvals: tuple[str, ...] | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The turn is in the log, its first entry at ``epoch``-``first``."""

    epoch: int
    first: int
    replicas: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """The turn was taken before, as ``task``."""

    task: str


def task_of_response(response: str) -> str:
    """The task id of a response id."""
    return response.removeprefix(RESPONSE_PREFIX)


def new_task_id() -> str:
    """A fresh task id."""
    return str(uuid.uuid4())


def idempotency_of(request: Request) -> str:
    """The request's ``Idempotency-Key``, hashed; empty without the header.

    Raises:
        BadRequest: the key is longer than 256 characters, or has some that cannot be printed.
    """
    key = request.headers.get("idempotency-key", "")
    if not key:
        return ""
    if not _PRINTABLE.fullmatch(key):
        raise BadRequest("Idempotency-Key: at most 256 printable characters.")
    return hashlib.sha256(key.encode()).hexdigest()


def derived_session(caller: Caller, name: str) -> str:
    """The session of a request that names none but can be told from others: a repeat finds it again."""
    text = f"{caller.owner}\x00{caller.spec.name}\x00{name}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def trace_of(request: Request) -> str:
    """The request's W3C trace parent, or empty."""
    given = request.headers.get("traceparent", "")
    return given if _TRACE_PARENT.fullmatch(given) else ""


async def begin(services: Services, caller: Caller, turn: NewTurn) -> tuple[Start, Headers]:
    """Take a turn, or find the task that it made before; where to follow it from, and what else to tell.

    Raises:
        As `submit`, `visible_session` and `start_position.start`.
    """
    taken = await submit(services, caller, turn)
    if isinstance(taken, Accepted):
        start = Start(Cursor(taken.epoch, taken.first - 1), turn.ref.task, fresh=True, new=True)
        return start, replica_headers(taken.replicas)
    meta = await visible_session(services.log, turn.ref.keys, caller.visitor(turn.user))
    return await start_position.start(services.log, turn.ref.keys, meta, task=taken.task), ()


async def submit(services: Services, caller: Caller, turn: NewTurn) -> Accepted | Known:
    """Take a turn, once: a repeat finds the task that the first request made.

    Raises:
        NoSession: the session is unknown, or belongs to another agent or user.
        SessionBusy: the session takes no more turns at the moment.
        TooMany: the session has too many turns waiting, or the key's limits are reached.
        BodyTooLarge: the turn takes more than all sessions of the owner may hold.
        Overloaded: too many turns of all owners wait.
        IdempotencyMismatch: the id or idempotency key was used for something else.
        InvalidBody: the input cannot be written as JSON, or has parts that the agent does not take.
        BrokerAway: the broker did not answer.
    """
    if why := attachments.refusal(caller.spec, turn.input):
        raise InvalidBody(why)
    with tracing.submitting(turn.trace, turn.ref) as trace:
        prepared = await services.offload.run_large(caller.owner, turn.size, _prepare, caller, turn, trace)
        return await _submit(services, caller, turn, prepared)


async def _submit(
    services: Services, caller: Caller, turn: NewTurn, prepared: TurnSubmission
) -> Accepted | Known:
    spec = caller.spec
    op = operation()
    counted = await _admit(services, caller, turn, op, _size(prepared))
    for _ in range(MOST_INTERRUPTED):
        outcome, replicas = await accept(
            services,
            turn.ref,
            lambda tasks, look: tasks.submit(turn.ref, prepared, op, look),
            what="submit",
            number=FIRST_LAUNCH,
        )
        if counted and not isinstance(outcome, Launch | Waits | Interrupt):
            await services.limiter.dismiss(turn.ref, op, counted)
        match outcome:
            case Launch(_, epoch, first):
                metrics.turns_submitted.n += 1
                if first == 1:
                    services.storage.report_soon(turn.ref.keys)
                return Accepted(epoch, first, replicas)
            case Waits(epoch, first):
                metrics.turns_submitted.n += 1
                await services.launches.note(turn.ref)
                return Accepted(epoch, first, replicas)
            case Same(task, digest):
                # What an older release kept is longer, or nothing, and is no digest of the same bytes.
                if len(digest) == len(turn.digest) and digest != turn.digest:
                    # Who may not see the session does not learn that there is such a turn.
                    await visible_session(services.log, turn.ref.keys, caller.visitor(turn.user))
                    raise IdempotencyMismatch
                return Known(task)
            case Missing() | Foreign():
                raise NoSession
            case Busy():
                raise SessionBusy
            case Full():
                metrics.turns_refused.add("session")
                raise TooMany(
                    "Too many turns of this session have not ended: wait for some of them, or stop them."
                )
            case Interrupt(other):
                why = "interrupt" if spec.busy == "interrupt" else "superseded"
                ref = TaskRef(turn.ref.owner, turn.ref.session, other)
                await end_from_outside(services.ender, ref, TaskStatus.CANCELED, why, who="client")
    if counted:
        await services.limiter.dismiss(turn.ref, op, counted)
    raise SessionBusy


async def _admit(services: Services, caller: Caller, turn: NewTurn, op: str, size: int) -> Room | None:
    """Have this submit of the turn counted, of which ``size`` bytes are kept; what it was counted with, if it was.

    A repeat is never refused: it begins nothing, its client wants to know what became of the turn.
    """
    try:
        return await services.limiter.admit(turn.ref, op, caller, size)
    except (TooMany, BodyTooLarge, Overloaded):
        keys = turn.ref.keys
        sessions = services.broker.sessions
        known = await asyncio.gather(
            command(sessions, "HEXISTS", keys.task(turn.ref.task), "status"),
            command(sessions, "EXISTS", keys.idempotency(turn.idempotency or "-")),
        )
        if not any(known):
            raise
        return None


def _prepare(caller: Caller, turn: NewTurn, trace: str) -> TurnSubmission:
    batch = Batch()
    try:
        messages = [_settled(message) for message in turn.input]
        # Without their large data from here on: to look through it takes as long as all the rest.
        said = [batch.cut(canonical(message)) for message in messages]
        seen = [
            body
            if message.role != Role.SYSTEM or caller.spec.system_messages
            else batch.cut(_as_user(message))
            for message, body in zip(messages, said, strict=True)
        ]
    except (PydanticSerializationError, RecursionError, ValueError):
        raise InvalidBody("input: nested too deeply, or not valid Unicode") from None
    queued: dict[str, Any] = {
        "object": "response",
        "status": RunStatus.Queued.value,
        "id": turn.response,
        "session_id": turn.ref.session,
        "created_at": int(time.time()),
    }
    metadata: dict[str, Any] = {}
    if turn.overrides.ignored:
        metadata = queued["metadata"] = {"ignored": turn.overrides.ignored}
    batch.status(orjson.dumps(queued))
    extra = orjson.dumps(turn.beside) if turn.beside else b""
    spoken = [
        body
        for message, body in zip(messages, said, strict=True)
        if message.role == Role.USER and message.type == MessageType.MESSAGE
    ]
    # What is kept beside the first one needs a message where no user says anything, too.
    for body in spoken or (said[:1] if extra else ()):
        batch.user_message(body, extra=extra)
        extra = b""
    batch.cut_all()
    request: dict[str, Any] = {
        "input": [orjson.Fragment(body) for body in seen],
        "user": turn.user,
        "overrides": turn.overrides.settings,
        "tools": [tool.model_dump() for tool in turn.overrides.tools],
    }
    if turn.overrides.output_schema is not None:
        request["output_schema"] = turn.overrides.output_schema
    if turn.approvals is not None:
        request["approvals"] = turn.approvals
    return TurnSubmission(
        agent=caller.spec.name,
        user=turn.user,
        create=turn.create,
        busy=caller.spec.busy,
        parked=caller.spec.parked,
        request=batch.cut(orjson.dumps(request)),
        response=turn.response,
        metadata=orjson.dumps(metadata) if metadata else b"",
        deadline_ms=int(caller.spec.deadline * 1000),
        idempotency=turn.idempotency,
        digest=turn.digest,
        trace=trace,
        batch=batch,
        memory_turns=caller.spec.memory.turns,
    )


def _size(prepared: TurnSubmission) -> int:
    """Bytes of what was asked, which stands in log, history and memory; large data stands once for all."""
    return 3 * len(prepared.request) + sum(map(len, prepared.batch.files.values()))


def _as_user(message: Message) -> bytes:
    """A client's ``system`` message for an agent that gives it no more weight than its user's words."""
    return canonical(message.model_copy(update={"role": Role.USER.value}))


def _settled(message: Message) -> Message:
    """The message as the log holds it: complete, with an id of ours, since clients repeat theirs."""
    name = new_message_id()
    speaker = _SPEAKERS.get(message.type)
    whole = message.model_copy(
        update={
            "id": name,
            "status": RunStatus.Completed,
            "role": message.role or speaker or Role.USER,
            "type": MessageType.MESSAGE.value if speaker else message.type,
            "sequence_number": None,
        }
    )
    whole.content = [
        part.model_copy(
            update={
                "index": index,
                "status": RunStatus.Completed,
                "delta": False,
                "msg_id": name,
                "sequence_number": None,
            }
        )
        for index, part in enumerate(message.content or [])
    ]
    return whole
