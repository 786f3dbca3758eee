"""Writes that a client relies on once they are acknowledged: a submit, a callback.

The order matters: the script, then the launch. Whatever dies in between, a rescuer looks at the task and
launches it: the script leaves it a hint. Where hints are on another server than sessions, that comes first.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog
from redis.exceptions import AskError

from turnstream.shared.broker.client import command
from turnstream.shared.broker.cluster import ApartCluster
from turnstream.shared.broker.retry import is_transient, retry
from turnstream.shared.errors import BrokerAway
from turnstream.shared.session.outcomes import HintUsed, Launch, Repeated, Same, Stored, Waits
from turnstream.shared.session.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turnstream.api.services import Services
    from turnstream.shared.broker.client import PipedRedis
    from turnstream.shared.broker.keys import TaskRef

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Outcomes after which something is stored at the broker, now or before: what WAIT is for.
_STORED = (Launch, Repeated, Same, Stored, Waits)

# TTL of the key that gives WAIT a write to wait for.
MARK_MS = 1_000

# Runs the script with these tasks; the text is the look that is known of (`turnstream.shared.session.outcomes.HintUsed`).
Ask: TypeAlias = "Callable[[Tasks, str], Awaitable[T | HintUsed]]"
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


async def accept(
    services: Services, ref: TaskRef, ask: Ask[T], *, what: str, number: int = 0
) -> tuple[T, int | None]:
    """Run a script for a task, with a hint for the rescuers, and launch the task if the script says so.

    ``number`` is that launch's, if the caller knows it beforehand: then all is one round trip.

    Returns the script's outcome, and how many replicas had it in time; None when no replicas are to be waited for.

    Raises:
        BrokerAway: the broker did not answer. It may have accepted nevertheless: ``ask`` is to carry an
            operation id or to find its own traces, and the client to repeat its request with the same ids.
    """
    settings = services.settings
    if settings.wait_replicas and not settings.embedded:
        outcome, replicas = await _accept_safely(services, ref, ask, what)
    elif number and services.tasks.notes:
        return await _accept_at_once(services, ref, ask, number), None
    else:
        outcome, replicas = await _ask(services, ref, ask, services.tasks, what), None
    if isinstance(outcome, Launch):
        await launch(services, ref, outcome.number)
    return outcome, replicas


async def _ask(services: Services, ref: TaskRef, ask: Ask[T], tasks: Tasks, what: str) -> T:
    """Run the script; where it cannot leave a hint itself, the hint comes right before each try."""

    async def attempt() -> T:
        return await services.launches.once.hinted(ref, partial(ask, tasks.once), here=tasks.notes)

    return await retry(attempt, seconds=services.tasks.retry_seconds, what=what)


async def _accept_at_once(services: Services, ref: TaskRef, ask: Ask[T], number: int) -> T:
    """Send script and launch without waiting in between: one connection carries them in this order."""
    task = ref.keys.task(ref.task)
    outcome, launched = await asyncio.gather(
        services.launches.hinted(ref, partial(ask, services.tasks), here=True),
        # A retry of its own could come before that of the submit.
        services.launches.once.launch(ref, number, if_queued=task),
        return_exceptions=True,
    )
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, Launch) and launched is not True:
        # It failed, or overtook a submit that the broker had to be taught first.
        await launch(services, ref, number)
    return outcome


async def _accept_safely(services: Services, ref: TaskRef, ask: Ask[T], what: str) -> tuple[T, int | None]:
    """Wait for replicas before anything else happens."""
    async with services.broker.apart() as connection:
        tasks = Tasks(connection, services.settings, notes=services.tasks.notes, offload=services.offload)
        outcome = await _ask(services, ref, ask, tasks, what)
        if not isinstance(outcome, _STORED):
            # What was refused promises nothing, and must not wait for what is wanted of promises.
            return outcome, None
        asked = connection.asked if isinstance(connection, ApartCluster) else connection
        replicas = await _replicas(services, asked, ref.keys.mark) if asked is not None else 0
    if replicas < services.settings.wait_replicas:
        log.warning("accept.few_replicas", what=what, ref=str(ref), replicas=replicas)
    return outcome, replicas


async def _replicas(services: Services, connection: PipedRedis, mark: str) -> int:
    """How many replicas have what was just done, or found done, by a connection; 0 when that cannot be learnt."""
    settings = services.settings
    asked_by = connection.pipe.connections
    try:
        # WAIT speaks of its own connection's writes, and of one that wrote nothing it says that all is well. What
        # was found done was written by another one: a write of our own comes after it in every replica.
        _, replicas = await asyncio.gather(
            command(connection, "SET", mark, "", "PX", MARK_MS),
            command(
                connection,
                "WAIT",
                settings.wait_replicas,
                settings.wait_replicas_ms,
                more_seconds=settings.wait_replicas_ms / 1000,
            ),
        )
    except AskError:
        # Another node has the session by now.
        return 0
    except Exception as error:
        if not is_transient(error):
            raise
        return 0
    # A new connection may lead to another primary, which never had it.
    return int(replicas) if connection.pipe.connections == asked_by else 0


async def launch(services: Services, ref: TaskRef, number: int) -> None:
    """Queue a launch of an accepted task; when the broker is away by now, a rescuer will."""
    try:
        await services.launches.launch(ref, number)
    except BrokerAway:
        log.warning("launch.left_to_rescuers", ref=str(ref), launch=number)


def replica_headers(replicas: int | None) -> Headers:
    """How the client learns how safe its write is."""
    return () if replicas is None else ((b"turnstream-replicas", str(replicas).encode()),)
