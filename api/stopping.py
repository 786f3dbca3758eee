"""Ending a turn because somebody asks for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared import measures
from shared.endings import CANCELED, end_all, end_from_outside
from shared.keys import TaskRef
from shared.tasks import Finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.services import Services
    from shared.keys import SessionKeys
    from shared.tasks import Ended, Gone, Moved


async def stop(services: Services, ref: TaskRef, why: str, *, who: str) -> Finished | Moved | Ended | Gone:
    """End a task as canceled. When this returns, its end is in the log.

    Raises:
        BrokerAway: the broker did not answer.
    """
    begun = time.monotonic()
    outcome = await end_from_outside(services.ender, ref, CANCELED, why, who=who)
    if isinstance(outcome, Finished):
        measures.stop_seconds.add(time.monotonic() - begun)
    return outcome


async def stop_all(
    services: Services, keys: SessionKeys, tasks: Sequence[str], why: str, *, who: str
) -> None:
    """End tasks of a session as canceled. When this returns, their ends are in the log.

    They are given the newest first: those that wait must not begin when the running one ends.

    Raises:
        BrokerAway: the broker did not answer.
    """
    begun = time.monotonic()
    refs = [TaskRef(keys.owner, keys.session, task) for task in tasks]
    await end_all(services.ender, refs, CANCELED, why, who=who)
    if refs:
        measures.stop_seconds.add(time.monotonic() - begun)
