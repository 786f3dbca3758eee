"""Answers to calls that come together and begin a segment of a turn: whose they are, which are missing, which segment it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnstream.api.streaming import start_position
from turnstream.api.turns.callbacks import answer_call, answers_to, asked_at, known_calls, task_of_call
from turnstream.api.turns.ids import CallId
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import CursorGone, InvalidBody, NoSession, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's answer to a call, by the id by which the client knows that.

    Attributes:
        call: our id of it, of its session.
        named: where it is, if the id says so.
        result, consents: as for `answer_call`.
    """

    call: str
    named: CallId | None
    result: Any
    consents: bool | None = None


def answer_to(call: Any, result: Any, place: str, *, consents: bool | None = None) -> Answer:
    """An answer to the call of that id: a `CallId`, or one of a session that the request names.

    Raises:
        InvalidBody: there is no id; the text names the ``place``.
        UnknownCall: it cannot be one.
    """
    if not isinstance(call, str) or not call:
        raise InvalidBody(f"{place}: Field required")
    if IDENTIFIER.fullmatch(call):
        return Answer(call, None, result, consents)
    named = CallId.parse(call)
    return Answer(named.call, named, result, consents)


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
    if len(calls) < len(answers):
        raise InvalidBody(f"{field}: answers a call twice")
    if any((await known_calls(services, keys, calls)).values()):
        # Else it is a repeat: the task may wait for other answers by now.
        await check_answered(services, keys, task, calls, field)
    for answer in answers:
        ref = TaskRef(keys.owner, keys.session, task)
        await answer_call(services, ref, answer.call, answer.result, consents=answer.consents)
    return task, await answered_segment(services.log, keys, task, calls)


async def check_answered(
    services: Services, keys: SessionKeys, task: str, calls: Collection[str], field: str
) -> None:
    """Check that a task would wait for no other answer.

    Raises:
        InvalidBody: it would.
        BrokerAway: the broker did not answer.
    """
    if missing := await missing_answers(services, keys, task, calls):
        call = CallId(keys.session, task, missing[0])
        raise InvalidBody(f"{field}: No tool output found for function call {call}.")


async def missing_answers(
    services: Services, keys: SessionKeys, task: str, given: Collection[str]
) -> list[str]:
    """The calls for which a parked task would still wait if it were ``given`` answers to these; none of one that is not parked.

    Raises:
        BrokerAway: the broker did not answer.
    """
    log = services.log
    known = await log.task(keys, task)
    meta = await log.meta(keys)
    if known.get("status") != TaskStatus.PARKED or meta is None:
        return []
    parks = start_position.parks_of(known)
    park = Cursor(meta.epoch, parks[max(parks)])
    asked = sorted(await asked_at(log, keys, park) - set(given))
    # Some may have been answered since.
    waiting = await known_calls(services, keys, asked)
    return [call for call in asked if waiting.get(call)]


async def blocking_call(services: Services, caller: Caller, keys: SessionKeys) -> tuple[str, str] | None:
    """A parked task that a further turn of the session would wait for, and a call that it waits for; None: it would begin.

    Raises:
        BrokerAway: the broker did not answer.
    """
    spec = caller.spec
    if spec.busy in ("parallel", "interrupt") or spec.parked == "supersede":
        return None
    meta = await services.log.meta(keys)
    if meta is None or not meta.active:
        return None
    missing = await missing_answers(services, keys, meta.active, ())
    return (meta.active, missing[0]) if missing else None


async def answered_segment(log: Log, keys: SessionKeys, task: str, calls: Collection[str]) -> int:
    """The number of the segment that has the answers to calls, however long ago they were given.

    Raises:
        NoSession: it is gone by now.
        CursorGone: they were cut.
        BrokerAway: the broker did not answer.
    """
    given = await answers_to(log, keys, task, calls)
    meta = await log.meta(keys)
    if meta is None:
        raise NoSession
    if not given:
        raise CursorGone
    # The turn may have been parked between two of them.
    return (await start_position.segment(log, keys, meta, task, place=given[-1].seq)).number
