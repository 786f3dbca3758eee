"""Losing the worker of a turn, without waiting for its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.waiting import wait_until
from turnstream.shared.broker.keys import TaskRef
from turnstream.shared.session.outcomes import Fenced, Launch
from turnstream.shared.session.queue import LaunchQueue
from turnstream.shared.session.tasks import operation

if TYPE_CHECKING:
    from tests.support.stack import Stack

REF = TaskRef("dev", "s1", "t1")


async def taken(stack: Stack) -> None:
    """Have the turn `REF` launched again, as a rescuer does that finds its lease over."""
    again = await wait_until(lambda: _swept(stack), "the turn to be taken")
    await LaunchQueue(stack.broker.primary).launch(REF, again.number)


async def _swept(stack: Stack) -> Launch | None:
    """The launch, unless an append that was on its way has kept the lease meanwhile."""
    redis: Any = stack.broker.sessions
    await redis.hset(REF.keys.task(REF.task), "lease", 1)
    outcome = await stack.tasks.sweep(REF, operation())
    return outcome if isinstance(outcome, Launch) else None


async def lose(stack: Stack) -> None:
    """The worker that runs the turn `REF` is no more: it writes nothing, and the turn is launched again."""
    for worker, _ in stack.workers:
        for held in worker.leases:
            held.refused(Fenced())
    await taken(stack)
