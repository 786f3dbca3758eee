"""Checks of a broker, with the rights of whoever the URL names."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError

from turnstream.doctor import nodes, sentinels, server
from turnstream.doctor.findings import ok, skipped, wrong
from turnstream.doctor.server import ASK_AS_OPERATOR, MAY_NOT, PROBE
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import PRIMARY, SESSIONS, Broker, at_each, command, let_in
from turnstream.shared.broker.cluster import ClusterRedis
from turnstream.shared.broker.retry import TRANSIENT
from turnstream.shared.broker.scripts import LUA
from turnstream.shared.broker.sentinels import SentinelPool
from turnstream.shared.broker.urls import BrokerUrl
from turnstream.shared.errors import ConfigurationError
from turnstream.shared.presence import SILENT_SECONDS, read_signs
from turnstream.shared.session.event_log import Log
from turnstream.shared.session.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from turnstream.doctor.findings import Finding
    from turnstream.shared.settings import Settings


async def examine_broker(settings: Settings) -> AsyncIterator[Finding]:
    """All checks; one that the broker's trouble breaks off is a finding, too."""
    broker = Broker(settings)
    try:
        async for finding in examine(settings, broker):
            yield finding
    except (RedisError, OSError, TimeoutError) as error:
        yield wrong(
            "broker", f"{type(error).__name__}: {error}: not all of it was looked at",
            "see its log; when it answers again, run the doctor again",
        )  # fmt: skip
    finally:
        await broker.close()


async def examine(settings: Settings, broker: Broker) -> AsyncIterator[Finding]:
    """Look at both servers, or the one that is both."""
    servers = {"broker": (broker.primary, settings.redis_url)}
    if settings.session_redis_url is not None:
        servers["sessions' broker"] = (broker.sessions, settings.session_redis_url)
    for what, (redis, text) in servers.items():
        url = BrokerUrl.parse(text.get_secret_value())
        if isinstance(redis.connection_pool, SentinelPool):
            for finding in await sentinels.examine(redis.connection_pool):
                yield finding
        if trouble := await _contact(settings, what, redis):
            yield trouble
            return
        yield ok(what, "answers")
        checks = (
            nodes.examine(redis, settings, url)
            if isinstance(redis, ClusterRedis)
            else server.examine(redis, settings, url)
        )
        async for finding in checks:
            yield finding
    async for finding in _scripts(broker.sessions):
        yield finding
    yield await _rights(settings, broker)
    yield await _workers(broker.primary)


async def _contact(settings: Settings, what: str, redis: Redis) -> Finding | None:
    """Why the server cannot be asked, if it cannot; one that allows too little can."""

    async def ping() -> None:
        with suppress(NoPermissionError):
            await (redis.nodes.learn() if isinstance(redis, ClusterRedis) else command(redis, "PING"))

    try:
        await let_in(settings, ping, PRIMARY if what == "broker" else SESSIONS)
    except ConfigurationError as error:
        return wrong(what, error.public_text, "mend its user or password; without one, see deploy/redis.acl")
    except ReadOnlyError:
        return wrong(what, "is a replica", "name its primary, or the Sentinels that know it, in its URL")
    except (*TRANSIENT, TimeoutError) as error:
        return wrong(
            what, f"does not answer: {error or type(error).__name__}", "start it, or mend its kind or address in its URL"
        )  # fmt: skip
    return None


async def _scripts(redis: Redis) -> AsyncIterator[Finding]:
    files = sorted(LUA.glob("*.lua"))
    try:
        for file in files:
            await at_each(redis, partial(_load, file.read_text()))
    except NoPermissionError:
        yield skipped("scripts", f"{MAY_NOT}; front ends and workers send them as they need them")
    except TRANSIENT as error:
        yield skipped("scripts", f"not all nodes answer: {error}")
    except RedisError as error:
        yield wrong(
            "scripts", f"{file.name}: {error}", "use a Redis or Valkey with Lua scripts, not a look-alike"
        )
    else:
        yield ok("scripts", f"{len(files)} loaded")


async def _load(script: str, redis: Redis) -> None:
    await command(redis, "SCRIPT", "LOAD", script)


async def _rights(settings: Settings, broker: Broker) -> Finding:
    """Do with a session of our own what front ends and workers do with users' ones."""
    log, tasks = Log(broker.sessions), Tasks(broker.sessions, settings)
    try:
        await tasks.create(PROBE, "doctor", "")
        await log.meta(PROBE)
        await log.kept(PROBE)
        publish = "SPUBLISH" if isinstance(broker.sessions, ClusterRedis) else "PUBLISH"
        await command(broker.sessions, publish, PROBE.tail, "0-1-0")
        await command(broker.primary, "ZCARD", keys.QUEUE)
        await command(broker.sessions, "DEL", PROBE.meta)
    except NoPermissionError as error:
        return skipped(
            "rights", f"this user may not serve: {error}", "for front ends and workers that is wrong"
        )
    except RedisError as error:
        return wrong(
            "rights", f"a session cannot be made: {error}", "see whether the broker is read-only or full"
        )
    return ok("rights", "a session can be made, read and dropped")


async def _workers(redis: Redis) -> Finding:
    try:
        signs: dict[bytes, bytes] = await command(redis, "HGETALL", keys.WORKERS)
    except RedisError:
        return skipped("workers", MAY_NOT, ASK_AS_OPERATOR)
    read = read_signs(signs)
    alive = [sign for sign in read if sign.seen > time.time() - SILENT_SECONDS]
    if not alive:
        return wrong("workers", "none shows a sign of life", "start some: turnstream worker")
    slots = sum(sign.value("max_jobs", 0) for sign in alive)
    found = f"{len(alive)}, for {slots} turns at once"
    if unreadable := len(signs) - len(read):
        # Nothing is decided by them, but somebody wrote what no worker of this release writes.
        return ok(
            "workers", f"{found}; {unreadable} entries of {keys.WORKERS} cannot be read: another release's?"
        )
    return ok("workers", found)
