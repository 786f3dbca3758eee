"""The route of chat completions."""

from __future__ import annotations

import hashlib
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.http.params import route
from turnstream.api.protocols.openai.chat_requests import parse_chat
from turnstream.api.protocols.openai.chat_stream import ChatStream
from turnstream.api.streaming import start_position
from turnstream.api.streaming.dialect import EncodedDialect
from turnstream.api.turns.answers import answered, missing_answers, task_of_answers
from turnstream.api.turns.finding import asks_again, found, is_known, is_retry, newest_task, retry_name
from turnstream.api.turns.follow import Encoded, encoded_document, encoded_stream, following, so_far
from turnstream.api.turns.ids import ResponseId
from turnstream.api.turns.posted import posted
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
from turnstream.shared.errors import BadRequest, InvalidBody, NoSession
from turnstream.shared.names import IDENTIFIER
from turnstream.shared.session.endings import numbered
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.session_list import ONE_SHOT

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from turnstream.api.protocols.openai.chat_requests import Chat
    from turnstream.api.services import Services
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.sse import EventStream
    from turnstream.api.streaming.whole import WholeDocument
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Entry
    from turnstream.shared.session.event_log import SessionMeta

PATH = "/v1/chat/completions"

# Who names the conversation: the first is ours, the others are what clients send.
SESSION_HEADERS = (
    "x-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
    "x-chat-id",
)
# Under these names, beside the user's message in the log: how many of these the session has with it; and whether it has a
# session for itself.
_USERS, _ONE_SHOT = "users", ONE_SHOT

_MESSAGE_HEADER = "x-openwebui-message-id"
_USER_HEADER = "x-openwebui-user-id"
MOST_USER = 256


def _opened(session: str, entry: Entry) -> ChatStream:
    return ChatStream(ResponseId(session, entry.task, 0), "agent")


CHAT = EncodedDialect("openai-chat", _opened)


class ChatRoutes:
    """Serves chat completions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The one."""
        return [route(PATH, self.complete, "POST")]

    async def complete(self, request: Request) -> EventStream | WholeDocument:
        """Take a turn, or answers to calls, and answer with the completion."""
        services = self._services
        _, raw, chat = await posted(services, request, parse_chat)
        answers = chat.given.answers
        if answers:
            keys, one_shot, repeated = chat.caller.keys(task_of_answers(answers).session), False, ""
        else:
            keys, one_shot, repeated = await self._session(request, chat)
        async with following(services, keys, chat.caller) as feed:
            if answers:
                told, one_shot = await self._answer(request, chat, keys)
            elif repeated:
                told = await self._segment(chat, keys, repeated, 0)
            else:
                told = await self._begin(request, chat, keys, len(raw), one_shot=one_shot)
            return self._respond(request, feed, chat, told, one_shot=one_shot)

    async def _session(self, request: Request, chat: Chat) -> tuple[SessionKeys, bool, str]:
        """The session that a header names, if the turn goes on there; else one for this turn alone, and which of the two.

        And the task, if the client asks again by itself.
        """
        caller, services = chat.caller, self._services
        name = _session_name(request)
        named = (name if IDENTIFIER.fullmatch(name) else derived_session(caller, name)) if name else ""
        retry = _retry_name(request, chat)
        if retry and is_retry(request) and (ref := await services.leaving.lost(caller.owner, retry)):
            await services.leaving.back(ref)
            return ref.keys, ref.session != named, ref.task
        if named:
            keys = caller.keys(named)
            if await self._fits(request, chat, keys):
                return keys, False, ""
            newest = await newest_task(services, keys)
            if await asks_again(services, request, keys, newest, chat.digest):
                return keys, False, newest
        key = _key(request, chat)
        return caller.keys(derived_session(caller, f"chat {key}") if key else uuid.uuid4().hex), True, ""

    async def _fits(self, request: Request, chat: Chat, keys: SessionKeys) -> bool:
        """Whether the client's conversation is the session's: its agent, as many of its user's messages, and its last answer.

        A client that has an answer made anew, or edits a message, or speaks to another agent by now, has another conversation
        than the log. So has one that sends anything but answers while the session waits for these.
        """
        services = self._services
        if await services.log.meta(keys) is None:
            return True
        there, meta = await found(services, keys, chat.caller, _user(request, chat))
        if there.spec.name != chat.caller.spec.name:
            return False
        if await is_known(services, keys, _key(request, chat)):
            return True
        newest = await newest_task(services, keys)
        if not newest:
            return not chat.earlier_users
        if await missing_answers(services, keys, newest, ()):
            return False
        if await self._users(keys, meta, newest) != chat.earlier_users:
            return False
        if chat.answered is None:
            return True
        told = await self._segment(chat, keys, newest, None)
        await so_far(services, keys, told)
        # Of an answer that it left, the client has the beginning.
        return told.encoder.text.strip().startswith(chat.answered.strip())

    async def _users(self, keys: SessionKeys, meta: SessionMeta, newest: str) -> int:
        """How many of its user's messages the session has."""
        if users := (await self._beside(keys, meta, newest)).get(_USERS):
            return int(users)
        # Its newest turn came through another protocol.
        users = 0
        async for entry in self._services.log.all_kept(keys):
            users += not numbered(entry.event) and b'"role":"user"' in entry.event
        return users

    async def _beside(self, keys: SessionKeys, meta: SessionMeta, task: str) -> dict[str, Any]:
        """What is kept beside the message that began a turn; nothing of one that came through another protocol."""
        log = self._services.log
        first = (await log.task(keys, task)).get("first")
        entry = await log.at(keys, Cursor(meta.epoch, int(first) + 1)) if first else None
        return dict(orjson.loads(entry.extra)) if entry is not None and entry.extra else {}

    async def _begin(
        self, request: Request, chat: Chat, keys: SessionKeys, size: int, *, one_shot: bool
    ) -> Encoded[ChatStream]:
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
            idempotency=_key(request, chat),
            digest=chat.digest,
            trace=trace_of(request),
            overrides=chat.overrides,
            size=size,
            approvals=chat.approvals,
            beside={
                _USERS: sum(message.role == "user" for message in messages) + known * chat.earlier_users,
                _ONE_SHOT: one_shot,
            },
        )
        start, headers = await begin(services, caller, turn)
        if not start.new:
            # A repeat: the first segment of the turn that the first request made.
            ref = TaskRef(keys.owner, keys.session, start.task or task)
            await services.leaving.back(ref)
            return await self._segment(chat, keys, ref.task, 0)
        return Encoded(start, self._stream(chat, ResponseId(keys.session, task, 0)), headers)

    async def _answer(
        self, request: Request, chat: Chat, keys: SessionKeys
    ) -> tuple[Encoded[ChatStream], bool]:
        """Answer calls; and whether the turn has a session for itself."""
        services = self._services
        _, meta = await found(services, keys, chat.caller, _user(request, chat))
        task, number = await answered(services, keys, chat.given.answers, "messages")
        one_shot = (await self._beside(keys, meta, task)).get(_ONE_SHOT) is True
        if one_shot:
            await services.leaving.back(TaskRef(keys.owner, keys.session, task))
        return await self._segment(chat, keys, task, number), one_shot

    async def _segment(
        self, chat: Chat, keys: SessionKeys, task: str, number: int | None
    ) -> Encoded[ChatStream]:
        """A segment of a task; without a number its newest one."""
        log = self._services.log
        meta = await log.meta(keys)
        if meta is None:
            raise NoSession
        part = await start_position.segment(log, keys, meta, task, number=number)
        start = await start_position.start_of(log, keys, meta, part)
        return Encoded(start, self._stream(chat, ResponseId(keys.session, task, part.number)))

    def _stream(self, chat: Chat, name: ResponseId) -> ChatStream:
        options = chat.body.stream_options or {}
        model = chat.body.model or chat.caller.spec.name
        return ChatStream(name, model, usage=bool(options.get("include_usage")))

    def _respond(
        self, request: Request, feed: Feed, chat: Chat, told: Encoded[ChatStream], *, one_shot: bool
    ) -> EventStream | WholeDocument:
        services = self._services
        left = None
        retry = _retry_name(request, chat)
        stops = one_shot and chat.caller.spec.on_disconnect == "stop"
        if (stops or retry) and told.start.task:
            ref = TaskRef(feed.keys.owner, feed.keys.session, told.start.task)
            left = partial(services.leaving.left, ref, stops=stops, request=retry)
        if not chat.body.stream:
            return encoded_document(services, feed, told, left)
        return encoded_stream(services, feed, told, CHAT, left)


def _session_name(request: Request) -> str:
    return next((value for header in SESSION_HEADERS if (value := request.headers.get(header))), "")


def _retry_name(request: Request, chat: Chat) -> str:
    """What the client's own retry has, too; empty where it is found by more: its key, or the calls that it answers."""
    if chat.given.answers or _key(request, chat):
        return ""
    asked = (chat.digest, _session_name(request), _user(request, chat))
    return retry_name(request, chat.caller, "\0".join(asked))


def _key(request: Request, chat: Chat) -> str:
    """What a repeat of the request has, too."""
    if key := idempotency_of(request):
        return key
    message = request.headers.get(_MESSAGE_HEADER, "")
    # These clients ask more about the same message: for a title, say.
    return hashlib.sha256(f"message {message} {chat.digest}".encode()).hexdigest() if message else ""


def _user(request: Request, chat: Chat) -> str:
    user = chat.body.user or request.headers.get(_USER_HEADER, "")
    if len(user) > MOST_USER or not user.isprintable():
        raise BadRequest(f"{_USER_HEADER}: at most {MOST_USER} printable characters")
    return user
