"""Finding sessions and calls by an id alone: the key says whose it is, the session which of the key's agents answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import visible
from turnstream.api.turns.answers import answered_segment, missing_answers
from turnstream.api.turns.callbacks import answer_call, task_of_call
from turnstream.api.turns.ids import CallId
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import InvalidBody, NoSession, UnknownCall
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.openai.input_items import Answer
    from turnstream.api.services import Services
    from turnstream.api.turns.ids import ResponseId
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import SessionMeta

# For so long a client may ask again by itself.
RETRY_SECONDS = 60


async def found(
    services: Services, keys: SessionKeys, caller: Caller, user: str = ""
) -> tuple[Caller, SessionMeta]:
    """The session, and the caller with its agent.

    Raises:
        NoSession: there is none, or it is another owner's, user's, or that of an agent that the key has not.
        BrokerAway: the broker did not answer.
    """
    meta = await services.log.meta(keys)
    caller_there = caller.speaking_to(meta.agent) if meta is not None else None
    if caller_there is None:
        raise NoSession
    return caller_there, visible(meta, caller_there.visitor(user))


async def newest_task(services: Services, keys: SessionKeys) -> str:
    """The session's newest turn; empty where it has none.

    Raises:
        BrokerAway: the broker did not answer.
    """
    log = services.log
    if live := await log.live(keys):
        return live[0]
    meta = await log.meta(keys)
    entry = await log.at(keys, Cursor(meta.epoch, meta.seq)) if meta is not None and meta.seq else None
    return entry.task if entry else ""


async def asks_again(services: Services, request: Request, keys: SessionKeys, task: str, digest: str) -> bool:
    """Whether the client asks again by itself for this turn, to which it got no reply.

    OpenAI's clients say so, and have no key of their own for it.

    Raises:
        BrokerAway: the broker did not answer.
    """
    if not task or request.headers.get("x-stainless-retry-count", "0") == "0":
        return False
    fields = ("digest", "submitted")
    known, submitted = await command(services.broker.sessions, "HMGET", keys.task(task), *fields)
    age = time.time() - int(submitted or 0) / 1000
    return bool(known is not None and known.decode() == digest and age < RETRY_SECONDS)


async def is_known(services: Services, keys: SessionKeys, key: str) -> bool:
    """Whether a request of that idempotency key was taken in this session.

    Raises:
        BrokerAway: the broker did not answer.
    """
    return bool(key and await command(services.broker.sessions, "EXISTS", keys.idempotency(key)))


def deleted(name: ResponseId) -> str:
    """What is noted of the session where a response was deleted."""
    return f"deleted:{name.task}~{name.segment}"


def task_of_answers(answers: list[Answer]) -> CallId:
    """The task to whose calls these are answers, as their ids say.

    Raises:
        UnknownCall: they are of several.
    """
    named = {(answer.named.session, answer.named.task): answer.named for answer in answers if answer.named}
    if len(named) != 1:
        raise UnknownCall
    return next(iter(named.values()))


async def answered(
    services: Services, keys: SessionKeys, answers: list[Answer], field: str
) -> tuple[str, int]:
    """Give calls their answers, all that are awaited; the task, and the segment that begins with them.

    Raises:
        InvalidBody: some are missing; the text names the first, and the ``field``.
        UnknownCall, CallEnded, CallWithdrawn, CallExpired: a call takes no answer.
        BrokerAway: the broker did not answer; to repeat is safe.
    """
    tasks = {await task_of_call(services, keys, answer.call) for answer in answers}
    named = {answer.named.task for answer in answers if answer.named}
    if len(tasks | named) != 1:
        raise UnknownCall
    task, calls = tasks.pop(), {answer.call for answer in answers}
    await check_answered(services, keys, task, calls, field)
    for answer in answers:
        await answer_call(services, TaskRef(keys.owner, keys.session, task), answer.call, answer.result)
    return task, await answered_segment(services.log, keys, task, calls)


async def check_answered(
    services: Services, keys: SessionKeys, task: str, calls: Collection[str], field: str
) -> None:
    """See to it that a task would wait for no other answer.

    Raises:
        InvalidBody: it would.
        BrokerAway: the broker did not answer.
    """
    if missing := await missing_answers(services, keys, task, calls):
        call = CallId(keys.session, task, missing[0])
        raise InvalidBody(f"{field}: No tool output found for function call {call}.")
