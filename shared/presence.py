"""A process's sign of life for operators, and for workers: which versions of agents others serve. Leases decide all else of turns."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import structlog

from turnstream.shared import metrics
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command
from turnstream.shared.broker.retry import is_transient, limited
from turnstream.shared.broker.scripts import Script
from turnstream.shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

log = structlog.get_logger(__name__)

T = TypeVar("T")

_sign = Script("sign", keys=("processes", "totals"), args=("process", "record"), rest="counters", once=True)

SIGN_OF_LIFE_SECONDS = 5.0

# Who said nothing for this long, three signs of life, is dead, or frozen, or cut off.
SILENT_SECONDS = 15.0

# A process not heard of for this long is taken off the list.
FORGOTTEN_SECONDS = 60

# Processes of a kind that read each time what the others said, on average where there are more, to take dead ones off the list.
READERS = 20

# What a process counts is added to the deployment's totals by whoever of its parts comes first.
_added: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Sign:
    """What a process said of itself last; ``told`` is what its role adds, which another release may do differently."""

    name: str
    seen: float
    started: float
    version: str
    told: dict[str, Any]

    def value(self, field: str, default: T) -> T:
        """What it told of ``field``; ``default`` where it told nothing of that type."""
        value = self.told.get(field)
        return value if type(value) is type(default) else default

    def agents(self) -> dict[str, str]:
        """The agents that a worker serves, with their versions; none where it is of a release that does not say so."""
        told = self.told.get("agents")
        return {str(name): str(version) for name, version in told.items()} if isinstance(told, dict) else {}


def read_signs(entries: dict[bytes, bytes]) -> list[Sign]:
    """The signs of life in a hash of processes, by name; what cannot be read as one is left out, and counted."""
    return sorted(filter(None, map(_read, entries.keys(), entries.values())), key=lambda sign: sign.name)


def _read(name: bytes, entry: bytes) -> Sign | None:
    try:
        told = orjson.loads(entry)
        sign = Sign(name.decode(), told["seen"], told.get("started", 0), str(told.get("version", "")), told)
        if isinstance(sign.seen, int | float) and isinstance(sign.started, int | float):
            return sign
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    metrics.unreadable.add("sign of life")
    return None


class Presence:
    """Says every few seconds that a process lives and what it does, and adds what it counted to the totals."""

    def __init__(
        self,
        redis: Redis,
        listed: str,
        name: str,
        tell: Callable[[], dict[str, Any]],
        trouble: Callable[[], None],
    ) -> None:
        """``listed`` is the hash of such processes, ``tell`` what there is to say, ``trouble`` hears of outages."""
        self._redis = redis
        self._listed = listed
        self._name = name
        self._tell = tell
        self._trouble = trouble
        self._started = int(time.time())
        self._early = asyncio.Event()
        # Process → when it said what it says, by its clock, and when that was first read, by our monotonic one: hosts'
        # clocks may differ by more than a process may be silent.
        self._heard: dict[str, tuple[float, float]] = {}

    def early(self) -> None:
        """Say the next sign now: something changed that others act on."""
        self._early.set()

    async def others(self, retry_seconds: float) -> list[Sign]:
        """The other processes of the list that live; the broker is asked for so long.

        One that is read for the first time is taken to live, since its clock may be behind.
        """
        signs = await self._read(limited(self._redis, retry_seconds))
        return [sign for sign in signs if sign.name != self._name and self._silent(sign) < SILENT_SECONDS]

    async def _read(self, redis: Redis) -> list[Sign]:
        entries: dict[bytes, bytes] = await command(redis, "HGETALL", self._listed)
        signs = read_signs(entries)
        former, now = self._heard, time.monotonic()
        self._heard = {}
        for sign in signs:
            seen, since = former.get(sign.name, (0.0, now))
            self._heard[sign.name] = sign.seen, since if seen == sign.seen else now
        return signs

    def _silent(self, sign: Sign) -> float:
        """For how long it has said nothing new, since it was read first."""
        return time.monotonic() - self._heard[sign.name][1]

    async def show(self) -> None:
        """Do so for ever; to be run as a task."""
        while True:
            try:
                await self._say()
            except Exception as error:
                if is_transient(error):
                    self._trouble()
                else:
                    log.exception("presence.failed")
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                    await self._early.wait()
            except TimeoutError:
                pass
            self._early.clear()

    async def end(self) -> None:
        """Take the process off the list; does not wait for a broker that is away."""
        try:
            async with asyncio.timeout(1):
                await command(self._redis, "HDEL", self._listed, self._name)
        except Exception as error:
            if not (is_transient(error) or isinstance(error, TimeoutError)):
                raise

    async def _say(self) -> None:
        now = int(time.time())
        sign = {"started": self._started, "seen": now, "version": VERSION, **self._tell()}
        news = self._news()
        counters = [word for counter in news.items() for word in counter]
        count = await _sign(
            self._redis,
            processes=self._listed,
            totals=keys.TOTALS,
            process=self._name,
            record=orjson.dumps(sign),
            counters=counters,
        )
        # If each of very many read all, that would be most of what the broker sends. Some of them do each time.
        if count * random.random() >= READERS:  # noqa: S311
            return
        signs = await self._read(self._redis)
        forgotten = [sign.name for sign in signs if self._silent(sign) > FORGOTTEN_SECONDS]
        if forgotten:
            await command(self._redis, "HDEL", self._listed, *forgotten)

    def _news(self) -> dict[str, int]:
        """What was counted since the last time. What is not written then is lost: these are no accounts."""
        counted = metrics.totals()
        news = {name: n - _added.get(name, 0) for name, n in counted.items() if n > _added.get(name, 0)}
        _added.update(counted)
        return news
