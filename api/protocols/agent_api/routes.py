"""The Agent API route, ``/process``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import visible_session
from turnstream.api.http.params import cursor_of, route, session_id, task_id
from turnstream.api.protocols.agent_api.requests import (
    COMPLETE,
    dialect_of,
    on_park_of,
    parse_process,
)
from turnstream.api.protocols.agent_api.response import WholeResponse, rejected
from turnstream.api.protocols.agent_api.segments import AnsweredTurn, SegmentResponse
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.turns.callbacks import (
    ENTRIES_PER_ANSWER,
    answer_call,
    answers_to,
    asked_at,
    known_calls,
    task_of_call,
)
from turnstream.api.turns.follow import following, watch, watch_segment
from turnstream.api.turns.ids import SegmentName
from turnstream.api.turns.overrides import overrides_of
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    idempotency_of,
    new_task_id,
    task_of_response,
    trace_of,
)
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import CursorGone, InvalidBody, Overloaded, SessionBusy, TooMany
from turnstream.shared.protocol.answers import CallResult, answers_in, told_calls, told_results
from turnstream.shared.session.endings import without_number
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.agent_api.frames import Agentscope
    from turnstream.api.protocols.agent_api.requests import Parsed
    from turnstream.api.services import Services
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.api.turns.overrides import Overrides
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.protocol import AgentRequest
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import SessionMeta


@dataclass(frozen=True, slots=True)
class _Asked:
    """One POST, read."""

    caller: Caller
    keys: SessionKeys
    body: AgentRequest
    overrides: Overrides
    cursor: Cursor | None
    idempotency: str
    digest: str
    trace: str
    size: int
    dialect: Agentscope
    # Whether each segment of the turn is a response of its own.
    complete: bool

    @property
    def named(self) -> SegmentName | None:
        """The response that the client names."""
        name = self.body.id or self.body.response_id
        return SegmentName.parse(name) if name else None

    @property
    def response(self) -> str | None:
        """The turn's response id that the client chose or knows."""
        return self.named.response if self.named else None

    @property
    def user(self) -> str:
        return self.body.user_id or ""


@dataclass(frozen=True, slots=True)
class _Following:
    """What a POST is answered with.

    Attributes:
        start: where to follow, and what.
        headers: more than every answer has.
        part: the segment that is a response of its own.
        joined: the turn's response for who gave answers; without both it is told as it is.
    """

    start: Start
    headers: Headers = ()
    part: SegmentResponse | None = None
    joined: AnsweredTurn | None = None


class ProcessRoutes:
    """Serves Agent API clients."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The route, to ask and to follow."""
        return [route("/process", self.process, "POST"), route("/process", self.watch, "GET")]

    async def process(self, request: Request) -> EventStream | WholeResponse | Response:
        """Take a turn, answers to calls, or a wish to reconnect; then follow the task."""
        services = self._services
        caller = await services.auth.caller(request)
        dialect = dialect_of(request)
        complete = on_park_of(request, caller.spec) == COMPLETE
        async with services.limiter.counting_refusals(caller):
            parse = partial(parse_process, spec=caller.spec)
            raw, parsed = await services.bodies.read(request, caller, parse)
            if parsed.request.tools:
                # Their schemas are checked, which may take long.
                asked = await services.offload.run(
                    caller.owner, self._read, request, caller, parsed, raw, dialect, complete
                )
            else:
                asked = self._read(request, caller, parsed, raw, dialect, complete)
        try:
            async with following(services, asked.keys, caller) as feed:
                return await self._respond(feed, await self._start(asked), asked)
        except (SessionBusy, TooMany, Overloaded) as refusal:
            return rejected(asked.keys.session, asked.response, refusal, dialect)

    async def watch(self, request: Request) -> EventStream:
        """Follow a response, or without ``response_id`` the whole session."""
        services = self._services
        caller = await services.auth.caller(request)
        dialect = dialect_of(request)
        keys = caller.keys(session_id(request, "session_id"))
        named = request.query_params.get("response_id")
        response, number = SegmentName.parse(named) if named else ("", 0)
        task = task_id(task_of_response(response))
        visitor = caller.visitor(request.query_params.get("user_id", ""))
        cursor = cursor_of(request)
        complete = on_park_of(request, caller.spec) == COMPLETE
        if task is None or not (number or complete):
            return await watch(services, keys, visitor, dialect, caller=caller, task=task, cursor=cursor)
        opened = partial(SegmentResponse, dialect, keys.session)
        return await watch_segment(
            services, keys, visitor, dialect, opened, caller=caller, task=task, number=number, cursor=cursor
        )

    def _read(
        self,
        request: Request,
        caller: Caller,
        parsed: Parsed,
        raw: bytes,
        dialect: Agentscope,
        complete: bool,
    ) -> _Asked:
        body, idempotency = parsed.request, idempotency_of(request)
        session = body.session_id
        if session is None:
            name = idempotency or body.id or body.response_id
            session = derived_session(caller, name) if name else uuid.uuid4().hex
        return _Asked(
            caller=caller,
            keys=caller.keys(session),
            body=body,
            overrides=overrides_of(body, caller.spec, parsed.ignored),
            cursor=cursor_of(request),
            idempotency=idempotency,
            digest=parsed.digest,
            trace=trace_of(request),
            size=len(raw),
            dialect=dialect,
            complete=complete,
        )

    async def _start(self, asked: _Asked) -> _Following:
        answers = answers_in(asked.body.input)
        if answers and not await self._are_told(asked, answers):
            return await self._answer(asked, answers)
        log, keys, cursor = self._services.log, asked.keys, asked.cursor
        further = asked.named.segment if asked.named else 0
        if not asked.body.reconnect and cursor is None:
            if further:
                raise InvalidBody("id: that of a further response of a turn, which only answers begin")
            return await self._begin(asked)
        if asked.body.reconnect:
            _named(asked, "to reconnect")
        elif asked.response is None and not asked.idempotency:
            # Whatever else it says: who has received something of a task wants the rest of it.
            _named(asked, "with Last-Event-ID")
        meta = await self._visible(asked)
        if asked.response:
            task = task_of_response(asked.response)
        elif cursor is None or asked.body.reconnect:
            task = await start_position.running_task(log, keys, meta)
        else:
            task = await start_position.task_of(log, keys, meta, cursor)
        if not (asked.complete or further):
            return _Following(await start_position.start(log, keys, meta, task=task, cursor=cursor))
        # The turn's id is that of its first response, too.
        number, place = further if asked.response else None, cursor.seq if cursor else None
        return await self._part(asked, meta, task, number=number, place=place, cursor=cursor)

    async def _part(
        self,
        asked: _Asked,
        meta: SessionMeta,
        task: str,
        *,
        number: int | None = None,
        place: int | None = None,
        cursor: Cursor | None = None,
    ) -> _Following:
        """A segment of a task as a response; see `start_position.segment`."""
        log, keys = self._services.log, asked.keys
        segment = await start_position.segment(log, keys, meta, task, number=number, place=place)
        if number == 0 and asked.body.stream and segment.is_passed(place):
            # As `watch_segment`.
            return _Following(await start_position.start(log, keys, meta, task=task, cursor=cursor))
        # One JSON object is the whole response, whatever the client has of it.
        start = await start_position.start_of(log, keys, meta, segment, cursor if asked.body.stream else None)
        return _Following(start, part=SegmentResponse(asked.dialect, keys.session, segment))

    async def _are_told(self, asked: _Asked, answers: list[CallResult]) -> bool:
        """Whether the input holds these calls, too, and its session made none of them: it tells what was said elsewhere."""
        calls = {each.call for each in answers}
        if not calls <= told_calls(asked.body.input):
            return False
        return not (asked.body.session_id and await known_calls(self._services, asked.keys, calls))

    async def _check_no_call_waits(self, asked: _Asked) -> None:
        """Refuse words behind an answer that a turn waits for: they would wait for that turn, and the answer be lost."""
        told = told_results(asked.body.input) if asked.body.session_id else set()
        waiting = [
            call for call, waits in (await known_calls(self._services, asked.keys, told)).items() if waits
        ]
        if waiting:
            await self._visible(asked)
            raise InvalidBody(
                f"input: answers the call {waiting[0]}, which is awaited, and goes on behind it. Let the input end"
                " with the answers, and send the rest when that turn has ended."
            )

    async def _begin(self, asked: _Asked) -> _Following:
        await self._check_no_call_waits(asked)
        task = task_of_response(asked.response) if asked.response else new_task_id()
        turn = NewTurn(
            ref=TaskRef(asked.keys.owner, asked.keys.session, task),
            response=asked.response or RESPONSE_PREFIX + task,
            user=asked.user,
            create=True,
            input=asked.body.input,
            idempotency=asked.idempotency,
            digest=asked.digest,
            trace=asked.trace,
            overrides=asked.overrides,
            size=asked.size,
        )
        start, headers = await begin(self._services, asked.caller, turn)
        if not asked.complete:
            return _Following(start, headers)
        if start.new:
            # The turn is accepted: nothing is read any more that could fail.
            return _Following(start, headers, SegmentResponse(asked.dialect))
        meta = await self._visible(asked)
        return await self._part(asked, meta, start.task or task, number=0)

    async def _answer(self, asked: _Asked, answers: list[CallResult]) -> _Following:
        """Answer calls, and follow their task from before the answers; or the response that begins with them."""
        services, keys = self._services, asked.keys
        _named(asked, "to answer a call")
        meta = await self._visible(asked)
        tasks = [await task_of_call(services, keys, each.call) for each in answers]
        first = False
        for task, each in zip(tasks, answers, strict=True):
            ref = TaskRef(keys.owner, keys.session, task)
            new, _ = await answer_call(services, ref, each.call, each.result)
            first = first or new
        calls = {each.call for each in answers}
        if asked.complete:
            return await self._answered_part(asked, meta, tasks[0], calls, after=meta.seq if first else 0)
        given = [] if first else await answers_to(services.log, keys, tasks[0], calls)
        cursor = asked.cursor
        if cursor is None:
            cursor = Cursor(meta.epoch, meta.seq if first else _before(given[0]) if given else 0)
        # The answers may have found that the log begins a new epoch.
        meta = await self._visible(asked)
        start = await start_position.start(services.log, keys, meta, task=tasks[0], cursor=cursor)
        known = without_number(given[0].event) if given else b""
        return _Following(start, joined=AnsweredTurn(asked.dialect, calls, known))

    async def _answered_part(
        self, asked: _Asked, before: SessionMeta, task: str, calls: set[str], *, after: int
    ) -> _Following:
        """The response that the answers to calls belong to; they stand behind ``after``, seen ``before`` they were given."""
        log, keys = self._services.log, asked.keys
        given = await answers_to(log, keys, task, calls, Cursor(before.epoch, after))
        if not given:
            raise CursorGone
        meta = await self._visible(asked)
        # The turn may have been parked between two of them.
        segment = await start_position.segment(log, keys, meta, task, place=_before(given[-1]) + 1)
        cursor = asked.cursor
        if cursor is None and not (segment.number and calls & await asked_at(log, keys, segment.after)):
            # They came before the turn was parked: its response goes on.
            first = next(place for place in map(_before, given) if place >= segment.after.seq)
            cursor = Cursor(meta.epoch, first + ENTRIES_PER_ANSWER)
        return await self._part(asked, meta, task, number=segment.number, cursor=cursor)

    async def _visible(self, asked: _Asked) -> SessionMeta:
        return await visible_session(self._services.log, asked.keys, asked.caller.visitor(asked.user))

    async def _respond(self, feed: Feed, followed: _Following, asked: _Asked) -> EventStream | WholeResponse:
        services, start, headers, dialect = self._services, followed.start, followed.headers, asked.dialect
        if asked.body.stream:
            return EventStream(
                feed,
                start,
                dialect,
                services.log,
                services.settings,
                headers=headers,
                encoder=followed.part or followed.joined,
            )
        if followed.part is not None:
            return WholeResponse(feed, start, dialect, services.log, headers=headers, part=followed.part)
        # The outcome holds the whole output, so the cursor does not matter; open calls do, from the first on.
        meta = await self._visible(asked)
        whole = await start_position.start(services.log, feed.keys, meta, task=start.task)
        return WholeResponse(feed, whole, dialect, services.log, headers=headers)


def _before(answer: Entry) -> int:
    """The place before the first entry of an answer."""
    return answer.seq - ENTRIES_PER_ANSWER


def _named(asked: _Asked, why: str) -> None:
    if asked.body.session_id is None:
        raise InvalidBody(f"session_id: needed {why}")
