"""The LiteAgent routes (base path ``/liteAgent/v1``)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import structlog
from starlette.responses import Response

from turnstream.api.access.auth import Caller
from turnstream.api.access.session_access import visible_session
from turnstream.api.http.answers import answer
from turnstream.api.http.params import cursor_of, route, session_id
from turnstream.api.http.schemas import Version
from turnstream.api.protocols.liteagent.frames import LITEAGENT_STREAM, LITEAGENT_WHOLE, history
from turnstream.api.protocols.liteagent.requests import parse_callback, parse_chat
from turnstream.api.protocols.liteagent.schemas import CallbackTaken, NewSession, SessionCleared, Stopped
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.turns.callbacks import answer_call, task_of_call
from turnstream.api.turns.durable_submit import replica_headers
from turnstream.api.turns.finding import task_named
from turnstream.api.turns.follow import following, watch
from turnstream.api.turns.fork import fork_session
from turnstream.api.turns.stop import clear, stop, stop_all
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    idempotency_of,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.keys import SessionKeys, TaskRef
from turnstream.shared.errors import BadRequest, NoSession, NoTask, UnknownCall
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.protocol import Message
from turnstream.shared.session.outcomes import Gone
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.protocols.liteagent.frames import LiteAgent
    from turnstream.api.protocols.liteagent.requests import ChatRequest
    from turnstream.api.services import Services
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.api_keys import ApiKey

log = structlog.get_logger(__name__)

BASE = "/liteAgent/v1"


class LiteAgentRoutes:
    """Serves LiteAgent clients."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The seven routes of the protocol."""
        return [
            route(f"{BASE}/version", self.version, "GET"),
            route(f"{BASE}/initSession", self.init_session, "POST"),
            route(f"{BASE}/chat", self.chat, "POST"),
            route(f"{BASE}/chat", self.watch, "GET"),
            route(f"{BASE}/callback", self.callback, "POST"),
            route(f"{BASE}/history", self.history, "GET"),
            route(f"{BASE}/stop", self.stop, "GET", "POST"),
            route(f"{BASE}/clear", self.clear, "GET", "POST"),
        ]

    async def version(self, request: Request) -> Response:  # noqa: ARG002 - a route's signature
        """Our version."""
        return answer(Version, {"version": VERSION})

    async def init_session(self, request: Request) -> Response:
        """Make a session: empty, or with what was said in another one up to the end of a turn."""
        services = self._services
        caller = await services.auth.caller(request)
        session = uuid.uuid4().hex
        if "forkOf" in request.query_params:
            if key := idempotency_of(request):
                session = derived_session(caller, f"fork {key}")
            source = caller.keys(session_id(request, "forkOf"))
            task = await task_named(services, source, request.query_params.get("forkTask"), caller.visitor())
            if task is None:
                raise BadRequest(
                    "forkTask: name the task up to whose end the new session is to begin with what was said"
                )
            await fork_session(services, caller, source, task, caller.keys(session))
        else:
            keys = caller.keys(session)
            await services.limiter.admit_session(keys, caller)
            await services.tasks.create(keys, caller.spec.name, "")
        return answer(NewSession, {"sessionId": session})

    async def chat(self, request: Request) -> EventStream:
        """Take a user's message and follow the task; with a known task or a cursor, only follow."""
        services = self._services
        caller = await services.auth.caller(request)
        named = self._named(request, caller)
        async with services.limiter.counting_refusals(caller):
            body, chat = await services.bodies.read(request, caller, parse_chat)
        cursor = cursor_of(request)
        keys = caller.keys(named or _one_shot(request, caller, chat))
        async with following(services, keys, caller) as feed:
            headers: Headers = ()
            if cursor is not None:
                # Whatever else it says: who has received something of a task wants the rest of it.
                meta = await visible_session(services.log, keys, caller.visitor())
                task = chat.task_id or await start_position.task_of(services.log, keys, meta, cursor)
                start = await start_position.start(services.log, keys, meta, task=task, cursor=cursor)
            else:
                start, headers = await self._begin(request, caller, keys, chat, body, create=not named)
            dialect = _dialect(chat.stream)
            return EventStream(feed, start, dialect, services.log, services.settings, headers=headers)

    async def watch(self, request: Request) -> EventStream:
        """Follow a task, or without ``taskId`` the whole session."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = caller.keys(session_id(request, "sessionId"))
        cursor, visitor = cursor_of(request), caller.visitor()
        dialect = _dialect(request.query_params.get("stream", "").lower() in {"true", "1"})
        task = await task_named(services, keys, request.query_params.get("taskId"), visitor)
        return await watch(services, keys, visitor, dialect, caller=caller, task=task, cursor=cursor)

    async def callback(self, request: Request) -> Response:
        """Take a client's answer to a function call or to a request for approval."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = caller.keys(session_id(request, "sessionId"))
        async with services.limiter.counting_refusals(caller):
            _, given = await services.bodies.read(request, caller, parse_callback)
        await visible_session(services.log, keys, caller.visitor())
        if not IDENTIFIER.fullmatch(given.id):
            raise UnknownCall
        task = await task_of_call(services, keys, given.id)
        _, replicas = await answer_call(
            services, TaskRef(keys.owner, keys.session, task), given.id, given.result
        )
        headers = {name.decode(): value.decode() for name, value in replica_headers(replicas)}
        return answer(CallbackTaken, {"result": "success"}, headers=headers)

    async def history(self, request: Request) -> Response:
        """What was said in the session so far."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = caller.keys(session_id(request, "sessionId"))
        await visible_session(services.log, keys, caller.visitor())
        entries = [entry async for entry in services.log.all_kept(keys)]
        return Response(history(keys.session, entries), media_type="application/json")

    async def stop(self, request: Request) -> Response:
        """End one task, or all live ones of the session. When this answers, their ends are in the log."""
        keys, who = await self._to_stop(request)
        named = request.query_params.get("taskId")
        if not named:
            # In one round trip; nothing is ended before it is known that the caller may.
            reads = self._check_visible(keys, who), self._services.log.live(keys)
            _, live = await asyncio.gather(*reads)
            await stop_all(self._services, keys, live, "stop", who="client")
            return answer(Stopped, {"sessionId": keys.session})
        await self._check_visible(keys, who)
        task = await task_named(self._services, keys, named, None) or ""
        ref = TaskRef(keys.owner, keys.session, task)
        if isinstance(await stop(self._services, ref, "stop", who="client"), Gone):
            raise NoTask
        return answer(Stopped, {"sessionId": keys.session, "taskId": task})

    async def clear(self, request: Request) -> Response:
        """End what is live, then forget everything that was said."""
        services = self._services
        caller = await services.auth.caller(request)
        if caller.spec.simple:
            raise BadRequest(
                "This agent is one-shot: each turn has a session of its own, and nothing to clear."
            )
        keys = caller.keys(session_id(request, "sessionId"))
        meta = await visible_session(services.log, keys, caller.visitor())
        await clear(services, keys, meta.epoch, "clear", who="client", idempotency=idempotency_of(request))
        return answer(SessionCleared, {"id": keys.session, "sessionId": keys.session})

    async def _begin(
        self,
        request: Request,
        caller: Caller,
        keys: SessionKeys,
        chat: ChatRequest,
        body: bytes,
        *,
        create: bool,
    ) -> tuple[Start, Headers]:
        task = chat.task_id or new_task_id()
        turn = NewTurn(
            ref=TaskRef(keys.owner, keys.session, task),
            response=RESPONSE_PREFIX + task,
            user="",
            create=create,
            input=[Message.model_validate(message) for message in chat.input()],
            beside={"parts": chat.parts},
            idempotency=idempotency_of(request),
            digest=chat.digest,
            trace=trace_of(request),
            size=len(body),
        )
        return await begin(self._services, caller, turn)

    def _named(self, request: Request, caller: Caller) -> str | None:
        """The session of a chat; a one-shot agent needs none."""
        if caller.spec.simple and not request.query_params.get("sessionId"):
            return None
        return session_id(request, "sessionId")

    async def _to_stop(self, request: Request) -> tuple[SessionKeys, Caller | ApiKey]:
        """The session to stop: one of the key's own, or with an admin key and ``owner=`` anybody's; and who stops."""
        services = self._services
        owner = request.query_params.get("owner")
        if owner is None:
            caller = await services.auth.caller(request)
            return caller.keys(session_id(request, "sessionId")), caller
        key = await services.auth.admin(request)
        if not IDENTIFIER.fullmatch(owner):
            raise NoSession
        return SessionKeys(owner, session_id(request, "sessionId")), key

    async def _check_visible(self, keys: SessionKeys, who: Caller | ApiKey) -> None:
        """Raise NoSession unless there is such a session, and the caller may see it; what an admin stops is logged."""
        if isinstance(who, Caller):
            await visible_session(self._services.log, keys, who.visitor())
        elif await self._services.log.sure_meta(keys) is None:
            raise NoSession
        else:
            log.info("admin.stops_session", key=who.id, owner=keys.owner, session=keys.session)


def _one_shot(request: Request, caller: Caller, chat: ChatRequest) -> str:
    """A session for a single turn; a repeat that can be told finds it again."""
    name = request.headers.get("idempotency-key") or chat.task_id
    return derived_session(caller, name) if name else uuid.uuid4().hex


def _dialect(stream: bool) -> LiteAgent:
    return LITEAGENT_STREAM if stream else LITEAGENT_WHOLE
