"""Ending a turn, or clearing a session, because somebody asks for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turnstream.shared import metrics
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.errors import NoSession, SessionBusy
from turnstream.shared.session.endings import end_all, end_from_outside
from turnstream.shared.session.outcomes import Cleared, Finished, Missing
from turnstream.shared.session.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys
    from turnstream.shared.session.outcomes import Ended, Gone, Moved

# Rounds of ending what is live before a session can be cleared; each round meets only turns that were
# submitted during the one before.
MOST_CLEAR_ROUNDS = 20


async def stop(services: Services, ref: TaskRef, why: str, *, who: str) -> Finished | Moved | Ended | Gone:
    """End a task as canceled. When this returns, its end is in the log.

    Raises:
        BrokerAway: the broker did not answer.
    """
    begun = time.monotonic()
    outcome = await end_from_outside(services.ender, ref, TaskStatus.CANCELED, why, who=who)
    if isinstance(outcome, Finished):
        metrics.stop_seconds.add(time.monotonic() - begun)
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
    await end_all(services.ender, refs, TaskStatus.CANCELED, why, who=who)
    if refs:
        metrics.stop_seconds.add(time.monotonic() - begun)


async def clear(
    services: Services, keys: SessionKeys, epoch: int | None, why: str, *, who: str, idempotency: str = ""
) -> None:
    """End what is live in a session, and forget all that was said in it since ``epoch`` began; None: delete it.

    ``idempotency``, where it is given, names this clear: when the session's latest one had the same name, nothing is done.

    Raises:
        NoSession: it is gone.
        SessionBusy: new turns came in all the time.
        BrokerAway: the broker did not answer.
    """
    for _ in range(MOST_CLEAR_ROUNDS):
        outcome = await services.tasks.clear(keys, epoch, idempotency)
        if isinstance(outcome, Cleared):
            await services.storage.try_report(keys)
            return
        if isinstance(outcome, Missing):
            raise NoSession
        await stop_all(services, keys, outcome.tasks, why, who=who)
    raise SessionBusy("New turns keep coming in: stop sending them, then clear the session.")
