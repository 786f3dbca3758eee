"""What can be done with tasks, whichever binding asks for it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from turnstream.api.http.params import cursor_of
from turnstream.api.protocols.a2a.errors import (
    NoAgent,
    NoPushNotifications,
    NotCancelable,
    UnknownMediaType,
    UnknownVersion,
    UnsupportedOperation,
)
from turnstream.api.protocols.a2a.requests import USUAL_PAGE, Answer, consent, push_config, webhook
from turnstream.api.protocols.a2a.task_encoder import (
    CURSORS,
    DIALECT,
    ENDED,
    INPUT_REQUIRED,
    MESSAGE_ID,
    SUBMITTED,
    WORKING,
    TaskEncoder,
    Wire,
    time_of,
)
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.streaming.start_position import Start
from turnstream.api.streaming.whole import WholeDocument
from turnstream.api.turns import attachments
from turnstream.api.turns.answers import blocking_call, missing_answers
from turnstream.api.turns.callbacks import APPROVAL, answer_call, task_of_call
from turnstream.api.turns.finding import found, is_known
from turnstream.api.turns.follow import following
from turnstream.api.turns.ids import TaskId
from turnstream.api.turns.stop import stop
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import CursorGone, InvalidBody, NoSession, NoTask, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.agent_tasks import Wanted
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.outcomes import Finished
from turnstream.shared.session.status import TERMINAL, TaskStatus
from turnstream.shared.webhooks import Address, check_token, networks_of, new_secret

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.a2a.requests import Configs, ListTasks, OneConfig, OneTask, PushConfig, Sent
    from turnstream.api.services import Services
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.agent_tasks import ListedTask, Place
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.webhooks import Webhook

Json = dict[str, Any]

VERSION = "1.0"
VERSION_HEADER = "A2A-Version"
EXTENSIONS_HEADER = "A2A-Extensions"

# A page of a list ends when it has so many bytes of artifacts and messages.
PAGE_BYTES = 4 * 2**20
# So many of its tasks are read side by side.
TASKS_AT_ONCE = 8

_NOTHING_BESIDES = (
    "a task that asks is answered in words, or by data parts with callId and result, and with nothing besides"
)

_PLACE = re.compile(r"(\d{1,15}):(.+)", re.ASCII)


async def authorized(services: Services, request: Request) -> Caller:
    """Who asks, speaking with the agent of the path, in the version that is served.

    Raises:
        BadToken, UnknownKey, Forbidden: there is no caller.
        NoAgent: the agent is not published, or none of the key's.
        UnknownVersion: another version of the protocol is asked for.
        BrokerAway: the broker did not answer.
    """
    caller = speaking_to(await services.auth.caller(request), request)
    if caller is None:
        raise NoAgent
    check_version(request)
    return caller


def speaking_to(holder: Caller, request: Request) -> Caller | None:
    """The holder of a key with the agent of the path; None: it is not published, or none of the key's."""
    caller = holder.speaking_to(request.path_params["agent"])
    return caller if caller is not None and caller.spec.a2a is not None else None


def check_version(request: Request) -> None:
    """See to it that the client speaks the version that is served; one that names none speaks an older one.

    Raises:
        UnknownVersion: it does not.
    """
    version = request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER, "")
    if ".".join(version.strip().split(".")[:2]) != VERSION:
        raise UnknownVersion


def wire_of(request: Request, rpc: bytes | None = None) -> Wire:
    """How the client is written to; ``rpc`` is the id of its request."""
    # Several headers are one, with commas between them.
    asked = ",".join(request.headers.getlist(EXTENSIONS_HEADER))
    return Wire(rpc, cursors=CURSORS in (each.strip() for each in asked.split(",")))


def answered(request: Request, wire: Wire, result: Json, headers: Headers = ()) -> Response:
    """An answer of one document."""
    response = Response(orjson.dumps(wire.answer(result)), media_type=media_type(request, wire))
    response.raw_headers += _headers(wire, headers)
    return response


def media_type(request: Request, wire: Wire) -> str:
    """A2A's own media type for who asks for it; JSON-RPC has JSON's alone."""
    own = "application/a2a+json"
    takes = wire.request is None and own in request.headers.get("accept", "")
    return own if takes else "application/json"


async def send(
    services: Services, request: Request, caller: Caller, sent: Sent, size: int, wire: Wire, *, streams: bool
) -> Response | EventStream | WholeDocument:
    """Begin a task, or answer what one asks; then the task: its events, as it is, or when it ends or asks.

    Raises:
        As `begin` and `answer_call`, and UnsupportedOperation: the task has ended, or asks nothing.
        InvalidBody, NoPushNotifications: nobody can be told of it as is asked.
    """
    configuration = sent.configuration
    config = configuration.task_push_notification_config
    told = _checked(services, caller, config) if config else None
    session = sent.session or derived_session(caller, f"a2a {sent.body.message.message_id}")
    keys = caller.keys(session)
    async with following(services, keys, caller) as feed:
        headers: Headers = ()
        if sent.task:
            name = sent.task
            await _answer(services, caller, keys, sent)
        else:
            name, headers = await _begin(services, request, caller, keys, sent, size)
        if told:
            await _keep(services, caller, name, told)
        encoder = TaskEncoder(name, wire)
        encoder.history = configuration.history_length
        place = await _so_far(services, keys, name, encoder)
        if streams:
            return _stream(services, feed, encoder, name, place, headers)
        if configuration.return_immediately or encoder.over or encoder.state == INPUT_REQUIRED:
            with feed:
                return answered(request, wire, {"task": encoder.document(encoder.history, at=place)}, headers)
        encoder.asks = True
        whole = WholeDocument(
            feed, Start(place, name.task), services.log, encoder, headers=(*headers, *_headers(wire))
        )
        whole.content_type = media_type(request, wire).encode()
        return whole


async def subscribe(
    services: Services, request: Request, caller: Caller, task: str, wire: Wire
) -> EventStream:
    """The task as it is, then its events; with a cursor as it was there, and all that came since.

    Raises:
        NoTask, NoSession: there is no such task.
        UnsupportedOperation: it has ended, and there is no cursor.
        BadCursor, CursorGone: what follows the cursor cannot be told any more.
    """
    cursor = cursor_of(request)
    name = TaskId.parse(task)
    keys = caller.keys(name.session)
    async with following(services, keys, caller) as feed:
        await _check_visible(services, caller, keys)
        encoder = TaskEncoder(name, wire)
        place = await _so_far(services, keys, name, encoder, cursor)
        if encoder.over and cursor is None:
            raise UnsupportedOperation("The task has ended: get it instead.")
        return _stream(services, feed, encoder, name, place)


async def get(services: Services, caller: Caller, asked: OneTask, wire: Wire) -> Json:
    """The task as it is.

    Raises:
        NoTask, NoSession: there is no such task.
        CursorGone: it was forgotten.
    """
    name = TaskId.parse(asked.id)
    return await _task(services, caller, name, wire, asked.history_length)


async def cancel(services: Services, caller: Caller, asked: OneTask, wire: Wire) -> Json:
    """Stop a task. When this answers, its end is in the log.

    Raises:
        NoTask, NoSession: there is no such task.
        NotCancelable: it has ended by itself.
    """
    name = TaskId.parse(asked.id)
    keys = caller.keys(name.session)
    await _check_visible(services, caller, keys)
    if not await services.log.task(keys, name.task):
        raise NoTask
    if not isinstance(
        await stop(services, TaskRef(keys.owner, keys.session, name.task), "stop", who="client"), Finished
    ):
        raise NotCancelable
    return await _task(services, caller, name, wire, None)


async def list_tasks(services: Services, caller: Caller, asked: ListTasks) -> Json:
    """The owner's tasks with this agent, those whose state is the newest first.

    Raises:
        InvalidBody: the page token is none of ours.
    """
    wanted = Wanted(
        since=asked.status_timestamp_after or 0,
        fits=partial(_fits, asked) if asked.context_id or asked.status else None,
        ended=asked.status is None or asked.status in ENDED.values(),
    )
    page = await services.agent_tasks.page(
        caller.owner,
        caller.spec.name,
        wanted,
        asked.page_size or USUAL_PAGE,
        _page(asked.page_token),
    )
    tasks = await _page_of(services, caller, page.tasks, asked)
    last = page.tasks[len(tasks) - 1] if page.more or len(tasks) < len(page.tasks) else None
    return {
        "tasks": tasks,
        "nextPageToken": f"{last.place[0]}:{_id(last)}" if last else "",
        "pageSize": len(tasks),
        "totalSize": page.total,
    }


async def create_config(services: Services, caller: Caller, asked: PushConfig) -> Json:
    """Have somebody told of a task.

    Raises:
        NoPushNotifications: this agent's tasks tell nobody.
        NoTask, NoSession: there is no such task.
        InvalidBody: nothing is sent to that address, or the task has too many.
    """
    told = _checked(services, caller, asked)
    name = await _visible_task(services, caller, asked.task_id)
    return push_config(await _keep(services, caller, name, told), name)


async def get_config(services: Services, caller: Caller, asked: OneConfig) -> Json:
    """One of those who are told.

    Raises:
        NoPushNotifications, NoTask, NoSession: as `create_config`; there is no such config.
    """
    _check_push(caller)
    name = await _visible_task(services, caller, asked.task_id)
    for each in await services.webhooks.of(_ref(caller, name)):
        if each.id == asked.id:
            return push_config(each, name)
    raise NoTask


async def list_configs(services: Services, caller: Caller, asked: Configs) -> Json:
    """All of them.

    Raises:
        NoPushNotifications, NoTask, NoSession: as `create_config`.
    """
    _check_push(caller)
    name = await _visible_task(services, caller, asked.task_id)
    kept = await services.webhooks.of(_ref(caller, name))
    return {"configs": [push_config(each, name) for each in kept], "nextPageToken": ""}


async def delete_config(services: Services, caller: Caller, asked: OneConfig) -> Json:
    """Have one told no more; once or several times is the same.

    Raises:
        NoPushNotifications, NoTask, NoSession: as `create_config`.
    """
    _check_push(caller)
    name = await _visible_task(services, caller, asked.task_id)
    if IDENTIFIER.fullmatch(asked.id):
        await services.webhooks.drop(_ref(caller, name), asked.id)
    return {}


# ── tasks ──


async def _begin(
    services: Services, request: Request, caller: Caller, keys: SessionKeys, sent: Sent, size: int
) -> tuple[TaskId, Headers]:
    """Take a turn, or find the one that this message made before.

    Raises:
        UnknownMediaType: the agent does not take what is attached.
        Others: as `begin`.
    """
    if why := attachments.refusal(caller.spec, [sent.message]):
        raise UnknownMediaType(why)
    message = sent.body.message
    ref = TaskRef(keys.owner, keys.session, new_task_id())
    idempotency = hashlib.sha256(f"a2a {message.message_id}".encode()).hexdigest()
    if sent.session and not await is_known(services, keys, idempotency):
        await _check_asks_nothing(services, caller, keys)
    turn = NewTurn(
        ref=ref,
        response=RESPONSE_PREFIX + ref.task,
        user="",
        create=True,
        input=[sent.message],
        idempotency=idempotency,
        digest=sent.digest,
        trace=trace_of(request),
        size=size,
        beside={MESSAGE_ID: message.message_id},
    )
    await services.agent_tasks.note(ref, caller.spec.name)
    start, headers = await begin(services, caller, turn)
    return TaskId(keys.session, start.task or ref.task), headers


async def _check_asks_nothing(services: Services, caller: Caller, keys: SessionKeys) -> None:
    """See to it that a task would not wait, without a word, for answers to another one of its context.

    Raises:
        UnsupportedOperation: it would.
    """
    meta = await services.log.meta(keys)
    if meta is None or meta.agent != caller.spec.name:
        # It is made, or refused, with the task.
        return
    if blocking := await blocking_call(services, caller, keys):
        name = TaskId(keys.session, blocking[0])
        raise UnsupportedOperation(
            f"Task {name} of this context asks its client: answer it by a message with this taskId, or cancel it, and send the"
            " message again."
        )


async def _answer(services: Services, caller: Caller, keys: SessionKeys, sent: Sent) -> None:
    """Give the calls of a task their answers: those that are named, or the one that waits."""
    name = sent.task
    if name is None:
        raise NoTask
    await _check_visible(services, caller, keys)
    if not await services.log.task(keys, name.task):
        raise NoTask
    if sent.answers:
        await _check_answers(services, keys, name, sent)
    for answer in sent.answers or [await _answer_in_words(services, keys, name, sent)]:
        await answer_call(services, TaskRef(keys.owner, keys.session, name.task), answer.call, answer.result)


async def _check_answers(services: Services, keys: SessionKeys, name: TaskId, sent: Sent) -> None:
    """See to it that none is given where another one is refused, or something else would be lost.

    Raises:
        InvalidBody: one call is answered twice, or more is said.
        UnknownCall: a call is none of the task's.
    """
    if sent.rest or sent.text.strip():
        raise InvalidBody(f"{sent.rest or 'message.parts'}: {_NOTHING_BESIDES}")
    calls = [answer.call for answer in sent.answers]
    if len(set(calls)) < len(calls):
        raise InvalidBody("message.parts: answers a call twice")
    for call in calls:
        if await task_of_call(services, keys, call) != name.task:
            raise UnknownCall


async def _answer_in_words(services: Services, keys: SessionKeys, name: TaskId, sent: Sent) -> Answer:
    """The answer to the one call that a task waits for; of a message that is sent again, to the call that it was for."""
    redis = services.broker.sessions
    message = sent.body.message.message_id
    noted = keys.idempotency(hashlib.sha256(f"a2a-answer {name.task} {message}".encode()).hexdigest())
    call = await command(redis, "GET", noted)
    if call is None:
        call = await _only_call(services, keys, name)
    else:
        call = call.decode()
    if sent.rest or not sent.text:
        raise InvalidBody(f"{sent.rest or 'message.parts'}: {_NOTHING_BESIDES}")
    record: Any = await command(redis, "HGET", keys.calls(name.task), call)
    result: Any = sent.text
    if record is not None and orjson.loads(record).get("kind") == APPROVAL:
        approves = consent(sent.text)
        if approves is None:
            raise InvalidBody("message.parts: answer yes or no")
        result = {"approve": approves}
    # Before the answer: a task that goes on may ask again, and a repeat of these words is no answer to that.
    if not await command(redis, "SET", noted, call, "NX", "PX", services.settings.ttl_ms):
        first = await command(redis, "GET", noted)
        call = first.decode() if first is not None else call
    return Answer(call, result)


async def _only_call(services: Services, keys: SessionKeys, name: TaskId) -> str:
    """The one call that a task waits for."""
    known = await services.log.task(keys, name.task)
    if known.get("status") in TERMINAL:
        raise UnsupportedOperation(
            "The task has ended: send the message without a taskId to go on in its context."
        )
    open_calls = await missing_answers(services, keys, name.task, ())
    if not open_calls:
        raise UnsupportedOperation("The task asks nothing now: send the message without a taskId, or wait.")
    if len(open_calls) > 1:
        raise InvalidBody(
            "message.parts: several calls wait; answer each by a data part with its callId and the result"
        )
    return open_calls[0]


async def _check_visible(services: Services, caller: Caller, keys: SessionKeys) -> None:
    """See to it that the context is this agent's."""
    there, _ = await found(services, keys, caller)
    if there.spec.name != caller.spec.name:
        raise NoSession


async def _visible_task(services: Services, caller: Caller, task: str) -> TaskId:
    name = TaskId.parse(task)
    keys = caller.keys(name.session)
    await _check_visible(services, caller, keys)
    if not await services.log.task(keys, name.task):
        raise NoTask
    return name


async def _task(services: Services, caller: Caller, name: TaskId, wire: Wire, history: int | None) -> Json:
    keys = caller.keys(name.session)
    await _check_visible(services, caller, keys)
    encoder = TaskEncoder(name, wire)
    place = await _so_far(services, keys, name, encoder)
    return encoder.document(history, at=place)


async def _so_far(
    services: Services, keys: SessionKeys, name: TaskId, encoder: TaskEncoder, cursor: Cursor | None = None
) -> Cursor:
    """Feed the encoder with what there is, or with what there was at the cursor; the place that it has reached."""
    encoder.quiet()
    log = services.log
    meta = await log.meta(keys)
    if meta is None:
        raise NoSession
    begun = await start_position.start(log, keys, meta, task=name.task)
    until = None
    if cursor:
        until = (await start_position.start(log, keys, meta, task=name.task, cursor=cursor)).after
        if until <= begun.after:
            # It is of a former task: this one is sent as it is now.
            until = None
    place = begun.after
    if place.seq < meta.head - 1:
        if until:
            raise CursorGone("What followed this cursor is no longer kept in pieces: get the task.")
        # What was cut is in the history; of a task that goes on, the rest is in the log.
        async for entry in log.all_kept(keys, place):
            if entry.seq >= meta.head or encoder.over:
                break
            _feed(encoder, name, place, entry)
        place = Cursor(meta.epoch, meta.head - 1)
    if encoder.over:
        return until or place
    async for entry in log.all_after(keys, place):
        if until and entry.seq > until.seq:
            break
        _feed(encoder, name, place, entry)
        place = Cursor(place.epoch, entry.seq)
        # What comes then is of other turns, of which a context may have any number.
        if encoder.over:
            break
    return until or place


async def _whole(services: Services, keys: SessionKeys, name: TaskId, encoder: TaskEncoder) -> bool:
    """Feed the encoder with the messages of an ended task, as the history has them: a log has each piece of them, too.

    False: the history has not all of it.
    """
    encoder.quiet()
    log = services.log
    meta, known = await asyncio.gather(log.meta(keys), log.task(keys, name.task))
    if meta is None or known.get("status") not in TERMINAL or not meta.has_epoch(int(known["epoch"])):
        return False
    place = Cursor(meta.epoch, int(known["first"]) - 1)
    behind = Cursor(meta.epoch, int(known["out"]) + 1)
    while not encoder.over:
        page = await log.kept(keys, place, behind)
        if page is None or page.last is None or page.cut or page.meta.epoch != place.epoch:
            return False
        for entry in page.entries:
            _feed(encoder, name, place, entry)
        place = page.last
    return True


def _feed(encoder: TaskEncoder, name: TaskId, place: Cursor, entry: Entry) -> None:
    if entry.task == name.task:
        encoder.feed(place.epoch, entry)


def _stream(
    services: Services, feed: Feed, encoder: TaskEncoder, name: TaskId, place: Cursor, headers: Headers = ()
) -> EventStream:
    encoder.tell()
    return EventStream(
        feed,
        Start(place, name.task, over=encoder.over),
        DIALECT,
        services.log,
        services.settings,
        headers=(*headers, *_headers(encoder.wire)),
        encoder=encoder,
        opening=encoder.snapshot(place),
    )


def _headers(wire: Wire, more: Headers = ()) -> list[tuple[bytes, bytes]]:
    own = [(EXTENSIONS_HEADER.lower().encode(), CURSORS.encode())] if wire.cursors else []
    return [*more, *own]


# ── lists ──


async def _page_of(
    services: Services, caller: Caller, listed: list[ListedTask], asked: ListTasks
) -> list[Json]:
    """These tasks, or as many of the first as a page may hold."""
    tasks: list[Json] = []
    size = 0
    for at in range(0, len(listed), TASKS_AT_ONCE):
        some = listed[at : at + TASKS_AT_ONCE]
        for task in await asyncio.gather(*(_listed(services, caller, each, asked) for each in some)):
            size += len(orjson.dumps(task))
            tasks.append(task)
            if size > PAGE_BYTES:
                return tasks
    return tasks


async def _listed(services: Services, caller: Caller, listed: ListedTask, asked: ListTasks) -> Json:
    """A task as lists have it: its messages and artifacts only where they are asked for."""
    name = _id(listed)
    if asked.include_artifacts or asked.history_length or listed.status == TaskStatus.PARKED:
        keys, encoder = caller.keys(name.session), TaskEncoder(name)
        try:
            if not (listed.status in TERMINAL and await _whole(services, keys, name, encoder)):
                encoder = TaskEncoder(name)
                await _so_far(services, keys, name, encoder)
        except (NoSession, NoTask, CursorGone):
            pass
        else:
            return encoder.document(asked.history_length or 0, artifacts=bool(asked.include_artifacts))
    status = {"state": _state(listed), "timestamp": time_of(listed.at)}
    return {"id": str(name), "contextId": name.session, "status": status}


def _id(listed: ListedTask) -> TaskId:
    return TaskId(listed.ref.session, listed.ref.task)


def _state(listed: ListedTask) -> str:
    if listed.status == TaskStatus.PARKED:
        return INPUT_REQUIRED
    return ENDED.get(listed.status) or (WORKING if listed.begun else SUBMITTED)


def _fits(asked: ListTasks, listed: ListedTask) -> bool:
    return (not asked.context_id or listed.ref.session == asked.context_id) and (
        asked.status is None or _state(listed) == asked.status
    )


def _page(token: str) -> Place | None:
    """The place of the task that the page before ended with."""
    if not token:
        return None
    match = _PLACE.fullmatch(token)
    try:
        return (int(match[1]), "/".join(TaskId.parse(match[2]))) if match else _no_page()
    except NoTask:
        return _no_page()


def _no_page() -> Place:
    raise InvalidBody("pageToken: not one that a page of this list has told")


# ── who is told ──


def _check_push(caller: Caller) -> None:
    if caller.spec.a2a is None or not caller.spec.a2a.push_notifications:
        raise NoPushNotifications


def _checked(services: Services, caller: Caller, config: PushConfig) -> Webhook:
    """Who is to be told, if anything may be sent there."""
    _check_push(caller)
    try:
        Address.parse(config.url, networks_of(services.settings.webhook_networks or ""))
    except ValueError as error:
        raise InvalidBody(f"url: {error}") from None
    if config.id and not IDENTIFIER.fullmatch(config.id):
        raise InvalidBody("id: letters, digits and _ . : @ -, at most 128 of them")
    # A repeat has the same name.
    name = config.id or hashlib.sha256(f"{config.url} {config.token}".encode()).hexdigest()[:32]
    try:
        check_token(config.token)
    except ValueError as error:
        raise InvalidBody(f"token: {error}") from None
    return webhook(config, name)


async def _keep(services: Services, caller: Caller, name: TaskId, told: Webhook) -> Webhook:
    """Keep a webhook, with a secret where its config brings none: the one that it has already, when the config is sent again."""
    ref = _ref(caller, name)
    before = next((each for each in await services.webhooks.of(ref) if each.id == told.id), None)
    if not told.token:
        known = before.token if before is not None and before.url == told.url else ""
        told = replace(told, token=known or new_secret(secrets.token_bytes(24)))
    if before is not None and before != told:
        # Another config under its id: the task's present state is sent to its address, too.
        await services.webhooks.drop(ref, told.id)
    kept = await services.webhooks.keep(ref, told)
    if kept is None:
        raise NoTask
    if not kept:
        raise InvalidBody("id: this task has as many push notification configs as it may have; delete one")
    return told


def _ref(caller: Caller, name: TaskId) -> TaskRef:
    return TaskRef(caller.owner, name.session, name.task)
