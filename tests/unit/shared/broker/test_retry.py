"""Retrying commands: for how long is the client's, and several commands share one limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fakeredis import FakeAsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from turnstream.shared import metrics
from turnstream.shared.broker.client import command
from turnstream.shared.broker.retry import Retrying, limited, whole
from turnstream.shared.broker.scripts import Script
from turnstream.shared.errors import BrokerAway

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.conftest import Place

# Longer than any test takes: whether one ends does not depend on it.
LONG = 600.0
SHORT = 0.05
ALWAYS = 10**9

REMIND = Script("remind", keys=("due",), optional=("recent", "live"), args=("ref", "look_ms"))


class Flaky(FakeAsyncRedis):
    """A broker that does not answer some commands."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        super().__init__()
        self.left = [failures]
        self.sent: list[str] = []
        self.error = error or RedisConnectionError("away")

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Fail so many times, then carry it out."""
        self.sent.append(args[0])
        if self.left[0]:
            self.left[0] -= 1
            raise self.error
        return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


class Two(Retrying):
    """Sends two commands as one operation."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    @whole
    async def both(self, value: str) -> Any:
        """Write and read."""
        await command(self._redis, "SET", "k", value)
        return await command(self._redis, "GET", "k")


async def test_a_command_is_sent_once_by_default() -> None:
    """The library's error is raised as it came."""
    redis = Flaky(1)
    with pytest.raises(RedisConnectionError):
        await command(redis, "PING")
    assert redis.sent == ["PING"]
    await redis.aclose()


async def test_a_client_with_a_limit_retries() -> None:
    """A command and a script, until the broker answers."""
    redis = Flaky(2)
    assert await command(limited(redis, LONG), "PING")
    assert redis.sent == ["PING"] * 3
    redis.left[0] = 2
    await REMIND(limited(redis, LONG), due="ts:due", recent=None, live=None, ref="o1/s1/t1", look_ms=1_000)
    assert redis.sent[3:] == ["EVAL"] * 3
    await redis.aclose()


async def test_the_limit_is_met_by_one_error() -> None:
    """What a request gets then has a status of its own, and is counted once."""
    redis = Flaky(ALWAYS)
    before = metrics.broker_away.n
    with pytest.raises(BrokerAway):
        await Two(limited(redis, SHORT)).both("v")
    assert metrics.broker_away.n == before + 1
    assert set(redis.sent) == {"SET"}
    await redis.aclose()


async def test_other_errors_are_not_retried() -> None:
    """They would come again."""
    redis = Flaky(1, ResponseError("WRONGTYPE"))
    with pytest.raises(ResponseError):
        await command(limited(redis, LONG), "PING")
    assert redis.sent == ["PING"]
    await redis.aclose()


async def test_several_commands_are_retried_as_one() -> None:
    """From the first one, and not each by itself: their limits would add up."""
    redis = Flaky(0)
    two = Two(limited(redis, LONG))
    retried = redis.execute_command

    async def second_fails(*args: Any, **options: Any) -> Any:
        if redis.sent == ["SET"]:
            redis.left[0] = 1
        return await retried(*args, **options)

    two.once._redis.__dict__["execute_command"] = second_fails
    assert await two.both("v") == b"v"
    assert redis.sent == ["SET", "GET", "SET", "GET"]
    await redis.aclose()


async def test_a_script_that_must_not_run_twice_is_sent_once() -> None:
    """Whatever the client's limit: a lost reply does not mean that it did not run."""
    redis = Flaky(1)
    script = Script(
        "swap_key", keys=("records",), args=("digest", "former", "record"), rest="more", once=True
    )
    with pytest.raises(RedisConnectionError):
        await script(limited(redis, LONG), records="ts:keys", digest="name", former="", record="{}", more=())
    assert redis.sent == ["EVAL"]
    await redis.aclose()


async def test_a_limit_of_its_own(place: Place) -> None:
    """Each part of a process has its own limit, over the same connections."""
    broker = place.connect()
    patient = broker.retrying(LONG)
    assert (broker.retry_seconds, patient.retry_seconds, patient.retrying(3).retry_seconds) == (0, LONG, 3)
    # Where sessions have no server of their own, hints and turns go to one client.
    assert patient.sessions is patient.primary
    assert patient.primary.connection_pool is broker.primary.connection_pool
    assert patient.once.primary is broker.primary
    assert broker.once is broker
    assert Two(patient.primary).retry_seconds == LONG
    assert Two(patient.primary).once.retry_seconds == 0
