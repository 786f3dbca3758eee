"""Checks of one server, with the rights of the user in the URL."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from turnstream.doctor.findings import ok, skipped, warning, wrong
from turnstream.shared.broker.client import command
from turnstream.shared.broker.keys import SessionKeys
from turnstream.shared.broker.urls import CLUSTER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from turnstream.doctor.findings import Finding
    from turnstream.shared.broker.urls import BrokerUrl
    from turnstream.shared.settings import Settings

# The first releases without the flaw in Lua of CVE-2025-49844: a user who can send a script could run code.
_MENDED = {
    "redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_LEAST = {"redis": (7, 0), "valkey": (7, 2)}

# A clock that is off by more than the first makes times in events odd; by more than the second, deadlines wrong.
ODD_SECONDS = 0.5
WRONG_SECONDS = 5.0

_FULL_PERCENT = 80
MAY_NOT = "this user may not ask for it"
ASK_AS_OPERATOR = "run the doctor as a user that may (`operator` of deploy/redis.acl)"

# A session of our own.
PROBE = SessionKeys("turnstream-doctor", "probe")

# What only the doctor asks for: a missing right is reported where it matters, and does no harm later.
_DOCTORS = frozenset({"info", "config|get", "acl|log", "script|load", "cluster|info", "cluster|nodes"})


async def examine(redis: Redis, settings: Settings, url: BrokerUrl) -> AsyncIterator[Finding]:
    """All checks that are of a server by itself."""
    yield await _clock(redis)
    yield _user(url)
    try:
        info: dict[str, Any] = await command(redis, "INFO")
    except NoPermissionError:
        yield skipped("version, persistence, eviction", MAY_NOT, ASK_AS_OPERATOR)
        return
    if info.get("cluster_enabled") and url.kind != CLUSTER:
        yield wrong(
            "cluster", "it is one node of a cluster, and is used as if it had everything",
            "name the nodes in TURNSTREAM_SESSION_REDIS_URL: redis+cluster://host:6379,host:6379",
        )  # fmt: skip
    yield _version(info)
    yield _persistence(info, await _fsync(redis))
    yield _eviction(info)
    if settings.wait_replicas and info.get("role") == "master":
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
        return skipped("persistence", "append-only file; appendfsync is not known", ASK_AS_OPERATOR)
    return ok("persistence", f"append-only file, appendfsync {fsync}")


def _eviction(info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "?"))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if policy != "noeviction":
        return wrong(
            "eviction",
            f"policy {policy}: a full broker drops logs and tasks without an error",
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
        return skipped("clock", MAY_NOT, ASK_AS_OPERATOR)
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
        yield skipped("refused commands", MAY_NOT, ASK_AS_OPERATOR)
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
