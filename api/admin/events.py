"""A task's events, page by page, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from turnstream.api.streaming.start_position import trimmed
from turnstream.shared.errors import NoTask
from turnstream.shared.session.entry import END, Cursor
from turnstream.shared.session.status import TERMINAL

if TYPE_CHECKING:
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import TaskRef
    from turnstream.shared.session.entry import Entry

USUAL_EVENTS = 100
MOST_EVENTS = 500

# Pages of the log that are read for one answer: where many turns run in one session, most of it is others'.
_MOST_PAGES = 160


async def events_of(services: Services, ref: TaskRef, cursor: Cursor | None, limit: int) -> bytes:
    """Up to ``limit`` events after the cursor, as JSON; what was trimmed from the log, whole from the history.

    Raises:
        NoTask: there is no such task (any more).
        BrokerAway: the broker did not answer.
    """
    known = await services.log.task(ref.keys, ref.task)
    meta = await services.log.meta(ref.keys)
    if not known or meta is None:
        raise NoTask
    live = known["status"] not in TERMINAL
    if not meta.has_epoch(int(known["epoch"])):
        # The session was cleared since: what the task said is forgotten.
        return _page([], None, live=False)
    place = meta.place(cursor) if cursor else None
    after = max(Cursor(meta.epoch, int(known["first"]) - 1), place or Cursor(meta.epoch, 0))
    found: list[tuple[Cursor, Entry]] = []
    for _ in range(_MOST_PAGES):
        page = await services.log.page(ref.keys, after)
        place = page.meta.place(after) if page else None
        if page is None or place is None:
            return _page(found, None, live=False)
        if place != after:
            # It has begun a new epoch since the last page.
            after = place
            continue
        entries, reached = page.entries, page.meta.seq
        following = entries[0].seq if entries else page.meta.seq + 1
        if following > after.seq + 1:
            kept = await trimmed(services.log, ref.keys, after, following)
            if kept is None or kept.meta.epoch != after.epoch:
                continue
            entries, reached = kept.entries, kept.last.seq if kept.last else following - 1
        elif entries:
            reached = entries[-1].seq
        for entry in entries:
            after = after._replace(seq=entry.seq)
            if entry.task == ref.task:
                found.append((after, entry))
                if entry.kind == END:
                    return _page(found, None, live=False)
                if len(found) == limit:
                    return _page(found, after, live=live)
        after = after._replace(seq=reached)
        if reached >= page.meta.seq:
            return _page(found, after if live else None, live=live)
    return _page(found, after, live=live)


def _page(found: list[tuple[Cursor, Entry]], following: Cursor | None, *, live: bool) -> bytes:
    events: list[dict[str, Any]] = [
        {
            "cursor": str(cursor),
            "kind": entry.kind,
            "path": entry.path,
            "at": entry.created / 1000,
            "event": orjson.Fragment(entry.event),
        }
        for cursor, entry in found
    ]
    return orjson.dumps({"events": events, "next": str(following) if following else None, "live": live})
