"""Answers to client calls: a function's result, or consent to a tool."""

from __future__ import annotations

import uuid
from operator import not_
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.turns.durable_submit import accept, launch
from turnstream.shared import metrics
from turnstream.shared.agents.json_depth import MOST_LEVELS, too_deep
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import CallEnded, CallExpired, CallWithdrawn, InvalidBody, UnknownCall
from turnstream.shared.protocol import (
    FunctionCallOutput,
    McpApprovalResponse,
    MessageType,
    ResponseBuilder,
    Role,
    RunStatus,
    canonical,
)
from turnstream.shared.protocol.answers import ANSWERS
from turnstream.shared.session.batch import Batch
from turnstream.shared.session.entry import PARKED
from turnstream.shared.session.outcomes import (
    Ended,
    Expired,
    Launch,
    Repeated,
    Stored,
    Unknown,
    Unread,
    Withdrawn,
)
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Cursor, Entry
    from turnstream.shared.session.event_log import Log

# The kind of call that asks for consent; any other asks for a function's result.
APPROVAL = "approval"

# What the batch of one answer writes into the log: the message created, in progress, its part, completed.
ENTRIES_PER_ANSWER = 4


async def task_of_call(services: Services, keys: SessionKeys, call: str) -> str:
    """The task that made a call.

    Raises:
        UnknownCall: this session never made it.
        BrokerAway: the broker did not answer.
    """
    found: Any = await command(services.broker.sessions, "GET", keys.call(call), doubt=not_)
    if found is None:
        raise UnknownCall
    return str(found.decode().partition(" ")[0])


async def known_calls(services: Services, keys: SessionKeys, calls: Collection[str]) -> dict[str, bool]:
    """Those of the calls that the session made, and whether each still waits for its answer.

    Raises:
        BrokerAway: the broker did not answer.
    """
    names = list(calls)
    found: list[bytes | None] = (
        await command(services.broker.sessions, "MGET", *map(keys.call, names)) if names else []
    )
    return {
        name: state.endswith(b" pending")
        for name, state in zip(names, found, strict=True)
        if state is not None
    }


async def answer_call(
    services: Services, ref: TaskRef, call: str, result: Any, *, consents: bool | None = None
) -> tuple[bool, int | None]:
    """Give a call its answer; the last one that is awaited sets the task going again.

    ``consents``: it is the answer to a request for consent, or to a function's call; None: whichever was asked.

    Returns whether this was its first answer (a repeat changes nothing), and the replicas that have it.

    Raises:
        InvalidBody: the result does not fit the call, or is nested too deeply.
        UnknownCall, CallEnded, CallWithdrawn, CallExpired: the call takes no answer.
        Overloaded: the broker's memory is almost full.
        BrokerAway: the broker did not answer; to repeat is safe.
    """
    if too_deep(result):
        raise InvalidBody(f"result: nested deeper than {MOST_LEVELS} levels")
    record: Any = await command(services.broker.sessions, "HGET", ref.keys.calls(ref.task), call)
    batch = Batch()
    # Without a record the call was answered or has ended; the script knows which.
    if record is not None:
        services.limiter.admit_data()
        call_record = orjson.loads(record)
        if consents is not None and consents != (call_record["kind"] == APPROVAL):
            raise UnknownCall
        if call_record["kind"] == APPROVAL:
            result = _consent(result)
        _write_output(batch, call, call_record, result)
    body = orjson.dumps(result)
    outcome, replicas = await accept(
        services,
        ref,
        lambda tasks, look: tasks.callback(ref, call, body, batch, "", look),
        what="callback",
    )
    match outcome:
        case Unread():
            return await answer_call(services, ref, call, result, consents=consents)
        case Unknown():
            raise UnknownCall
        case Withdrawn():
            raise CallWithdrawn
        case Expired():
            raise CallExpired
        case Ended():
            raise CallEnded
        case Repeated(status, number):
            # The first answer's launch may have been lost with its reply; a second one changes nothing.
            if status == TaskStatus.QUEUED and number > 0:
                await launch(services, ref, number)
            metrics.callbacks.add("repeat")
            return False, replicas
        case Stored() | Launch():
            pass
    metrics.callbacks.add("first")
    return True, replicas


async def asked_at(log: Log, keys: SessionKeys, park: Cursor) -> set[str]:
    """The calls that were open when a turn was parked there; none where no park stands.

    Raises:
        BrokerAway: the broker did not answer.
    """
    entry = await log.at(keys, park)
    return set(orjson.loads(entry.event)["calls"]) if entry is not None and entry.kind == PARKED else set()


async def answers_to(
    log: Log, keys: SessionKeys, task: str, calls: Collection[str], after: Cursor | None = None
) -> list[Entry]:
    """The answers to a task's calls, given earlier perhaps: their first reply may have been lost.

    Raises:
        BrokerAway: the broker did not answer.
    """
    return [
        entry async for entry in log.all_kept(keys, after) if entry.task == task and answers_one(calls, entry)
    ]


def answers_one(calls: Collection[str], entry: Entry) -> bool:
    """Whether an entry completes the client's answer to one of these calls."""
    if entry.kind not in ANSWERS:
        return False
    message = orjson.loads(entry.event)
    datas = [part.get("data") or {} for part in message.get("content") or []]
    return any(data.get("approval_request_id") in calls or data.get("call_id") in calls for data in datas)


def _write_output(batch: Batch, call: str, record: dict[str, Any], result: Any) -> None:
    """Put the ``…_output`` message of an answer into the batch."""
    approval = record["kind"] == APPROVAL
    if approval:
        kind, role, data = MessageType.MCP_APPROVAL_RESPONSE, Role.USER, _response(call, result)
    else:
        kind, role, data = MessageType.FUNCTION_CALL_OUTPUT, Role.TOOL, _result(call, record, result)
    path = record.get("path") or ""
    extra: dict[str, Any] = record.get("extra") or {}
    beside = orjson.dumps(extra) if extra else b""
    message = ResponseBuilder(numbered=False, status=RunStatus.InProgress).create_message_builder(role, kind)
    batch.opening(message.message_id, kind, canonical(message.created()), path=path, extra=beside)
    batch.event(kind, canonical(message.in_progress()), path=path, extra=beside)
    part = message.add_content({"type": "data", "data": data})
    batch.event(kind, canonical(part), path=path, extra=beside)
    whole = canonical(message.complete())
    if not approval and record.get("group"):
        group = {"ids": record.get("ids") or []}
        batch.settling(
            message.message_id,
            kind,
            whole,
            path=path,
            extra=orjson.dumps({**extra, "group": group}),
            group=record["group"],
            last=orjson.dumps({**extra, "group": {**group, "last": True}}),
        )
    else:
        batch.closing(message.message_id, kind, whole, path=path, extra=beside)


def _result(call: str, record: dict[str, Any], result: Any) -> dict[str, Any]:
    output = result if isinstance(result, str) else orjson.dumps(result).decode()
    return FunctionCallOutput(call_id=call, name=record.get("name"), output=output).model_dump(
        exclude_none=True
    )


def _response(call: str, consent: dict[str, Any]) -> dict[str, Any]:
    return McpApprovalResponse(approval_request_id=call, id=f"approval_{uuid.uuid4()}", **consent).model_dump(
        exclude_none=True
    )


def _consent(result: Any) -> dict[str, Any]:
    """``{"approve": …, "reason": …}``; a bare truth value is taken too."""
    if isinstance(result, bool):
        return {"approve": result}
    if not isinstance(result, dict) or not isinstance(result.get("approve"), bool):
        raise InvalidBody("result.approve: send true or false")
    reason = result.get("reason")
    if reason is None:
        return {"approve": result["approve"]}
    if not isinstance(reason, str):
        raise InvalidBody("result.reason: send text, or nothing")
    return {"approve": result["approve"], "reason": reason}
