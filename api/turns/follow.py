"""Following a session, or one task of it: the only way from a request to a feed of entries."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from turnstream.api.access.session_access import visible
from turnstream.api.streaming import start_position
from turnstream.api.streaming.sse import EventStream
from turnstream.api.streaming.whole import WholeDocument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from turnstream.api.access.auth import Caller
    from turnstream.api.access.session_access import Visitor
    from turnstream.api.services import Services
    from turnstream.api.streaming.dialect import Dialect, Encoder
    from turnstream.api.streaming.feed import Feed
    from turnstream.api.streaming.leaving import Left
    from turnstream.api.streaming.start_position import Segment, Start
    from turnstream.api.streaming.whole import Document
    from turnstream.api.turns.durable_submit import Headers
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.entry import Cursor


E_co = TypeVar("E_co", bound="Encoder", covariant=True)


@dataclass(frozen=True, slots=True)
class Encoded(Generic[E_co]):
    """A segment of a turn that is an answer to a client.

    Attributes:
        start: its first entry.
        encoder: what is written of it.
        headers: further headers of the answer.
    """

    start: Start
    encoder: E_co
    headers: Headers = ()


@asynccontextmanager
async def following(services: Services, keys: SessionKeys, caller: Caller | None) -> AsyncIterator[Feed]:
    """A feed of the session for a response that is made within; the session need not exist yet.

    The response leaves the feed. If making it fails, the feed is left here. Without a ``caller`` an operator follows,
    who does not count against the limits of the session's owner.

    Raises:
        TooMany: the owner has as many followers as the key, or this front end, allows.
        Overloaded: this front end holds as many followers as it may.
        ShuttingDown: this front end is stopping.
        BrokerAway: the broker did not answer.
    """
    if caller is not None:
        await services.limiter.admit_follower(caller)
    # Nothing is awaited in between: until it follows, the admitted follower is missing from the count that the next
    # one of the owner is compared with.
    with services.hub.following(keys, operator=caller is None) as feed:
        yield feed


async def watch(
    services: Services,
    keys: SessionKeys,
    visitor: Visitor,
    dialect: Dialect,
    *,
    caller: Caller | None,
    task: str | None,
    cursor: Cursor | None,
) -> EventStream:
    """A stream of the session, or of one ``task`` of it, after ``cursor`` if there is one.

    Raises:
        TooMany, Overloaded, ShuttingDown: as `following`.
        NoSession: as `visible`.
        NoTask, CursorGone: as `start_position.start`.
        BrokerAway: the broker did not answer.
    """
    async with following(services, keys, caller) as feed:
        meta = visible(await feed.meta(cursor), visitor)
        start = await start_position.start(services.log, keys, meta, task=task, cursor=cursor)
        return EventStream(feed, start, dialect, services.log, services.settings)


async def watch_segment(
    services: Services,
    keys: SessionKeys,
    visitor: Visitor,
    dialect: Dialect,
    opened: Callable[[Segment], Encoder],
    *,
    caller: Caller | None,
    task: str,
    number: int,
    cursor: Cursor | None,
) -> EventStream:
    """A stream of one segment of a task, as the encoder writes it that is ``opened`` for it, after ``cursor`` if there is one.

    The first one has the task's own name: who has seen more than that follows the task.

    Raises:
        TooMany, Overloaded, ShuttingDown: as `following`.
        NoSession: as `visible`.
        NoTask, CursorGone: as `start_position.segment` and `start_position.start_of`.
        BrokerAway: the broker did not answer.
    """
    async with following(services, keys, caller) as feed:
        meta = visible(await feed.meta(None), visitor)
        segment = await start_position.segment(services.log, keys, meta, task, number=number)
        if not number and cursor and segment.is_passed(cursor.seq):
            rest = await start_position.start(services.log, keys, meta, task=task, cursor=cursor)
            return EventStream(feed, rest, dialect, services.log, services.settings)
        start = await start_position.start_of(services.log, keys, meta, segment, cursor)
        return EventStream(feed, start, dialect, services.log, services.settings, encoder=opened(segment))


def encoded_stream(
    services: Services,
    feed: Feed,
    encoded: Encoded[Encoder],
    dialect: Dialect,
    left: Left | None = None,
) -> EventStream:
    """A segment as a stream; ``left`` is called when the client leaves before its end."""
    return EventStream(
        feed,
        encoded.start,
        dialect,
        services.log,
        services.settings,
        headers=encoded.headers,
        encoder=encoded.encoder,
        left=left,
    )


async def so_far(services: Services, keys: SessionKeys, encoded: Encoded[Document]) -> None:
    """Feed the encoder of a segment with all that the log has of it now.

    Raises:
        BrokerAway: the broker did not answer.
    """
    encoder, log, after, task = encoded.encoder, services.log, encoded.start.after, encoded.start.task
    encoder.quiet()
    meta = await log.meta(keys)
    cut = meta is not None and after.seq < meta.head - 1
    entries = log.all_kept(keys, after) if cut else log.all_after(keys, after)
    async for entry in entries:
        if entry.task == task:
            encoder.feed(after.epoch, entry)
            if encoder.over:
                break


def encoded_document(
    services: Services, feed: Feed, encoded: Encoded[Document], left: Left | None = None
) -> WholeDocument:
    """A segment as one document, when it is over; ``left`` is called when the client leaves before that."""
    return WholeDocument(
        feed, encoded.start, services.log, encoded.encoder, headers=encoded.headers, left=left
    )
