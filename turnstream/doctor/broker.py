"""Checks of a broker, with the rights of whoever the URL names."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from turnstream.doctor import sentinels
from turnstream.doctor.findings import ok, skipped, warning, wrong
from turnstream.shared.broker import keys
from turnstream.shared.broker.client import PRIMARY, SESSIONS, Broker, command, let_in
from turnstream.shared.broker.keys import SessionKeys
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

# The first releases without the flaw in Lua of CVE-2025-49844: whoever can send a script could run code.
_MENDED = {
    "redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_LEAST = {"redis": (7, 0), "valkey": (7, 2)}

# A clock that is off by more than the first makes times in events odd; by more than the second, deadlines wrong.
ODD_SECONDS = 0.5
WRONG_SECONDS = 5.0

_FULL_PERCENT = 80
_MAY_NOT = "this user may not ask for it"
_ASK_AS_OPERATOR = "run the doctor as a user that may (`operator` of deploy/redis.acl)"

PROBE = SessionKeys("turnstream-doctor", "probe")

# What nobody but a doctor asks for: that a user may not is told where it matters, and is nobody's fault later.
_DOCTORS = frozenset({"info", "config|get", "acl|log", "script|load"})


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
        async for finding in _server(redis, settings, url):
            yield finding
    async for finding in _scripts(broker.sessions):
        yield finding
    yield await _rights(settings, broker)
    yield await _workers(broker.primary)


async def _contact(settings: Settings, what: str, redis: Redis) -> Finding | None:
    """Why the server cannot be asked, if it cannot; one that allows too little can."""

    async def ping() -> None:
        with suppress(NoPermissionError):
            await command(redis, "PING")

    try:
        await let_in(settings, ping, PRIMARY if what == "broker" else SESSIONS)
    except ConfigurationError as error:
        return wrong(what, error.public_text, "mend its user or password; without one, see deploy/redis.acl")
    except (*TRANSIENT, TimeoutError):
        return wrong(what, "does not answer", "start it, or mend its address in its URL")
    return None


async def _server(redis: Redis, settings: Settings, url: BrokerUrl) -> AsyncIterator[Finding]:
    yield await _clock(redis)
    yield _user(url)
    try:
        info: dict[str, Any] = await command(redis, "INFO")
    except NoPermissionError:
        yield skipped("version, persistence, eviction", _MAY_NOT, _ASK_AS_OPERATOR)
        return
    yield _version(info)
    yield _persistence(info, await _fsync(redis))
    yield _eviction(info)
    if settings.wait_replicas:
        yield _replicas(info, settings.wait_replicas)
    async for finding in _refusals(redis):
        yield finding


def _version(info: dict[str, Any]) -> Finding:
    server = "valkey" if "valkey_version" in info else "redis"
    text = str(info.get(f"{server}_version", "0"))
    major, minor, patch = (int(part) if part.isdigit() else 0 for part in [*text.split("."), "0", "0"][:3])
    if (major, minor) < _LEAST[server]:
        least = ".".join(map(str, _LEAST[server]))
        return wrong("version", f"{server} {text}", f"use {server} {least} or newer")
    mended = _MENDED[server].get((major, minor))
    newest = max(_MENDED[server])
    if (mended is None and (major, minor) < newest) or (mended is not None and patch < mended):
        return warning(
            "version",
            f"{server} {text} may have the flaw in Lua of CVE-2025-49844",
            "update it, or make sure that your distribution mended it",
        )
    return ok("version", f"{server} {text}")


async def _fsync(redis: Redis) -> str:
    """When the broker has its file written to the disk; empty when it does not say."""
    try:
        told = await command(redis, "CONFIG", "GET", "appendfsync")
    except RedisError:
        return ""
    return _field(told, "appendfsync")


def _persistence(info: dict[str, Any], fsync: str) -> Finding:
    if not int(info.get("aof_enabled", 0)):
        return wrong(
            "persistence",
            "there is no append-only file: what was acknowledged is lost when the broker ends",
            "set `appendonly yes` and `appendfsync everysec` (deploy/redis.conf)",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return wrong("persistence", "the last write of the append-only file failed", "look for a full disk")
    if fsync == "no":
        return wrong(
            "persistence", "append-only file, but appendfsync no: half a minute is lost when the machine fails",
            "set `appendfsync everysec` (deploy/redis.conf): a second is",
        )  # fmt: skip
    if not fsync:
        return skipped("persistence", "append-only file; appendfsync is not told", _ASK_AS_OPERATOR)
    return ok("persistence", f"append-only file, appendfsync {fsync}")


def _eviction(info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "?"))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy != "noeviction":
        return wrong(
            "eviction",
            f"policy {policy}: a full broker drops logs and tasks without a word",
            "set `maxmemory-policy noeviction`: a full broker then refuses new turns, and nothing is lost",
        )
    if not most:
        return warning(
            "eviction", "noeviction, but no maxmemory: the kernel ends a broker that grows too large",
            "set `maxmemory` to what the machine can give, with room for a rewrite of the append-only file",
        )  # fmt: skip
    if used * 100 > most * _FULL_PERCENT:
        return warning(
            "eviction", f"noeviction; {used * 100 // most} % of maxmemory is used",
            "give it more memory, or keep less: TURNSTREAM_SESSION_TTL, TURNSTREAM_LOG_MAX_BYTES",
        )  # fmt: skip
    return ok("eviction", f"noeviction; {used * 100 // most} % of maxmemory is used")


def _replicas(info: dict[str, Any], wanted: int) -> Finding:
    there = int(info.get("connected_slaves", 0))
    if there < wanted:
        return wrong(
            "replicas", f"{there}, but TURNSTREAM_WAIT_REPLICAS is {wanted}: each submit waits in vain",
            "add replicas, or set TURNSTREAM_WAIT_REPLICAS to what there is",
        )  # fmt: skip
    return ok("replicas", str(there))


async def _clock(redis: Redis) -> Finding:
    before = time.time()
    try:
        seconds, micros = await command(redis, "TIME")
    except NoPermissionError:
        return skipped("clock", _MAY_NOT, _ASK_AS_OPERATOR)
    after = time.time()
    off = abs(int(seconds) + int(micros) / 1e6 - (before + after) / 2) - (after - before) / 2
    seen = f"{max(0.0, off):.1f} s apart from this machine's"
    if off > WRONG_SECONDS:
        return wrong("clock", seen, "keep all clocks by NTP: here, and at the broker")
    if off > ODD_SECONDS:
        return warning("clock", seen, "keep all clocks by NTP: here, and at the broker")
    return ok("clock", seen)


def _user(url: BrokerUrl) -> Finding:
    name = url.user or "default"
    if not (url.tls or url.here):
        return warning(
            "connection", f"user {name}, not encrypted, to another machine",
            "use rediss:// (TLS): keys' hashes and users' words cross the network",
        )  # fmt: skip
    if name == "default" and not url.here:
        return warning("connection", "user default, who may do anything", "use the users of deploy/redis.acl")
    return ok("connection", f"user {name}" + (", on this machine" if url.here else ", encrypted"))


async def _refusals(redis: Redis) -> AsyncIterator[Finding]:
    try:
        entries: list[Any] = await command(redis, "ACL", "LOG", 20)
    except RedisError:
        yield skipped("refused commands", _MAY_NOT, _ASK_AS_OPERATOR)
        return
    logins = [entry for entry in entries if _field(entry, "reason") == "auth"]
    refused = sorted(
        {
            f"{_field(entry, 'username')}: {what}"
            for entry in entries
            if _field(entry, "reason") != "auth"
            and (what := _field(entry, "object")) not in _DOCTORS
            and not what.startswith(PROBE.prefix)
        }
    )
    if refused:
        yield wrong(
            "refused commands", "; ".join(refused),
            "give these users what they lack (deploy/redis.acl), then forget the old ones with ACL LOG RESET",
        )  # fmt: skip
    else:
        yield ok("refused commands", "none")
    if logins:
        yield warning(
            "failed logins",
            "; ".join(
                f"{_field(entry, 'username')}: {_field(entry, 'count')}, the last one "
                f"{float(_field(entry, 'age-seconds')):.0f} s ago from {_host(_field(entry, 'client-info'))}"
                for entry in logins
            ),
            "mend that client's password, or find out who it is; ACL LOG RESET forgets them",
        )


def _host(client_info: str) -> str:
    """The address in what the broker keeps of a client."""
    return next((word[5:] for word in client_info.split() if word.startswith("addr=")), "?")


def _field(entry: Any, name: str) -> str:
    """A field of an entry, which is a dict or, from older clients, a flat list."""
    if not isinstance(entry, dict):
        entry = dict(zip(entry[::2], entry[1::2], strict=True))
    value = entry.get(name, entry.get(name.encode(), "?"))
    return value.decode() if isinstance(value, bytes) else str(value)


async def _scripts(redis: Redis) -> AsyncIterator[Finding]:
    files = sorted(LUA.glob("*.lua"))
    try:
        for file in files:
            await command(redis, "SCRIPT", "LOAD", file.read_text())
    except NoPermissionError:
        yield skipped("scripts", f"{_MAY_NOT}; front ends and workers send them as they need them")
    except RedisError as error:
        yield wrong(
            "scripts", f"{file.name}: {error}", "use a Redis or Valkey with Lua scripts, not a look-alike"
        )
    else:
        yield ok("scripts", f"{len(files)} loaded")


async def _rights(settings: Settings, broker: Broker) -> Finding:
    """Do with a session of our own what front ends and workers do with users' ones."""
    log, tasks = Log(broker.sessions), Tasks(broker.sessions, settings)
    try:
        await tasks.create(PROBE, "doctor", "")
        await log.meta(PROBE)
        await log.kept(PROBE)
        await command(broker.sessions, "PUBLISH", PROBE.tail, "0-1-0")
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
        return skipped("workers", _MAY_NOT, _ASK_AS_OPERATOR)
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
