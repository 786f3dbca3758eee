"""Runs: taken, answered, connected to, stopped; the same for AG-UI's clients and for CopilotKit's."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from starlette.responses import Response

from turnstream.api.access.session_access import visible, visible_session
from turnstream.api.protocols.ag_ui.requests import session_of, task_of
from turnstream.api.protocols.ag_ui.run_stream import RunStream
from turnstream.api.protocols.ag_ui.thread import IDS, ids_of, past_of_thread, past_of_turn
from turnstream.api.streaming import start_position
from turnstream.api.streaming.dialect import EVENT_STREAM, EncodedDialect
from turnstream.api.streaming.sse import HEADERS
from turnstream.api.turns.answers import answered, check_answered, missing_answers
from turnstream.api.turns.callbacks import known_calls, task_of_call
from turnstream.api.turns.finding import newest_task, task_named
from turnstream.api.turns.follow import Encoded, encoded_stream, following
from turnstream.api.turns.stop import stop, stop_all
from turnstream.api.turns.submit import RESPONSE_PREFIX, NewTurn, begin, idempotency_of, trace_of
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import InvalidBody, NoModel, NoSession, NoTask, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.status import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.ag_ui.requests import Run
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream
    from turnstream.api.turns.answers import Answer
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.protocol import Message
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import SessionMeta

# A turn that goes on takes no words.
_APART = "messages: answers to calls come without a new message of the user: send them first, and that message when their run has ended"


def _opened(session: str, entry: Entry) -> RunStream:
    return RunStream(session, entry.task)


AG_UI = EncodedDialect("ag-ui", _opened)


def speaking_to(caller: Caller, agent: str | None) -> Caller:
    """The caller with the agent that a request names, if it does.

    Raises:
        NoModel: the key has no such agent.
    """
    named = caller.speaking_to(agent) if agent else caller
    if named is None:
        raise NoModel("No such agent: its name is that of one of this API key's agents.")
    return named


async def run_agent(services: Services, request: Request, run: Run, size: int) -> EventStream:
    """Take a turn, or answers; then follow the run."""
    keys = run.caller.keys(run.session)
    async with following(services, keys, run.caller) as feed:
        meta = await services.log.meta(keys)
        if meta is not None:
            visible(meta, run.caller.visitor())
        answers = await _answers(services, run, keys, meta)
        if answers:
            await _check_says_nothing(services, run, keys, answers)
            told = await _answer(services, run, keys, answers)
        else:
            told = await _begin(services, request, run, keys, meta, size)
        return encoded_stream(services, feed, told, AG_UI)


async def connect_agent(services: Services, run: Run) -> EventStream | Response:
    """What was said in a thread, as messages; then its newest run, from its beginning to its end."""
    log, caller, keys = services.log, run.caller, run.caller.keys(run.session)
    async with following(services, keys, caller) as feed:
        meta = await log.meta(keys)
        task = await _shown(services, keys, meta) if meta is not None else ""
        if meta is None or meta.agent != caller.spec.name or not task:
            feed.leave()
            # Nothing was said there; that another one has a thread of the name, nobody learns.
            return Response(b"", 200, dict(_decoded(HEADERS)), media_type=EVENT_STREAM)
        part = await start_position.segment(log, keys, meta, task)
        start = await start_position.start_of(log, keys, meta, part)
        past = await past_of_thread(log, keys, task, part.after.seq, is_old=run.is_old)
        name = f"{task}~{part.number}" if part.number else task
        stream = RunStream(run.thread, name, part.number, past, is_old=run.is_old, connects=True)
        return encoded_stream(services, feed, Encoded(start, stream), AG_UI)


async def stop_thread(services: Services, caller: Caller, thread: str, run: str) -> bool:
    """Stop a run, or all of a thread's turns where none is named; False: it has ended, or there is no such run.

    Raises:
        NoSession: there is no such thread.
        BrokerAway: the broker did not answer.
    """
    log, keys = services.log, caller.keys(session_of(caller, thread))
    await visible_session(log, keys, caller.visitor())
    if run:
        task = await _task_of(services, keys, thread, run)
        known = await log.task(keys, task) if task else {}
        if known.get("status", "") in ("", *TERMINAL):
            return False
        await stop(services, TaskRef(keys.owner, keys.session, task), "stop", who="client")
        return True
    live = await log.live(keys)
    await stop_all(services, keys, live, "stop", who="client")
    return bool(live)


async def _answers(services: Services, run: Run, keys: SessionKeys, meta: SessionMeta | None) -> list[Answer]:
    """The calls of this thread that the request answers: those that wait, or if none does, those that it ends with."""
    if not (run.resume or run.results):
        return []
    if meta is None:
        if run.resume:
            raise NoSession
        return []
    results = [answer for answer in run.results if IDENTIFIER.fullmatch(answer.call)]
    if any(answer.named and answer.named.session != run.session for answer in [*run.resume, *results]):
        raise UnknownCall
    known = await known_calls(services, keys, [answer.call for answer in results])
    waiting = [answer for answer in results if known.get(answer.call)]
    if waiting or run.resume:
        return [*run.resume, *waiting]
    if not known:
        raise UnknownCall
    # A repeat: of answers to one turn's calls the last ones began its newest run.
    last = next(answer for answer in reversed(results) if answer.call in known)
    return [last]


async def _answer(
    services: Services, run: Run, keys: SessionKeys, answers: list[Answer]
) -> Encoded[RunStream]:
    """Answer calls; the run begins with the answers."""
    task, number = await answered(services, keys, answers, "resume" if run.resume else "messages")
    # Other runs are named as their tasks.
    noted = _answering(keys, run.run)
    await command(services.broker.sessions, "SET", noted, task, "PX", services.settings.ttl_ms)
    return await _segment(services, run, keys, task, number)


async def _begin(
    services: Services, request: Request, run: Run, keys: SessionKeys, meta: SessionMeta | None, size: int
) -> Encoded[RunStream]:
    """Take a turn."""
    caller = run.caller
    newest = run.newest
    if meta is None:
        # All that was said elsewhere.
        said = await services.offload.run_large(caller.owner, size, run.history)
        if said and said[-1].role == "assistant":
            said = []
    else:
        newest = await _unknown(services, keys, run)
        said = [message for _, message in newest]
    if not said:
        raise InvalidBody("messages: the last one must be the user's, or the result of a call")
    users = [name for name, message in newest if message.role == "user"]
    turn = NewTurn(
        ref=TaskRef(keys.owner, keys.session, run.task),
        response=RESPONSE_PREFIX + run.task,
        user="",
        create=True,
        input=[*run.context, *said],
        idempotency=idempotency_of(request),
        digest=run.digest,
        trace=trace_of(request),
        overrides=run.overrides,
        size=size,
        beside={IDS: users} if any(users) else {},
    )
    start, headers = await begin(services, caller, turn)
    if start.new:
        stream = RunStream(run.thread, run.run, is_old=run.is_old)
        return Encoded(start, stream, headers)
    # A repeat: the run that the first request made.
    return await _segment(services, run, keys, start.task or run.task, 0)


async def _unknown(services: Services, keys: SessionKeys, run: Run) -> list[tuple[str, Message]]:
    """Of the newest messages those that the newest turn has not brought: it may have been stopped before it said anything.

    Raises:
        InvalidBody: the thread waits for answers, and its agent for nothing else.
    """
    log, newest = services.log, run.newest
    task = await newest_task(services, keys)
    if not task or await log.task(keys, run.task):
        return newest
    if run.caller.spec.parked == "block":
        if run.passed and await missing_answers(services, keys, task, ()):
            raise InvalidBody(_APART)
        await check_answered(services, keys, task, (), "messages")
    if sum(message.role == "user" for _, message in newest) < 2:
        return newest
    brought = await _brought(services, keys, task)
    return [each for each in newest if not each[0] or each[0] not in brought]


async def _check_says_nothing(services: Services, run: Run, keys: SessionKeys, answers: list[Answer]) -> None:
    """See to it that who answers says nothing new besides, which would be lost.

    Raises:
        InvalidBody: the client does.
    """
    said = {name for name, message in run.newest if message.role == "user"}
    if said and said - await _brought(services, keys, await task_of_call(services, keys, answers[0].call)):
        raise InvalidBody(_APART)


async def _brought(services: Services, keys: SessionKeys, task: str) -> set[str]:
    """The ids of the user's messages that began a turn."""
    log = services.log
    known, meta = await log.task(keys, task), await log.meta(keys)
    if not known or meta is None:
        return set()
    entry = await log.at(keys, Cursor(meta.epoch, int(known["first"]) + 1))
    return set(ids_of(entry)) if entry is not None else set()


async def _segment(
    services: Services, run: Run, keys: SessionKeys, task: str, number: int
) -> Encoded[RunStream]:
    log = services.log
    meta = await visible_session(log, keys, run.caller.visitor())
    part = await start_position.segment(log, keys, meta, task, number=number)
    start = await start_position.start_of(log, keys, meta, part)
    past = await past_of_turn(log, keys, task, part.after.seq) if number else None
    return Encoded(start, RunStream(run.thread, run.run, number, past, is_old=run.is_old))


async def _shown(services: Services, keys: SessionKeys, meta: SessionMeta) -> str:
    """The turn that who connects is shown: one that runs, else one that waits for its client, else the newest; empty: none."""
    log = services.log
    live = await log.live(keys)
    if meta.active in live:
        return meta.active
    for task in live:
        if (await log.task(keys, task)).get("status") == TaskStatus.RUNNING:
            return task
    return live[-1] if live else await newest_task(services, keys)


async def _task_of(services: Services, keys: SessionKeys, thread: str, run: str) -> str:
    """The turn of a run; empty where it is not known."""
    if await services.log.task(keys, task := task_of(thread, run)):
        return task
    if noted := await command(services.broker.sessions, "GET", _answering(keys, run)):
        return str(noted.decode())
    # As it is called to who connects.
    try:
        return await task_named(services, keys, run, None) or ""
    except NoTask:
        return ""


def _answering(keys: SessionKeys, run: str) -> str:
    """Where the turn is noted of a run that began with answers."""
    return keys.idempotency(hashlib.sha256(f"agui-run {run}".encode()).hexdigest())


def _decoded(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]
