"""Deleting a session for good: what was said, and what its turns left."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from turnstream.api.turns.stop import clear
from turnstream.shared.broker.client import command
from turnstream.shared.errors import NoSession

if TYPE_CHECKING:
    from turnstream.api.services import Services
    from turnstream.shared.broker.keys import SessionKeys

# Turns whose keys are deleted by one command.
TURNS_AT_ONCE = 300


async def delete_session(services: Services, keys: SessionKeys, *, who: str) -> None:
    """End what is live in a session, and delete it with all that was said; one that is gone meanwhile is deleted.

    What is left of turns that the history no longer has (ids, times, no words) expires by itself.

    Raises:
        SessionBusy: new turns came in all the time.
        BrokerAway: the broker did not answer.
    """
    turns = dict.fromkeys(await services.log.live(keys))
    async for entry in services.log.all_kept(keys):
        turns.setdefault(entry.task)
    with suppress(NoSession):
        await clear(services, keys, None, "deleted", who=who)
    tasks = list(turns)
    for at in range(0, len(tasks), TURNS_AT_ONCE):
        some = tasks[at : at + TURNS_AT_ONCE]
        await command(
            services.broker.sessions,
            "DEL", *(key for task in some for key in (keys.task(task), keys.calls(task), keys.state(task))),
        )  # fmt: skip
