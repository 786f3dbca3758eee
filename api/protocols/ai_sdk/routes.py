"""The routes of chats: ``/ai-sdk/chat``, and ``/ai-sdk/v5/chat`` for the fifth version."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from turnstream.api.http.params import route
from turnstream.api.protocols.ai_sdk.chunks import CHUNKS, HEADERS, ChunkStream
from turnstream.api.protocols.ai_sdk.messages import IDS, all_messages, page_ids
from turnstream.api.protocols.ai_sdk.requests import parse_chat
from turnstream.api.streaming import start_position
from turnstream.api.turns.answers import answered, blocking_call
from turnstream.api.turns.branches import branch_off, check_goes_on_in, go_on_in, newest_branch
from turnstream.api.turns.callbacks import known_calls
from turnstream.api.turns.finding import found, is_known, newest_task
from turnstream.api.turns.follow import Encoded, encoded_stream, following
from turnstream.api.turns.posted import posted
from turnstream.api.turns.stop import stop_all
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    idempotency_of,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import CursorGone, InvalidBody, NoSession, NoTask, SessionBusy
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import PARKED
from turnstream.shared.session.status import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Container

    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.access.auth import Caller
    from turnstream.api.protocols.ai_sdk.requests import Posted
    from turnstream.api.services import Services
    from turnstream.api.streaming.sse import EventStream
    from turnstream.api.turns.answers import Answer
    from turnstream.shared.broker.keys import SessionKeys

PREFIX = "/ai-sdk"
CHAT = f"{PREFIX}/chat"
FIFTH_CHAT = f"{PREFIX}/v5/chat"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a turn is to be taken.

    Attributes:
        keys: the session.
        known: it knows what was said before.
        repeated: the turn, if the request is a repeat.
        key: what a repeat has, too.
    """

    keys: SessionKeys
    known: bool
    repeated: str = ""
    key: str = ""


class AiSdkRoutes:
    """Serves `useChat`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """A chat, its stream, its stop and its messages; each for either kind of version."""
        return [
            each
            for path in (CHAT, FIFTH_CHAT)
            for each in (
                route(path, self.chat, "POST"),
                route(f"{path}/{{chat_id:path}}/stream", self.stream, "GET"),
                route(f"{path}/{{chat_id:path}}/stop", self.stop, "POST"),
                route(f"{path}/{{chat_id:path}}/messages", self.messages, "GET"),
            )
        ]

    async def chat(self, request: Request) -> EventStream:
        """Take a turn, or answers to calls, and tell what comes of it."""
        services = self._services
        key_holder, raw, chat = await posted(services, request, parse_chat)
        root = _session(key_holder, chat.body.id)
        keys = await newest_branch(services, root, key_holder)
        known = await services.log.meta(keys) is not None
        if known:
            there, _ = await found(services, keys, chat.caller, chat.body.user or "")
            if there.spec.name != chat.caller.spec.name:
                if chat.body.model is not None:
                    raise InvalidBody("model: the chat is with another agent of this API key")
                chat = chat.to(there)
        if chat.last.role == "assistant":
            if not known:
                raise NoSession
            answers = await self._awaited(chat, keys)
            async with following(services, keys, chat.caller) as feed:
                task, segment = await answered(services, keys, answers, "messages")
                encoded = await self._segment(request, keys, task, segment)
                return encoded_stream(services, feed, encoded, CHUNKS)
        place = await self._place(request, chat, root, keys, known=known)
        async with following(services, place.keys, chat.caller) as feed:
            if place.repeated:
                encoded = await self._turn(request, place.keys, place.repeated)
            else:
                encoded = await self._begin(request, chat, place, len(raw))
            if place.keys.session != keys.session:
                await go_on_in(services, root, keys, place.keys)
            task = encoded.start.task or ""
            await check_goes_on_in(services, root, place.keys, chat.caller, task)
            return encoded_stream(services, feed, encoded, CHUNKS)

    async def stream(self, request: Request) -> EventStream | Response:
        """The newest turn from its beginning; 204 where none is live. With ``ended``, one that has ended is sent, too."""
        services = self._services
        caller = await services.auth.caller(request)
        keys = await newest_branch(services, _session(caller, request.path_params["chat_id"]), caller)
        try:
            caller, _ = await found(services, keys, caller)
        except NoSession:
            # A page asks before its first message.
            return Response(status_code=204)
        task = await newest_task(services, keys)
        status = (await services.log.task(keys, task)).get("status", "") if task else ""
        ended = request.query_params.get("ended", "").lower() in ("true", "1")
        if not status or (status in TERMINAL and not ended):
            return Response(status_code=204)
        async with following(services, keys, caller) as feed:
            encoded = await self._turn(request, keys, task)
            return encoded_stream(services, feed, encoded, CHUNKS)

    async def stop(self, request: Request) -> Response:
        """End all that is live in a chat. When this answers, it has ended."""
        services = self._services
        _, keys = await self._found(request)
        await stop_all(services, keys, await services.log.live(keys), "stop", who="client")
        return _json({"success": True})

    async def messages(self, request: Request) -> Response:
        """What was said in a chat."""
        _, keys = await self._found(request)
        entries = self._services.log.all_kept(keys)
        return _json(await all_messages(entries, fifth=_is_fifth(request)))

    async def _found(self, request: Request) -> tuple[Caller, SessionKeys]:
        caller = await self._services.auth.caller(request)
        root = _session(caller, request.path_params["chat_id"])
        keys = await newest_branch(self._services, root, caller)
        caller, _ = await found(self._services, keys, caller)
        return caller, keys

    # ── a turn ──

    async def _place(
        self, request: Request, chat: Posted, root: SessionKeys, keys: SessionKeys, *, known: bool
    ) -> _Place:
        """Where the turn is to be taken: in the chat's session, or, in place of one that was, in a branch."""
        services = self._services
        given = idempotency_of(request)
        key = given or _hash("message", chat.last.id) if chat.last.id or given else ""
        if not known:
            if chat.anew and not given and await is_known(services, keys, key):
                # Its turn was deleted with the chat.
                key = uuid.uuid4().hex
            return _Place(keys, known=False, key=key)
        if not chat.anew:
            if not await is_known(services, keys, key):
                await self._check_waits_for_none(chat, keys)
            return _Place(keys, known=True, key=key)
        if given and await is_known(
            services, target := chat.caller.keys(_hash(root.session, given)[:32]), given
        ):
            # The branch that the first request made.
            return _Place(target, known=True, key=given)
        before, task = await self._turns_around(chat, keys)
        if not task:
            return _Place(keys, known=True, key=given or uuid.uuid4().hex)
        if chat.body.trigger == "submit-message" and await self._is_live(keys, task, chat):
            return _Place(keys, known=True, repeated=task)
        target = chat.caller.keys(_hash(root.session, given or f"{keys.session} {task}")[:32])
        if not before:
            return _Place(target, known=False, key=key)
        try:
            await branch_off(services, chat.caller, keys, before, target, chat.body.user or "")
        except (NoTask, CursorGone):
            # It is too long ago: the page knows it.
            return _Place(target, known=False, key=key)
        return _Place(target, known=True, key=key)

    async def _check_waits_for_none(self, chat: Posted, keys: SessionKeys) -> None:
        """See to it that a turn would not wait for calls that its page cannot answer meanwhile.

        Raises:
            SessionBusy: it would.
        """
        if blocking := await blocking_call(self._services, chat.caller, keys):
            raise SessionBusy(f"The chat waits for the answer to {blocking[1]}: give it, or stop the turn.")

    async def _is_live(self, keys: SessionKeys, task: str, chat: Posted) -> bool:
        """Whether a turn is live and was asked the same: its page asks again, since it got no answer."""
        fields = ("status", "digest")
        status, digest = await command(self._services.broker.sessions, "HMGET", keys.task(task), *fields)
        return bool(status and status.decode() not in TERMINAL and digest == chat.digest.encode())

    async def _turns_around(self, chat: Posted, keys: SessionKeys) -> tuple[str, str]:
        """The turn that is to be taken anew, and the one before it; empty where there is none."""
        answers = {chat.body.messageId, chat.last.id} - {None, ""}
        before = task = ""
        turns: dict[str, None] = {}
        async for entry in self._services.log.all_kept(keys):
            turns.setdefault(entry.task)
            is_said = not numbered(entry.event) and entry.kind != PARKED
            if entry.task in answers or (is_said and answers.intersection(page_ids(entry))):
                task = entry.task
                break
            if is_said and orjson.loads(entry.event).get("id") in answers:
                task = entry.task
                break
        if task:
            earlier = ["", *turns]
            before = earlier[earlier.index(task) - 1]
        return before, task

    async def _begin(self, request: Request, chat: Posted, place: _Place, size: int) -> Encoded[ChunkStream]:
        keys, task = place.keys, new_task_id()
        said, ids = (chat.said, [chat.last.id]) if place.known else chat.whole()
        turn = NewTurn(
            ref=TaskRef(keys.owner, keys.session, task),
            response=RESPONSE_PREFIX + task,
            user=chat.body.user or "",
            create=True,
            input=said,
            idempotency=place.key,
            digest=chat.digest,
            trace=trace_of(request),
            overrides=chat.overrides,
            size=size,
            beside={IDS: ids},
        )
        start, headers = await begin(self._services, chat.caller, turn)
        if not start.new:
            return await self._turn(request, keys, start.task or task)
        stream = ChunkStream(task, fifth=_is_fifth(request))
        return Encoded(start, stream, (*HEADERS, *headers))

    async def _awaited(self, chat: Posted, keys: SessionKeys) -> list[Answer]:
        """Those of a message's answers that its turn waits for; if it waits for none, it had them: the last one."""
        if not chat.answers:
            raise InvalidBody(
                "messages: the last one is the assistant's, and answers no call; to follow its turn, GET the chat's stream"
            )
        waiting = await known_calls(self._services, keys, [answer.call for answer in chat.answers])
        awaited = [answer for answer in chat.answers if waiting.get(answer.call)]
        return awaited or chat.answers[-1:]

    # ── what is sent ──

    async def _segment(
        self, request: Request, keys: SessionKeys, task: str, number: int
    ) -> Encoded[ChunkStream]:
        log = self._services.log
        meta = await log.meta(keys)
        if meta is None:
            raise NoSession
        part = await start_position.segment(log, keys, meta, task, number=number)
        start = await start_position.start_of(log, keys, meta, part)
        return Encoded(start, ChunkStream(task, number, fifth=_is_fifth(request)), HEADERS)

    async def _turn(self, request: Request, keys: SessionKeys, task: str) -> Encoded[ChunkStream]:
        """A turn from its beginning, up to where its client is asked now, or to its end."""
        log = self._services.log
        meta = await log.meta(keys)
        if meta is None:
            raise NoSession
        known = await log.task(keys, task)
        start = await start_position.start(log, keys, meta, task=task)
        passes = max(start_position.parks_of(known)) - (known["status"] == TaskStatus.PARKED)
        settled: Container[str] = _EVERYTHING
        if known["status"] not in TERMINAL:
            fields = await command(self._services.broker.sessions, "HKEYS", keys.calls(task))
            answered_ones = (field.decode() for field in fields if field.endswith(b":result"))
            settled = {field.removesuffix(":result") for field in answered_ones}
        stream = ChunkStream(task, fifth=_is_fifth(request), passes=passes, settled=settled)
        return Encoded(start, stream, HEADERS)


class _Everything:
    """What has all calls in it."""

    def __contains__(self, _: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _session(caller: Caller, chat: str) -> SessionKeys:
    """The session of a chat's id, whatever that is."""
    return caller.keys(chat if IDENTIFIER.fullmatch(chat) else derived_session(caller, f"ai-sdk {chat}"))


def _is_fifth(request: Request) -> bool:
    return request.url.path.startswith(FIFTH_CHAT)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
