"""Retrying commands while the broker is away: for how long is a property of the client that sends them.

A client as a `turnstream.shared.broker.client.Broker` makes it sends each command once, and its errors are the
library's. `limited` gives one over the same connections that retries each command and each script for so many seconds,
and raises `BrokerAway` then. The classes that send commands (`Retrying`) have the limit of the client they were made with.
"""

from __future__ import annotations

import asyncio
import math
import random
from copy import copy
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import structlog
from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from turnstream.shared import metrics
from turnstream.shared.errors import BrokerAway

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

log = structlog.get_logger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

# What passes by itself: the broker is away, restarts, fails over, or is full. A retry is right for all of these, and for
# nothing else.
TRANSIENT = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    MasterDownError,
    OutOfMemoryError,
    TryAgainError,
    ClusterDownError,
    # At the start it is a wrong setting (see `Broker.admit`); later somebody changes the rights, and will mend them.
    NoPermissionError,
    OSError,
)

# Between the first two tries, and between two at most.
FIRST_DELAY_SECONDS = 0.02
LONGEST_DELAY_SECONDS = 1.0

# After this a process that retries without end logs which broker it waits for.
LONG_SECONDS = 5.0

_REPLICA_ERRORS = ("READONLY", "MASTERDOWN", "LOADING", "OOM", "MISCONF", "UNBLOCKED", "NOREPLICAS", "BUSY ")


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` passes by itself, so that a retry may help; a script's error carries it only in its text."""
    if isinstance(error, TRANSIENT) or any(word in str(error)[:80] for word in _REPLICA_ERRORS):
        return True
    # What uvloop says of a write to a connection that was cut a moment ago; asyncio's own loop takes the write.
    return isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")


async def retry(attempt: Callable[[], Awaitable[T]], *, seconds: float, what: str) -> T:
    """Repeat ``attempt`` until the broker answers, for ``seconds`` in all; it must be safe to repeat.

    What it sends is to be sent once (`Retrying.once`), so that limits do not multiply. Without a limit this logs once,
    after `LONG_SECONDS`, ``what`` waits.

    Raises:
        BrokerAway: it did not answer in time.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    delay = FIRST_DELAY_SECONDS
    logged = False
    while True:
        try:
            answer = await attempt()
        except Exception as error:
            if not is_transient(error):
                raise
            away = loop.time() - begun
            if away + delay > seconds:
                metrics.broker_away.n += 1
                log.warning("broker.away", what=what, seconds=round(away, 2), error=type(error).__name__)
                raise BrokerAway from error
            if seconds == math.inf and away > LONG_SECONDS and not logged:
                logged = True
                log.warning(
                    "broker.waiting",
                    what=what,
                    seconds=round(away, 2),
                    error=f"{type(error).__name__}: {error}",
                    todo="start this broker, or correct its setting and restart this process; it goes on by itself",
                )
            # Jitter, so that a hundred waiting requests do not come back in one wave.
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)
        else:
            if loop.time() - begun > 1:
                log.info("broker.back", what=what, seconds=round(loop.time() - begun, 2))
            return answer


def retry_seconds(redis: Redis) -> float:
    """For how long a client retries a command; 0: it sends each once."""
    return float(getattr(redis, "retry_seconds", 0.0))


def limited(redis: Redis, seconds: float) -> Redis:
    """The client with another retry limit, over the same connections; 0: the one that sends each command once."""
    once: Redis = getattr(redis, "sent_once", redis)
    if not seconds:
        return once
    client = copy(once)
    vars(client).update(retry_seconds=seconds, sent_once=once)
    return client


class Retrying:
    """Base of the classes that send commands by clients that they hold."""

    @cached_property
    def retry_seconds(self) -> float:
        """For how long each operation is retried: as long as these clients retry a command."""
        return max((float(getattr(each, "retry_seconds", 0.0)) for each in vars(self).values()), default=0.0)

    @property
    def once(self) -> Self:
        """The same without retries: an error of the broker is raised as it came. For loops that have another turn."""
        return self._once if self.retry_seconds else self

    @cached_property
    def _once(self) -> Self:
        return self.retrying(0)

    def retrying(self, seconds: float) -> Self:
        """The same with another retry limit."""
        if seconds == self.retry_seconds:
            return self
        other = copy(self)
        given = {name: each for name, each in vars(self).items() if name not in ("_once", "retry_seconds")}
        # What was one client stays one.
        clients = {id(each): limited(each, seconds) for each in given.values() if isinstance(each, Redis)}
        for name, each in given.items():
            if isinstance(each, Retrying):
                given[name] = each.retrying(seconds)
            else:
                given[name] = clients.get(id(each), each)
        vars(other).clear()
        vars(other).update(given)
        return other


S = TypeVar("S", bound=Retrying)


def whole(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Retry a method that sends several commands as one: from its beginning, within one limit for all of them."""
    what = method.__name__.lstrip("_")

    @wraps(method)
    def operation(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        if not self.retry_seconds:
            return method(self, *args, **kwargs)
        return retry(partial(method, self.once, *args, **kwargs), seconds=self.retry_seconds, what=what)

    return operation
