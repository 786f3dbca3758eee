"""Beginning a session with what was said in another one: see shared/session/fork.py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from turnstream.api.access.session_access import visible_session

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys


async def fork_session(
    services: Services, caller: Caller, source: SessionKeys, task: str, target: SessionKeys, user: str = ""
) -> None:
    """Make ``target`` of what ``source`` held at the end of a turn, or find it so made. It is the same user's.

    Raises:
        NoSession, NoTask, SessionBusy, CursorGone, IdempotencyMismatch: as `Forks.make`.
        TooMany, Overloaded, ShuttingDown: there is no room for it.
        BrokerAway: the broker did not answer.
    """
    meta = await visible_session(services.log, source, caller.visitor(user))
    admit = partial(services.limiter.admit_session, target, caller)
    if await services.forks.make(source, meta, task, target, admit):
        await services.storage.try_report(target)
