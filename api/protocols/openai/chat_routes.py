"""The route of chat completions."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson

from turnstream.api.http.params import route
from turnstream.api.protocols.openai.chat_requests import parse_chat
from turnstream.api.protocols.openai.chat_stream import ChatStream
from turnstream.api.protocols.openai.finding import (
    answered,
    asks_again,
    found,
    is_known,
    newest_task,
    task_of_answers,
)
from turnstream.api.protocols.openai.frames import OpenAiDialect
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.streaming.whole import WholeAnswer
from turnstream.api.turns.answers import missing_answers
from turnstream.api.turns.follow import following
from turnstream.api.turns.ids import ResponseId
from turnstream.api.turns.submit import (
    RESPONSE_PREFIX,
    NewTurn,
    begin,
    derived_session,
    idempotency_of,
    new_task_id,
    trace_of,
)
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import InvalidBody, NoSession
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.endings import numbered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.protocols.openai.chat_requests import Chat
    from turnstream.api.services import Services
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.start_position import Start
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Entry

PATH = "/v1/chat/completions"

# Who names the conversation: the first is ours, the others are what clients send.
SESSION_HEADERS = (
    "x-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
    "x-chat-id",
)
_MESSAGE_HEADER = "x-openwebui-message-id"
_USER_HEADER = "x-openwebui-user-id"


def _opened(session: str, entry: Entry) -> ChatStream:
    return ChatStream(ResponseId(session, entry.task, 0), "agent")


CHAT = OpenAiDialect("openai-chat", _opened)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a request is answered with."""

    start: Start
    stream: ChatStream
    headers: Headers = ()


class ChatRoutes:
    """Serves chat completions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The one."""
        return [route(PATH, self.complete, "POST")]

    async def complete(self, request: Request) -> EventStream | WholeAnswer:
        """Take a turn, or answers to calls, and tell what comes of it."""
        services = self._services
        caller = await services.auth.caller(request)
        async with services.limiter.counting_refusals(caller):
            raw, chat = await services.bodies.read(request, caller, partial(parse_chat, caller=caller))
        answers = chat.given.answers
        if answers:
            keys, one_shot, repeated = chat.caller.keys(task_of_answers(answers).session), False, ""
        else:
            keys, one_shot, repeated = await self._session(request, chat)
        async with following(services, keys, chat.caller) as feed:
            if answers:
                told = await self._answer(chat, keys)
            elif repeated:
                told = await self._told(chat, ResponseId(keys.session, repeated, 0))
            else:
                told = await self._begin(request, chat, keys, len(raw), one_shot=one_shot)
            return self._respond(feed, chat, told, one_shot=one_shot)

    async def _session(self, request: Request, chat: Chat) -> tuple[SessionKeys, bool, str]:
        """The session that a header names, if the turn goes on there; else one for this turn alone, which is said.

        And the task, if the client asks again by itself.
        """
        caller, services = chat.caller, self._services
        name = next((value for header in SESSION_HEADERS if (value := request.headers.get(header))), "")
        if name:
            keys = caller.keys(name if IDENTIFIER.fullmatch(name) else derived_session(caller, name))
            if await self._fits(chat, keys, _key(request)):
                return keys, False, ""
            newest = await newest_task(services, keys)
            if await asks_again(services, request, keys, newest, chat.digest):
                return keys, False, newest
        key = _key(request)
        return caller.keys(derived_session(caller, f"chat {key}") if key else uuid.uuid4().hex), True, ""

    async def _fits(self, chat: Chat, keys: SessionKeys, key: str) -> bool:
        """Whether the session is with this agent, waits for no answers, and has what the client says to have sent before.

        As far as the number of its user's messages tells. A client that edits or repeats what was said, says something else
        than answers, or speaks to another agent by now, has another conversation than the log, and tells all of it.
        """
        services = self._services
        if await services.log.meta(keys) is None:
            return True
        there, _ = await found(services, keys, chat.caller)
        if there.spec.name != chat.caller.spec.name:
            return False
        if await is_known(services, keys, key):
            return True
        newest = await newest_task(services, keys)
        if newest and await missing_answers(services, keys, newest, ()):
            return False
        users = 0
        async for entry in self._services.log.all_kept(keys):
            users += not numbered(entry.event) and b'"role":"user"' in entry.event
        return users == chat.earlier_users

    async def _begin(
        self, request: Request, chat: Chat, keys: SessionKeys, size: int, *, one_shot: bool
    ) -> _Told:
        caller, services = chat.caller, self._services
        known = not one_shot and await services.log.meta(keys) is not None
        messages = (chat.newest if known else chat.given).messages
        if not messages:
            raise InvalidBody("messages: the last one must not be the assistant's")
        task = new_task_id()
        turn = NewTurn(
            ref=TaskRef(keys.owner, keys.session, task),
            response=RESPONSE_PREFIX + task,
            user=_user(request, chat),
            create=True,
            input=messages,
            idempotency=_key(request),
            digest=chat.digest,
            trace=trace_of(request),
            overrides=chat.overrides,
            size=size,
            approvals=chat.approvals,
        )
        start, headers = await begin(services, caller, turn)
        if not start.new:
            # A repeat: the first segment of the turn that the first request made.
            ref = TaskRef(keys.owner, keys.session, start.task or task)
            await services.leaving.back(ref)
            return await self._told(chat, ResponseId(keys.session, ref.task, 0))
        return _Told(start, self._stream(chat, ResponseId(keys.session, task, 0)), headers)

    async def _answer(self, chat: Chat, keys: SessionKeys) -> _Told:
        await found(self._services, keys, chat.caller)
        task, number = await answered(self._services, keys, chat.given.answers, "messages")
        return await self._told(chat, ResponseId(keys.session, task, number))

    async def _told(self, chat: Chat, name: ResponseId) -> _Told:
        log, keys = self._services.log, chat.caller.keys(name.session)
        meta = await log.meta(keys)
        if meta is None:
            raise NoSession
        part = await start_position.segment(log, keys, meta, name.task, number=name.segment)
        start = await start_position.start_of(log, keys, meta, part)
        return _Told(start, self._stream(chat, name))

    def _stream(self, chat: Chat, name: ResponseId) -> ChatStream:
        options = chat.body.stream_options or {}
        model = chat.body.model or chat.caller.spec.name
        return ChatStream(name, model, usage=bool(options.get("include_usage")))

    def _respond(self, feed: Feed, chat: Chat, told: _Told, *, one_shot: bool) -> EventStream | WholeAnswer:
        services = self._services
        left = None
        if one_shot and chat.caller.spec.on_disconnect == "stop" and told.start.task:
            ref = TaskRef(feed.keys.owner, feed.keys.session, told.start.task)
            left = partial(services.leaving.left, ref)
        if not chat.body.stream:
            return _WholeChat(feed, told, services, left)
        return EventStream(
            feed,
            told.start,
            CHAT,
            services.log,
            services.settings,
            headers=told.headers,
            encoder=told.stream,
            left=left,
        )


class _WholeChat(WholeAnswer):
    """Answers with the completion when it is over."""

    def __init__(self, feed: Feed, told: _Told, services: Services, left: Callable[[], None] | None) -> None:
        super().__init__(feed, told.start, services.log, headers=told.headers, left=left)
        self._stream = told.stream

    async def answer(self, entries: AsyncGenerator[Entry | None, None]) -> tuple[int, bytes] | None:
        """The completion; what failed is an error, which is not to be asked for again: the turn was made."""
        async for entry in entries:
            if entry is None:
                continue
            self._stream.feed(0, entry)
            if self._stream.error is not None:
                self._headers = (*self._headers, (b"x-should-retry", b"false"))
                return 500, orjson.dumps({"error": self._stream.error})
            if self._stream.over:
                return 200, orjson.dumps(self._stream.document())
        return None


def _key(request: Request) -> str:
    """What a repeat of the request has, too."""
    message = request.headers.get(_MESSAGE_HEADER, "")
    return idempotency_of(request) or (
        hashlib.sha256(f"message {message}".encode()).hexdigest() if message else ""
    )


def _user(request: Request, chat: Chat) -> str:
    user = chat.body.user or request.headers.get(_USER_HEADER, "")
    return user if len(user) <= 256 and user.isprintable() else ""
