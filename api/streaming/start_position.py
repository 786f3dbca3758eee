"""Where a follower starts, and where a reconnecting client is told that its history is gone.

A cursor that the log never gave is refused before any frame: one of an epoch from before the session was cleared, or one
behind the place where the log of its epoch ends (it lost its end). A cursor before the log's first entry is served: what was trimmed comes from the history, where each completed message and
terminal event stands whole. Where some of these behind the cursor were cut, too, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from turnstream.shared.errors import CursorGone, NoTask
from turnstream.shared.session.endings import numbered, without_number
from turnstream.shared.session.entry import PARKED, RESPONSE, Cursor, Entry
from turnstream.shared.session.status import TERMINAL, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log, Page, SessionMeta

# What every turn says of itself before anything else, each once.
BEGINNING = ("queued", "created", "in_progress")

# Tasks that are looked at for one to which a cursor belongs that was cut from the log.
MOST_OWNERS = 64


@dataclass(frozen=True, slots=True)
class Start:
    """Where and what to follow.

    Attributes:
        after: the place before the first entry that is wanted.
        task: the only task to follow; the stream ends with it. None: the whole session.
        over: the client has seen the task's end already.
        fresh: the task is wanted from its first event.
        new: the task was made just now.
        seen: up to this seq the client has all; what stands behind `after` is read for the sake of what comes then.
    """

    after: Cursor
    task: str | None = None
    over: bool = False
    fresh: bool = False
    new: bool = False
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a turn: what stands between two of its parks, or its beginning, or its end.

    Attributes:
        task: the turn.
        number: from 0; it begins behind so many parks.
        after: the place before its first entry; of a further one, its park's.
        end: the place of the park that ends it; None: it is the turn's last one, so far.
        response, submitted, metadata: of the turn: its response's id, when it was submitted (Unix milliseconds), and what
            its events tell as their metadata, JSON.
        ended: the turn has.
    """

    task: str
    number: int
    after: Cursor
    end: int | None
    response: str
    submitted: int
    metadata: bytes
    ended: bool = False

    def is_passed(self, place: int | None) -> bool:
        """Whether a place is behind its end: who has seen that much follows the turn over its parks."""
        return place is not None and self.end is not None and place > self.end


async def start(
    log: Log, keys: SessionKeys, meta: SessionMeta, *, task: str | None = None, cursor: Cursor | None = None
) -> Start:
    """Where to start following a session, or one task of it, after ``cursor`` if there is one.

    Without a cursor a task is followed from its first event, a session from the beginning of its log.

    Raises:
        NoTask: the session has no such task (any more).
        CursorGone: the session was cleared since the cursor, or since the task, or what stood at the cursor was lost,
            or some of what followed it was cut from the history, too, or the task's end was.
        BrokerAway: the broker did not answer.
    """
    if cursor:
        meta, cursor = await _placed(log, keys, meta, cursor)
    if task is None:
        if cursor:
            await _check_kept(log, keys, meta, cursor)
        return Start(cursor or Cursor(meta.epoch, meta.head - 1))
    known = await log.task(keys, task, sure=True)
    if not known:
        raise NoTask
    if not meta.has_epoch(int(known["epoch"])):
        raise CursorGone(CursorGone.turn)
    before = Cursor(meta.epoch, int(known["first"]) - 1)
    after = max(cursor, before) if cursor else before
    over = False
    if known["status"] in TERMINAL:
        end = Cursor(meta.epoch, int(known["out"]))
        over = after >= end
        if not over and end.seq < meta.head and not await _stands(log, keys, end):
            raise CursorGone(CursorGone.turn)
    if cursor and after == cursor and not over:
        await _check_kept(log, keys, meta, cursor)
    return Start(after, task, over=over, fresh=cursor is None)


async def segment(
    log: Log,
    keys: SessionKeys,
    meta: SessionMeta,
    task: str,
    *,
    number: int | None = None,
    place: int | None = None,
) -> Segment:
    """The segment of a task of that number, or the one that has the entry at a ``place``; else its newest one.

    While a task is parked, that is the one at whose end the client is asked: the next one has yet to begin.

    Raises:
        NoTask: the session has no such task (any more), or the task no such segment yet.
        CursorGone: the session was cleared since the task, or so many parks ago nobody knows where it stands.
        BrokerAway: the broker did not answer.
    """
    known = await log.task(keys, task, sure=True)
    if not known:
        raise NoTask
    if not meta.has_epoch(int(known["epoch"])):
        raise CursorGone(CursorGone.turn)
    parks = parks_of(known)
    newest = max(parks)
    if number is None and place is not None:
        number = max(park for park, seq in parks.items() if not park or seq < place)
    elif number is None:
        # A park is the last entry of the segment that it ends.
        number = max(newest - (known["status"] == TaskStatus.PARKED), 0)
    if number > newest:
        raise NoTask
    if number not in parks or (number < newest and number + 1 not in parks):
        raise CursorGone(CursorGone.turn)
    return Segment(
        task=task,
        number=number,
        after=Cursor(meta.epoch, parks[number]),
        end=parks.get(number + 1),
        response=known["response"],
        submitted=int(known["submitted"]),
        metadata=known.get("metadata", "").encode(),
        ended=known["status"] in TERMINAL,
    )


def parks_of(known: Mapping[str, str]) -> dict[int, int]:
    """Park → its place, of a task as `Log.task` has it; 0: the place before the task's first entry."""
    places = (park.split("-") for park in known.get("parks", "").split())
    return {0: int(known["first"]) - 1} | {int(park): int(seq) for seq, park in places}


async def start_of(
    log: Log, keys: SessionKeys, meta: SessionMeta, part: Segment, cursor: Cursor | None = None
) -> Start:
    """Where to start following a segment, from its first entry on, for who has all up to a ``cursor``, if any.

    Raises:
        CursorGone: as `start`; or what the client has cannot be told again as it was: its pieces were cut from the log.
        BrokerAway: the broker did not answer.
    """
    if cursor:
        meta, place = await _placed(log, keys, meta, cursor)
        cursor = max(place, part.after)
    begun = await start(log, keys, meta, task=part.task, cursor=cursor)
    if cursor and part.ended and not part.number and part.end is None:
        # It was never parked: its events are the log's own, whatever was before.
        return begun
    seen = begun.after.seq if cursor else 0
    over = begun.over or (part.end is not None and seen >= part.end)
    # The park that a further one begins behind says something for it, too.
    after = part.after._replace(seq=part.after.seq - 1) if part.number else part.after
    if not over and (part.number or cursor):
        await _check_kept(log, keys, meta, after)
        # The first one's numbers are the log's own: what is left of it is told as it was.
        if part.number and seen > part.after.seq and part.after.seq < meta.head - 1:
            raise CursorGone
    return replace(begun, after=after, over=over, seen=seen, fresh=begun.fresh and not part.number)


async def _check_kept(log: Log, keys: SessionKeys, meta: SessionMeta, cursor: Cursor) -> None:
    """Raise CursorGone unless log and history together have all that came after the cursor."""
    if cursor.seq < meta.head - 1 and not await log.reaches_back(keys, cursor):
        raise CursorGone


async def task_of(log: Log, keys: SessionKeys, meta: SessionMeta, cursor: Cursor) -> str:
    """The task that the entry at a cursor belongs to.

    Raises:
        CursorGone: nothing stands at the cursor any more, and it cannot be told for certain whose it was.
        BrokerAway: the broker did not answer.
    """
    _, cursor = await _placed(log, keys, meta, cursor)
    entry = await log.at(keys, cursor)
    if entry is not None:
        return entry.task
    # A piece that was cut. It is of a task that began before it and ended after it, and the terminal event of each
    # task that has ended since is in what follows, unless that was cut, too.
    if await log.reaches_back(keys, cursor):
        owners: dict[str, bool] = {}
        for task in await log.live(keys):
            owners[task] = await _spans(log, keys, task, cursor)
        async for entry in log.all_kept(keys, cursor):
            if entry.task not in owners:
                if len(owners) == MOST_OWNERS:
                    raise CursorGone
                owners[entry.task] = await _spans(log, keys, entry.task, cursor)
        if sum(owners.values()) == 1:
            return max(owners, key=lambda task: owners[task])
    raise CursorGone


async def _spans(log: Log, keys: SessionKeys, task: str, cursor: Cursor) -> bool:
    """Whether the entry at a cursor may be the task's."""
    known = await log.task(keys, task)
    if not known:
        return True
    return int(known["first"]) <= cursor.seq and (
        known["status"] not in TERMINAL or cursor.seq <= int(known["out"])
    )


async def _stands(log: Log, keys: SessionKeys, cursor: Cursor) -> bool:
    """Whether the log or the history has an entry there."""
    return await log.at(keys, cursor) is not None


async def ended(log: Log, keys: SessionKeys, task: str) -> int | None:
    """The place of a task's terminal event; 0 when the task is forgotten; None: it is live.

    Raises:
        BrokerAway: the broker did not answer.
    """
    known = await log.task(keys, task)
    if not known:
        return 0
    return int(known["out"]) if known["status"] in TERMINAL else None


async def running_task(log: Log, keys: SessionKeys, meta: SessionMeta) -> str:
    """The task that a session is working on; the newest one where several run at once.

    Raises:
        NoTask: none is live.
        BrokerAway: the broker did not answer.
    """
    live = await log.live(keys)
    if not live:
        raise NoTask("No turn of this session is running.")
    return meta.active if meta.active in live else live[0]


async def opening(log: Log, keys: SessionKeys, task: str) -> list[Entry]:
    """How an ended task began, made of what is known of it: its first events are never in the history.

    The places are not those that they had, but not beyond them.

    Raises:
        BrokerAway: the broker did not answer.
    """
    known = await log.task(keys, task)
    if known.get("status") not in TERMINAL:
        return []
    statuses = ["queued"]
    # A turn that was ended before a worker took it up says less.
    if int(known["number"]) > len(BEGINNING):
        statuses = [*BEGINNING]
    first, submitted = int(known["first"]), int(known["submitted"])
    response: dict[str, Any] = {
        "id": known["response"],
        "session_id": keys.session,
        "created_at": submitted // 1000,
    }
    if metadata := known.get("metadata"):
        response["metadata"] = orjson.Fragment(metadata)
    return [
        Entry(
            seq=first + number,
            task=task,
            path="",
            kind=RESPONSE,
            created=submitted,
            event=orjson.dumps(
                {"sequence_number": number, "object": "response", "status": status, **response}
            ),
        )
        for number, status in enumerate(statuses)
    ]


def begun_before(entry: Entry) -> int:
    """How many of a turn's first events (`BEGINNING`) come before an entry of it."""
    if entry.kind == RESPONSE:
        return BEGINNING.index(orjson.loads(entry.event)["status"])
    # The user's own words come between the first and the others.
    return len(BEGINNING) if entry.kind == PARKED or numbered(entry.event) else 1


def renumbered(entry: Entry, number: int) -> Entry:
    """The entry with that ``sequence_number``; itself, if it has none."""
    if not numbered(entry.event):
        return entry
    event = b'{"sequence_number":%d,%b' % (number, without_number(entry.event)[1:])
    return replace(entry, event=event)


async def trimmed(log: Log, keys: SessionKeys, after: Cursor, before: int) -> Page | None:
    """A page of what stands in the history for the entries strictly between ``after`` and seq ``before``; see `Log.kept`.

    Raises:
        BrokerAway: the broker did not answer.
    """
    return await log.kept(keys, after, Cursor(after.epoch, before))


async def _placed(
    log: Log, keys: SessionKeys, meta: SessionMeta, cursor: Cursor
) -> tuple[SessionMeta, Cursor]:
    """The cursor in the present epoch, and the session's meta, which is made sure of where it lacks the cursor."""
    sure: SessionMeta | None = meta
    if meta.place(cursor) is None:
        sure = await log.sure_meta(keys, cursor)
    place = sure.place(cursor) if sure else None
    if sure is None or place is None:
        raise CursorGone
    return sure, place
