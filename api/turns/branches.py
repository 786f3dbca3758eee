"""A conversation whose client takes a turn anew: it goes on in another session, and keeps its name.

The session of that name notes where it goes on. What a branch begins with was said in another session: its fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstream.api.turns.fork import fork_session
from turnstream.api.turns.stop import stop_all
from turnstream.shared.broker.client import command
from turnstream.shared.errors import SessionBusy

if TYPE_CHECKING:
    from turnstream.api.access.auth import Caller
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys

_NOTE = "branch"
# That a branch was used.
_USED = "branch-used"

# Of a branch of a branch, and so on.
_MOST_BRANCHES = 64


async def newest_branch(services: Services, root: SessionKeys, caller: Caller) -> SessionKeys:
    """Where the conversation of that name goes on.

    Raises:
        BrokerAway: the broker did not answer.
    """
    name = await services.log.note(root, _NOTE)
    return caller.keys(name) if name else root


async def branch_off(
    services: Services, caller: Caller, at: SessionKeys, task: str, target: SessionKeys, user: str
) -> None:
    """Make ``target`` of what was said up to the end of a turn, in ``at`` or in what that is a branch of.

    Raises:
        NoTask, CursorGone: nobody knows the turn any more.
        Others: as `fork_session`.
    """
    source = at
    for _ in range(_MOST_BRANCHES):
        if await services.log.task(source, task):
            break
        origin = await command(services.broker.sessions, "HGET", source.meta, "origin")
        if not origin:
            break
        source = caller.keys(origin.decode().partition(" ")[0])
    await fork_session(services, caller, source, task, target, user)


async def go_on_in(services: Services, root: SessionKeys, former: SessionKeys, target: SessionKeys) -> None:
    """Have the conversation go on in a branch; no page shows what ran before, so that is stopped.

    Raises:
        BrokerAway: the broker did not answer.
    """
    await services.tasks.note(root, _NOTE, target.session, keep=True)
    await stop_all(services, former, await services.log.live(former), "superseded", who="client")


async def check_goes_on_in(
    services: Services, root: SessionKeys, here: SessionKeys, caller: Caller, task: str
) -> None:
    """See to it that a turn is in the conversation, and its name known as long as the branch it is in.

    Another page may have taken a turn anew since this one looked where the conversation goes on: that either saw this turn,
    and stopped it, or is seen here.

    Raises:
        SessionBusy: it goes on elsewhere; the turn is stopped.
        BrokerAway: the broker did not answer.
    """
    if here.session != root.session:
        # Of a name of its own: where the conversation goes on may have been noted anew.
        await services.tasks.note(root, _USED, "", keep=True)
    if (await newest_branch(services, root, caller)).session != here.session:
        await stop_all(services, here, [task], "superseded", who="client")
        raise SessionBusy(
            "Another page took a turn of this chat anew meanwhile: load it again, then send this."
        )
