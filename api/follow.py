"""Where a follower starts, and where a reconnecting client is told that its history is gone.

A cursor of another epoch is refused before any frame: the session was cleared since. A cursor before the
log's first entry is served: what was trimmed comes from the history, where each completed message and
terminal event stands whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.broker import insist
from shared.entry import Cursor
from shared.errors import CursorGone, NoSession, NoTask
from shared.tasks import TERMINAL

if TYPE_CHECKING:
    from shared.entry import Entry
    from shared.keys import SessionKeys
    from shared.log import Log, SessionMeta

# How long a request insists with a broker that is away, before its client is told to come back.
PATIENCE_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Start:
    """Where and what to follow.

    Attributes:
        after: the place before the first entry that is wanted.
        task: the only task to follow; the stream ends with it. None: the whole session.
        over: the client has seen the task's end already.
    """

    after: Cursor
    task: str | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who wants to see a session: the agent of the key, and the user that the request named, or ``""``."""

    agent: str
    user: str = ""


async def session(log: Log, keys: SessionKeys, visitor: Visitor) -> SessionMeta:
    """The session, as this visitor may see it.

    Raises:
        NoSession: it is unknown, or belongs to another agent or user.
        BrokerAway: the broker did not answer.
    """
    meta = await insist(lambda: log.meta(keys), seconds=PATIENCE_SECONDS, what="session")
    if meta is None or meta.agent != visitor.agent:
        raise NoSession
    if visitor.user and meta.user and meta.user != visitor.user:
        raise NoSession
    return meta


async def start(
    log: Log, keys: SessionKeys, visitor: Visitor, *, task: str | None = None, cursor: Cursor | None = None
) -> Start:
    """Where to start following a session, or one task of it, after ``cursor`` if there is one.

    Without a cursor a task is followed from its first event, a session from the beginning of its log.

    Raises:
        NoSession: it is unknown, or belongs to another agent or user.
        NoTask: the session has no such task (any more).
        CursorGone: the session was cleared since the cursor, or since the task, or what stood at the cursor was lost.
        BrokerAway: the broker did not answer.
    """
    meta = await session(log, keys, visitor)
    cursor = _place(cursor, meta) if cursor else None
    if task is None:
        return Start(cursor or Cursor(meta.epoch, meta.head - 1))
    known = await insist(lambda: log.task(keys, task), seconds=PATIENCE_SECONDS, what="task")
    if not known:
        raise NoTask
    if not meta.has_epoch(int(known["epoch"])):
        raise CursorGone
    before = Cursor(meta.epoch, int(known["first"]) - 1)
    after = max(cursor, before) if cursor else before
    return Start(after, task, over=known["status"] in TERMINAL and after.seq >= int(known["out"]))


async def task_of(log: Log, keys: SessionKeys, visitor: Visitor, cursor: Cursor) -> str:
    """The task that the entry at a cursor belongs to.

    Raises:
        NoTask: nothing stands at the cursor, nor in the history after it.
        Others: as `start`.
    """
    cursor = _place(cursor, await session(log, keys, visitor))
    entry = await insist(lambda: log.at(keys, cursor), seconds=PATIENCE_SECONDS, what="cursor")
    if entry is None:
        raise NoTask
    return entry.task


async def running_task(log: Log, keys: SessionKeys, visitor: Visitor) -> str:
    """The task that a session is working on; the newest one where several run at once.

    Raises:
        NoTask: none is live.
        Others: as `start`.
    """
    meta = await session(log, keys, visitor)
    live = await insist(lambda: log.live(keys), seconds=PATIENCE_SECONDS, what="live")
    if not live:
        raise NoTask("No turn of this session is running.")
    return meta.active if meta.active in live else live[0]


async def trimmed(log: Log, keys: SessionKeys, after: Cursor, before: int, task: str | None) -> list[Entry]:
    """What stands in the history for the entries strictly between ``after`` and seq ``before``.

    Raises:
        BrokerAway: the broker did not answer.
    """
    entries = await insist(
        lambda: log.history(keys, after=after, before=Cursor(after.epoch, before)),
        seconds=PATIENCE_SECONDS,
        what="history",
    )
    return [entry for entry in entries if task is None or entry.task == task]


def _place(cursor: Cursor, meta: SessionMeta) -> Cursor:
    """The cursor in the present epoch."""
    place = meta.place(cursor)
    if place is None:
        raise CursorGone
    return place
