"""Sessions and turns of clients that name them by an id alone: the owner comes with the key, the agent with the session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import visible, visible_session
from turnstream.api.streaming import start_position
from turnstream.api.turns.ids import SegmentName
from turnstream.api.turns.submit import derived_session
from turnstream.shared.broker.client import command
from turnstream.shared.errors import NoSession, NoTask
from turnstream.shared.session.entry import Cursor

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnstream.api.access.auth import Caller
    from turnstream.api.access.session_access import Visitor
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import SessionMeta


_RETRY_HEADER = "x-stainless-retry-count"

# How long after a turn's end a client may ask again that lost its connection before: it waits some seconds at most.
_WAITED_SECONDS = 20


async def found(
    services: Services, keys: SessionKeys, caller: Caller, user: str = ""
) -> tuple[Caller, SessionMeta]:
    """The session, and the caller with its agent.

    Raises:
        NoSession: there is none, or it is another owner's, user's, or that of an agent that the key has not.
        BrokerAway: the broker did not answer.
    """
    meta = await services.log.sure_meta(keys)
    caller_there = caller.speaking_to(meta.agent) if meta is not None else None
    if caller_there is None:
        raise NoSession
    return caller_there, visible(meta, caller_there.visitor(user))


async def task_named(
    services: Services, keys: SessionKeys, text: str | None, visitor: Visitor | None
) -> str | None:
    """The task that an id names, when one is given: the id of one of its segments names it, too.

    Without a ``visitor`` it is known that the session may be seen.

    Raises:
        NoTask: it cannot be one, or its task has no such segment yet.
        NoSession: as `visible_session`; for the id of a segment alone, which is looked for.
        BrokerAway: the broker did not answer.
    """
    if not text:
        return None
    name = SegmentName.parse(text)
    if name.segment:
        if visitor is not None:
            await visible_session(services.log, keys, visitor)
        known = await services.log.task(keys, name.response)
        if not known or name.segment > max(start_position.parks_of(known)):
            raise NoTask
    return name.response


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
    """Whether this is a retry of the request that made the turn, whose reply the client did not get.

    OpenAI's clients retry by themselves, without an idempotency key, and say in a header that they do. They wait for the answer:
    if the turn ended a while ago, they had it, and ask the same once more, and were refused before.

    Raises:
        BrokerAway: the broker did not answer.
    """
    if not task or not is_retry(request):
        return False
    known, ended = await command(services.broker.sessions, "HMGET", keys.task(task), "digest", "ended")
    is_waited_for = not ended or time.time() - int(ended) / 1000 < _WAITED_SECONDS
    return bool(known is not None and known.decode() == digest and is_waited_for)


def is_retry(request: Request) -> bool:
    """Whether the request is marked as a client's own retry."""
    return request.headers.get(_RETRY_HEADER, "0") != "0"


def retry_name(request: Request, caller: Caller, digest: str) -> str:
    """What a retry of the request has in common with it; empty where the client would send none.

    Not for requests with an idempotency key, nor for those that name a session: these are found by that.
    """
    return derived_session(caller, f"retry {digest}") if _RETRY_HEADER in request.headers else ""


async def is_known(services: Services, keys: SessionKeys, key: str) -> bool:
    """Whether a request of that idempotency key was taken in this session.

    Raises:
        BrokerAway: the broker did not answer.
    """
    return bool(key and await command(services.broker.sessions, "EXISTS", keys.idempotency(key)))
