"""Answers that begin a segment of a turn: which are still missing, and which segment it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.streaming import start_position
from turnstream.api.turns.callbacks import answers_to, asked_at, known_calls
from turnstream.shared.errors import CursorGone, NoSession
from turnstream.shared.session.entry import Cursor
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.event_log import Log


async def missing_answers(
    services: Services, keys: SessionKeys, task: str, given: Collection[str]
) -> list[str]:
    """The calls for which a parked task would still wait if it were ``given`` answers to these; none of one that is not parked.

    Raises:
        BrokerAway: the broker did not answer.
    """
    log = services.log
    known = await log.task(keys, task)
    meta = await log.meta(keys)
    if known.get("status") != TaskStatus.PARKED or meta is None:
        return []
    parks = start_position.parks_of(known)
    park = Cursor(meta.epoch, parks[max(parks)])
    asked = sorted(await asked_at(log, keys, park) - set(given))
    # Some may have been answered since.
    waiting = await known_calls(services, keys, asked)
    return [call for call in asked if waiting.get(call)]


async def answered_segment(log: Log, keys: SessionKeys, task: str, calls: Collection[str]) -> int:
    """The number of the segment that has the answers to calls, however long ago they were given.

    Raises:
        NoSession: it is gone by now.
        CursorGone: they were cut.
        BrokerAway: the broker did not answer.
    """
    given = await answers_to(log, keys, task, calls)
    meta = await log.meta(keys)
    if meta is None:
        raise NoSession
    if not given:
        raise CursorGone
    # The turn may have been parked between two of them.
    return (await start_position.segment(log, keys, meta, task, place=given[-1].seq)).number
