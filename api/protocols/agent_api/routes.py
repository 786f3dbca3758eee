"""The Agent API route, ``/process``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import visible_session
from turnstream.api.http.params import cursor_of, route, session_id, task_id
from turnstream.api.protocols.agent_api.requests import CallResult, answers_in, dialect_of, parse_process
from turnstream.api.protocols.agent_api.response import WholeResponse, rejected
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.turns.callbacks import ENTRIES_PER_ANSWER, answer_call, task_of_call
from turnstream.api.turns.follow import following, watch
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
from turnstream.shared.errors import InvalidBody, Overloaded, SessionBusy, TooMany
from turnstream.shared.protocol import MessageType
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

    @property
    def response(self) -> str | None:
        """The response id that the client chose or knows."""
        return self.body.id or self.body.response_id

    @property
    def user(self) -> str:
        return self.body.user_id or ""


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
        async with services.limiter.counting_refusals(caller):
            parse = partial(parse_process, spec=caller.spec)
            raw, parsed = await services.bodies.read(request, caller, parse)
            if parsed.request.tools:
                # Their schemas are checked, which may take long.
                asked = await services.offload.run(caller.owner, self._read, request, caller, parsed, raw)
            else:
                asked = self._read(request, caller, parsed, raw)
        try:
            async with following(services, asked.keys, caller) as feed:
                start, headers = await self._start(asked)
                return await self._respond(feed, start, headers, asked, dialect)
        except (SessionBusy, TooMany, Overloaded) as refusal:
            return rejected(asked.keys.session, asked.response, refusal, dialect)

    async def watch(self, request: Request) -> EventStream:
        """Follow a response, or without ``response_id`` the whole session."""
        services = self._services
        caller = await services.auth.caller(request)
        dialect = dialect_of(request)
        keys = caller.keys(session_id(request, "session_id"))
        task = task_id(task_of_response(request.query_params.get("response_id", "")))
        visitor = caller.visitor(request.query_params.get("user_id", ""))
        cursor = cursor_of(request)
        return await watch(services, keys, visitor, dialect, caller=caller, task=task, cursor=cursor)

    def _read(self, request: Request, caller: Caller, parsed: Parsed, raw: bytes) -> _Asked:
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
        )

    async def _start(self, asked: _Asked) -> tuple[Start, Headers]:
        answers = answers_in(asked.body.input)
        if answers:
            return await self._answer(asked, answers), ()
        log, keys = self._services.log, asked.keys
        task = task_of_response(asked.response) if asked.response else None
        if asked.body.reconnect:
            _named(asked, "to reconnect")
            meta = await self._visible(asked)
            task = task or await start_position.running_task(log, keys, meta)
            return await start_position.start(log, keys, meta, task=task, cursor=asked.cursor), ()
        if asked.cursor is not None:
            # Whatever else it says: who has received something of a task wants the rest of it.
            if asked.response is None and not asked.idempotency:
                _named(asked, "with Last-Event-ID")
            meta = await self._visible(asked)
            task = task or await start_position.task_of(log, keys, meta, asked.cursor)
            return await start_position.start(log, keys, meta, task=task, cursor=asked.cursor), ()
        return await self._begin(asked, task or new_task_id())

    async def _begin(self, asked: _Asked, task: str) -> tuple[Start, Headers]:
        turn = NewTurn(
            ref=TaskRef(asked.keys.owner, asked.keys.session, task),
            response=asked.response or RESPONSE_PREFIX + task,
            user=asked.user,
            create=True,
            input=asked.body.input,
            parts=None,
            idempotency=asked.idempotency,
            digest=asked.digest,
            trace=asked.trace,
            overrides=asked.overrides,
            size=asked.size,
        )
        return await begin(self._services, asked.caller, turn)

    async def _answer(self, asked: _Asked, answers: list[CallResult]) -> Start:
        """Answer calls, and follow their task from before the answers."""
        services, keys = self._services, asked.keys
        _named(asked, "to answer a call")
        meta = await self._visible(asked)
        tasks = [await task_of_call(services, keys, each.call) for each in answers]
        first = False
        for task, each in zip(tasks, answers, strict=True):
            ref = TaskRef(keys.owner, keys.session, task)
            new, _ = await answer_call(services, ref, each.call, each.result)
            first = first or new
        cursor = asked.cursor
        if cursor is None:
            before = meta.seq if first else await self._before_answers(keys, {each.call for each in answers})
            cursor = Cursor(meta.epoch, before)
        # The answers may have found that the log begins a new epoch.
        meta = await self._visible(asked)
        return await start_position.start(services.log, keys, meta, task=tasks[0], cursor=cursor)

    async def _visible(self, asked: _Asked) -> SessionMeta:
        return await visible_session(self._services.log, asked.keys, asked.caller.visitor(asked.user))

    async def _before_answers(self, keys: SessionKeys, calls: set[str]) -> int:
        """The place before answers that were given earlier: their first reply may have been lost."""
        kinds = (MessageType.FUNCTION_CALL_OUTPUT, MessageType.MCP_APPROVAL_RESPONSE)
        async for entry in self._services.log.all_kept(keys):
            if entry.kind in kinds and any(call.encode() in entry.event for call in calls):
                return entry.seq - ENTRIES_PER_ANSWER
        return 0

    async def _respond(
        self, feed: Feed, start: Start, headers: Headers, asked: _Asked, dialect: Agentscope
    ) -> EventStream | WholeResponse:
        services = self._services
        if asked.body.stream:
            return EventStream(feed, start, dialect, services.log, services.settings, headers=headers)
        # The outcome holds the whole output, so the cursor does not matter; open calls do, from the first on.
        meta = await self._visible(asked)
        whole = await start_position.start(services.log, feed.keys, meta, task=start.task)
        return WholeResponse(feed, whole, dialect, services.log, headers=headers)


def _named(asked: _Asked, why: str) -> None:
    if asked.body.session_id is None:
        raise InvalidBody(f"session_id: needed {why}")
